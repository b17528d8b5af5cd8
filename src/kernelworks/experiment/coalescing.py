"""What a warp's 32 loads cost, counted in an emulated GPU: sectors of memory, passes over the banks of shared "
"memory."""

from __future__ import annotations

import re

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

STRIDES = (1, 2, 3, 4, 8, 16, 32, 33)  # floats from a thread's element to its neighbour's
LANES = 32
LENGTH = LANES * max(STRIDES)
SOURCE = f"""
#include <cuda_runtime.h>

__global__ void strided(const float* x, float* y, int stride) {{
    __shared__ float s[{LENGTH}];
    for (int i = threadIdx.x; i < {LENGTH}; i += {LANES}) s[i] = 1.0f;
    __syncthreads();
    float far = x[threadIdx.x * stride];
    float near = s[threadIdx.x * stride];
    y[threadIdx.x] = far + near;
}}

extern "C" void strided_load(const float* x, float* y, int stride) {{ strided<<<1, {LANES}>>>(x, y, stride); }}
"""
DECLARATION, TYPES = "void strided_load(const float* x, float* y, int stride)", ("const float*", "float*", "int")


def traffic_by_stride() -> list[tuple[int, int, int]]:
    """Stride, sectors of the load from global memory, passes of the one from shared memory. Raises BuildError."""
    import numpy as np

    from kernelworks.learn.emulator import Argument, Role, emulate, thread_orders

    cases = [
        [
            Argument("x", Role.INPUT, np.ones(LENGTH, np.float32)),
            Argument("y", Role.OUTPUT, np.zeros(LANES, np.float32)),
            Argument("stride", Role.SCALAR, np.array([stride], np.int32)),
        ]
        for stride in STRIDES
    ]
    seen = emulate(SOURCE, "strided.cu", DECLARATION, TYPES, cases, [thread_orders(1)] * len(cases))
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if re.search(r"= s\[", text))
    found = []
    for case, stride in enumerate(STRIDES):
        of_case = [t for t in seen.traffic if t.case == case and t.access == 1]
        far = next(t.cost for t in of_case if not t.shared)
        near = next(t.cost for t in of_case if t.shared and t.line == line)
        found.append((stride, far, near))
    return found


def _run(say: Say, rough: bool) -> Findings:
    say("the emulator is compiled the first time")
    found = traffic_by_stride()
    by_stride = {stride: (far, near) for stride, far, near in found}
    return Findings(
        Axis("floats from one thread's element to the next's"), Axis("for one load of a warp"),
        (
            Series("sectors of 32 bytes, global memory", tuple(
                computed_point(index, far, str(s)) for index, (s, far, _) in enumerate(found, 1))),
            Series("passes, shared memory", tuple(
                computed_point(index, near, str(s)) for index, (s, _, near) in enumerate(found, 1))),
        ),
        (
            f"side by side the warp's 128 bytes fill {by_stride[1][0]} sectors; {by_stride[32][0]} floats that lie 32 "
            f"apart lie in {by_stride[32][0]} sectors: {by_stride[32][0] // by_stride[1][0]} times the traffic",
            f"in shared memory a stride of 32 puts all threads on one bank ({by_stride[32][1]} passes), a stride of 33 "
            f"on 32 banks ({by_stride[33][1]} pass): a row that is one float longer costs nothing and saves 31 passes",
            f"a stride of 3 costs {by_stride[3][0]} sectors but {by_stride[3][1]} pass: 3 and 32 share no factor",
        ),
        "",
        ("counted by the emulator of `kernelworks learn`: no GPU took part, and these are no times",),
    )  # fmt: skip


PLAN = Plan(
    name="coalescing",
    question="How much does a GPU's memory move for one load of a warp?",
    expected="32 threads that load neighbouring floats need 4 sectors of 32 bytes. With a stride each thread "
    "needs more of a "
    "sector to itself, up to 32. Shared memory has 32 banks of 4 bytes: there it matters whether threads meet "
    "on a bank.",
    page="warps.md",
    seconds=6,
    is_timed=False,
    run=_run,
)
