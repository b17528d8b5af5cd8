"""An op that waits for the system to hand out fresh pages for its output, not for memory or arithmetic."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import FREE, Advice, Rule, View


def applies(view: View) -> Advice | None:
    faults = view.part("allocation")
    if view.op == FREE or faults < 0.3 * view.seconds:
        return None
    action = "allocate less: out=, or MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ at 4 GiB"
    if view.row:
        action += f"; then {view.row}"
    return Advice("page faults in fresh outputs", action, 0.7 * faults, max(faults, view.excess()))


RULE = Rule("fresh_pages", applies, ("cpu",))
