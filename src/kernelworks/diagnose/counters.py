"""Our model of kernels' work beside the hardware's counters, which Nsight Compute (``ncu``) reads if it may.

The program runs again in a process of its own, some kernels of one run under ``ncu``, which leaves the clocks alone and
empties the caches before each of them: what a kernel then reads from device memory is what it cannot do without, or
more. Only kernels that are the only one of their op are compared.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence

from kernelworks.diagnose.account.on_gpu import innermost, is_product
from kernelworks.measure.clock import nsight
from kernelworks.measure.clock.nsight import parse_counters, refusal
from kernelworks.profile.cost import Work
from kernelworks.profile.on_gpu import GpuTimeline
from kernelworks.profile.replay import Span, short
from kernelworks.records import CounterCheck

__all__ = ["checks", "command", "finding", "window"]

METRICS = {
    "seconds": "gpu__time_duration.sum", "read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum",
    "l2": "lts__t_bytes.sum", "bf16": "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "fp16": "sm__ops_path_tensor_op_hgmma_src_fp16.sum", "tf32": "sm__ops_path_tensor_op_hgmma_src_tf32_dst_fp32.sum",
}  # fmt: skip
MATRIX_METRICS = ("bf16", "fp16", "tf32")
KERNELS = 48  # ncu reads so many consecutive kernels of one run
LEAST_BYTES = 4 << 20  # smaller reads drown in what instructions and parameters take
TIMEOUT_S = 300


def checks(timeline: GpuTimeline, target: str, args: Sequence[str]) -> tuple[tuple[CounterCheck, ...], str]:
    """The comparison, and the finding that says how far off the model is, or why there is none. Cost: one more start
    of the program, and some 50 ms a kernel."""
    if shutil.which("ncu") is None:
        return (), "counters: ncu (Nsight Compute) is not installed, so our byte and flop model was not checked"
    spans = [s for s in timeline.played.spans if not s.job.name.startswith(("Memcpy", "Memset"))]
    first = window([(s.job.name, s.end - s.start) for s in spans])
    spans = spans[first : first + KERNELS]
    try:
        done = subprocess.run(command(target, args, first), capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"counters: ncu could not be run: {error}"
    counted = parse_counters(done.stdout, METRICS)
    if not counted:
        return (), f"counters: {refusal(done)}"
    found = tuple(_compared(timeline, spans, counted))
    return found, finding(found)


def command(target: str, args: Sequence[str], first: int) -> list[str]:
    """What is run: the counters of KERNELS kernels of one run of the program, from its kernel number ``first`` on."""
    program = [sys.executable, "-m", "kernelworks.profile.ncu_target", target, *args]
    return nsight.command(METRICS, program, ["--launch-skip", str(first), "--launch-count", str(KERNELS)])


def window(kernels: Sequence[tuple[str, float]]) -> int:
    """Where the KERNELS kernels in a row begin in which the most time is in different kernels. Takes name, seconds."""
    best, at = -1.0, 0
    for first in range(0, max(1, len(kernels) - KERNELS + 1), max(1, KERNELS // 4)):
        longest: dict[str, float] = {}
        for name, seconds in kernels[first : first + KERNELS]:
            longest[name] = max(longest.get(name, 0.0), seconds)
        if sum(longest.values()) > best:
            best, at = sum(longest.values()), first
    return at


def _compared(
    timeline: GpuTimeline, spans: Sequence[Span], counted: Sequence[tuple[str, dict[str, float]]]
) -> list[CounterCheck]:
    alone: dict[tuple[int, int], int] = {}
    for span in timeline.played.spans:
        if not span.job.name.startswith("Memset"):
            key = (id(span.job.call), span.job.inner)
            alone[key] = alone.get(key, 0) + 1
    found = []
    for span, (name, numbers) in zip(spans, counted, strict=False):
        if _head(name) != _head(span.job.name):
            break  # the program did something else this time: nothing after this can be told apart
        op, its = innermost(span.job)
        if its is None or alone[id(span.job.call), span.job.inner] != 1 or "read" not in numbers:
            continue
        found.append(_check(name, op, its, numbers))
    return found


def _head(name: str) -> str:
    return short(name).partition("<")[0]


def _check(name: str, op: str, its: Work, numbers: dict[str, float]) -> CounterCheck:
    matrix = sum(numbers.get(unit, 0.0) for unit in MATRIX_METRICS)
    return CounterCheck(
        name=short(name),
        op=op,
        seconds=numbers.get("seconds", 0.0),
        model_flop=its.flop,
        counted_flop=matrix if is_product(op) and matrix else None,
        model_read_bytes=its.read,
        memory_read_bytes=numbers["read"],
        memory_written_bytes=numbers.get("written", 0.0),
        l2_bytes=numbers.get("l2", 0.0),
    )


def finding(found: Sequence[CounterCheck]) -> str:
    """How far our model is from the counters, in one line: medians, and the worst."""
    reads = [c for c in found if c.model_read_bytes >= LEAST_BYTES and c.memory_read_bytes]
    flops = [c for c in found if c.counted_flop]
    if not reads and not flops:
        return f"counters: of {len(found)} kernels none reads over {LEAST_BYTES >> 20} MiB or uses the matrix units"
    pieces = []
    for what, ratios in (
        ("bytes read", {c.op: c.model_read_bytes / c.memory_read_bytes for c in reads}),
        ("matrix flop", {c.op: c.model_flop / c.counted_flop for c in flops if c.counted_flop}),
    ):
        if ratios:
            worst = max(ratios, key=lambda op: abs(ratios[op] - 1))
            pieces.append(
                f"our {what} are {statistics.median(ratios.values()):.2f} of what was counted "
                f"(median; furthest off {ratios[worst]:.2f}, {worst})"
            )
    return f"counters, {len(found)} kernels of one run: {'; '.join(pieces)}"
