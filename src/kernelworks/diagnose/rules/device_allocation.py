"""Device memory asked of the driver within the run, or given back: torch's own allocator would have kept it."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View


def applies(view: View) -> Advice | None:
    if view.op != "cudaMalloc" or view.share < 0.005:
        return None
    action = "keep freed memory (no empty_cache in the loop), or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    return Advice("device memory asked of the driver", action, 0.7 * view.seconds, view.seconds)


RULE = Rule("device_allocation", applies, ("cuda",))
