"""A number read from a tensor again and again (``.item()``, ``if tensor:``): Python waits for it each time."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

READS = frozenset({"item", "_local_scalar_dense", "is_nonzero", "equal"})
MANY = 8


def applies(view: View) -> Advice | None:
    if view.op not in READS or view.calls < MANY:
        return None
    high = view.seconds * (1 - 1 / view.calls)
    return Advice("numbers read from tensors in a loop", "read them once after the loop", 0.5 * high, high)


RULE = Rule("sync_in_loop", applies, ("cpu",))
