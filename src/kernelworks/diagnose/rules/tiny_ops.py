"""Many calls whose work is less than the call: their time is dispatch."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

MANY = 32


def applies(view: View) -> Advice | None:
    if view.bottleneck != "dispatch" or view.calls < MANY or view.share < 0.002:
        return None
    action = "fuse with its neighbours: the call costs more than the work"
    return Advice("many tiny ops", action, 0.0, 0.8 * view.seconds)


RULE = Rule("tiny_ops", applies, ("cpu",))
