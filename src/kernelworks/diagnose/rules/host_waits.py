"""The host waits for the device again and again (``.item()``, ``.cpu()``), and the device then waits for it."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

MANY = 4


def applies(view: View) -> Advice | None:
    if view.op != "synchronisation" or view.calls < MANY or view.share < 0.002:
        return None
    action = "read numbers once after the loop, or copy them to pinned memory with non_blocking=True"
    return Advice("the host waits for the GPU in a loop", action, 0.5 * view.seconds, view.seconds)


RULE = Rule("host_waits", applies, ("cuda",))
