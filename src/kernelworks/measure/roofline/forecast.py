"""How long a call should take, from its bound and from how near to their bounds like calls came."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kernelworks.contract import Request
from kernelworks.dispatch.op import Op
from kernelworks.measure.roofline import bound as roofline
from kernelworks.measure.roofline.kernel_time import estimate_kernel_time
from kernelworks.records import BenchResult, GpuPeaks, Peaks

__all__ = ["limit", "predict"]

OURS = "kernelworks"


def limit(op: Op, request: Request, known: Peaks | GpuPeaks, footprint_bytes: float) -> roofline.Bound:
    """T_min of one call. Only products of matrices may use the dot-product units of a narrow dtype.

    On a GPU it is that of one launch between two events, as ``bench`` times it: what an empty one takes is added, and
    names the bottleneck if it is the larger part.
    """
    cost = op.contract.cost(request)
    least = roofline.bound(
        cost.flop, cost.transcendental, cost.bytes, footprint_bytes, op.contract.unit(request), request.threads, known,
        written_bytes=cost.bytes_written,
    )  # fmt: skip
    if not isinstance(known, GpuPeaks):
        return least
    empty_s = known.isolated_us * 1e-6
    work_s = max(seconds for term, seconds in least.terms.items() if term != "launch")
    if work_s < empty_s:
        words = f"an empty launch {known.isolated_us:.1f} us"
        least = dataclasses.replace(least, bottleneck="launch", peak=words)
    return dataclasses.replace(least, seconds=work_s + empty_s)


def _share(result: BenchResult, kernel: str) -> float | None:
    """T_min / T of this kernel in one result."""
    for variant in result.variants:
        if variant.name == kernel or (variant.name == OURS and result.chosen == kernel):
            return result.bound_us / variant.median_us if variant.median_us > 0 else None
    return None


def predict(
    op: Op, request: Request, kernel: str, known: Peaks | GpuPeaks, results: Sequence[BenchResult]
) -> float | None:
    """Seconds that a call of one kernel should take, or None if no like call was measured and no model speaks of it.

    T = T_min / share, with the share of the bound that the same kernel reached, in the same dtype, in the measured case
    whose T_min is nearest (in ratio) and whose threads agree if any do. ``results`` are benches of this kind of
    machine; those that failed their gate do not count. On a GPU a kernel of ours without such a case takes what
    ``estimate_kernel_time`` makes of its kernels. Cost: some microseconds a result.
    """
    dtype = str(request.dtype).removeprefix("torch.")
    footprint = math.inf if request.device == "cuda" else op.contract.cost(request).bytes
    least = limit(op, request, known, footprint)
    cache = "cold" if request.device == "cuda" else "warm"
    like = [r for r in results if r.op == op.name and r.dtype == dtype and not r.gate and r.cache == cache]
    like = [r for r in like if r.threads == request.threads] or like
    shares = [(abs(math.log(r.bound_us / (least.seconds * 1e6))), s) for r in like if (s := _share(r, kernel))]
    if shares:
        return least.seconds / min(shares)[1]
    if not isinstance(known, GpuPeaks) or op.kernel(kernel).source is None:
        return None
    return estimate_kernel_time(op, request, kernel, known).seconds
