"""The program's own Python between two ops, beyond what a call into torch costs anyway.

What less of it would gain is not known before it is tried: no share of it is predicted.
"""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import PYTHON, Advice, Rule, View


def applies(view: View) -> Advice | None:
    if view.op != PYTHON or view.share < 0.01:
        return None
    action = "less Python an op: fewer and larger ops, torch.compile, or a larger batch"
    return Advice("Python overhead", action, 0.0, 0.0)


RULE = Rule("python_between_ops", applies, ("cpu",))
