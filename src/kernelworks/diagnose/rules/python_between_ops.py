"""The program's own Python between two ops, beyond what a call into torch costs anyway."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import PYTHON, Advice, Rule, View


def applies(view: View) -> Advice | None:
    if view.op != PYTHON or view.share < 0.01:
        return None
    action = "less Python an op: fewer and larger ops (kw.swap), torch.compile, or a larger batch"
    return Advice("Python between ops", action, 0.0, 0.8 * view.seconds)


RULE = Rule("python_between_ops", applies, ("cpu",))
