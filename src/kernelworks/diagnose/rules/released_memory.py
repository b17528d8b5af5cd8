"""Large blocks given back to the system, only to be asked for and faulted in again."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import FREE, Advice, Rule, View


def applies(view: View) -> Advice | None:
    if view.op != FREE:
        return None
    action = "allocate less: out=, or MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ at 4 GiB"
    return Advice("memory given back to the system", action, 0.7 * view.seconds, view.seconds)


RULE = Rule("released_memory", applies, ("cpu",), optimization="allocator")
