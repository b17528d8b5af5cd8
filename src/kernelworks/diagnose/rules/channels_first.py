"""A convolution of images that lie channel by channel: each call has them laid out anew, or runs a kernel that cannot
use whole vectors (depthwise ones above all)."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View

CONVOLUTIONS = frozenset({"conv2d", "convolution", "_convolution"})


def applies(view: View) -> Advice | None:
    if view.op not in CONVOLUTIONS or view.layout != "channels first" or view.achieved >= REACH:
        return None
    if view.regime == "dispatch" or view.row:
        return None
    action = (
        "try model.to(memory_format=torch.channels_last) with inputs alike; it is quicker for most shapes, not for all"
    )
    return Advice("convolutions of images that lie channel by channel", action, 0.0, 0.5 * view.excess(REACH))


RULE = Rule("channels_first", applies, ("cpu",))
