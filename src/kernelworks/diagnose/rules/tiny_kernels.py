"""Kernels whose work is less than it takes to launch one, on the critical path."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

MANY = 16


def applies(view: View) -> Advice | None:
    if view.bottleneck not in ("launch", "dispatch") or view.calls < MANY or view.share < 0.002 or not view.shapes:
        return None
    action = "fuse with its neighbours (torch.compile, or a kernel here): the kernel takes longer to start than to work"
    return Advice("many tiny kernels", action, 0.0, 0.8 * view.seconds)


RULE = Rule("tiny_kernels", applies, ("cuda",))
