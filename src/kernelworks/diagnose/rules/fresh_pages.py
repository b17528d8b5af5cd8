"""An op that waits for the system to hand out fresh pages, for its output or for memory that it works in."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.rule import FREE, Advice, Rule, View

SETTINGS = "MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ at 4 GiB"
MOST = (1 << 31) - 1  # bytes, the most that the setting takes: malloc maps larger blocks anew all the same
SMALL = 128 * 1024  # bytes; malloc keeps smaller blocks, so they take no fresh pages


def applies(view: View) -> Advice | None:
    faults = view.part("allocation")
    if view.op == FREE or faults < 0.3 * view.seconds:
        return None
    if view.written < SMALL * view.calls:  # the output of a call is too small to be what faults
        action = f"{SETTINGS}, or weights packed once (torch.compile with freezing)"
        return Advice("page faults in memory that an op works in", action, 0.0, 0.7 * faults)
    action = f"allocate less: out=, or {SETTINGS}"
    if view.kernel:
        action += f"; then {view.kernel}"
    if MOST * view.calls < view.written < math.inf:
        return None
    return Advice("page faults in fresh outputs", action, 0.7 * faults, faults)


RULE = Rule("fresh_pages", applies, ("cpu",), optimization="allocator")
