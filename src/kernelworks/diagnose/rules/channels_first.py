"""A convolution in channels-first layout (NCHW).

Measured on one core with AVX-512, channels-last beside channels-first images: depthwise convolutions 1.7 to 2.2 times
as fast, dense ones 0.9 to 1.4 times (most if images are large and channels few).
"""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View

CONVOLUTIONS = frozenset({"conv2d", "convolution", "_convolution"})
PROBLEM = "convolutions in channels-first layout"
ACTION = "model.to(memory_format=torch.channels_last), and the inputs alike"


def applies(view: View) -> Advice | None:
    if view.op not in CONVOLUTIONS or view.layout != "channels first" or len(view.shapes) < 2:
        return None
    if view.achieved_share >= REACH or view.bottleneck == "dispatch" or view.kernel:
        return None
    image, weight, excess = view.shapes[0], view.shapes[1], view.excess(REACH)
    if len(weight) == 4 and weight[1] == 1 and image[1] > 1:  # depthwise
        return Advice(PROBLEM, ACTION, min(0.25 * view.seconds, excess), min(0.5 * view.seconds, excess))
    action = f"try {ACTION}: it is faster for most shapes, not for all"
    return Advice(PROBLEM, action, 0.0, min(0.25 * view.seconds, excess))


RULE = Rule("channels_first", applies, ("cpu",), optimization="channels_last")
