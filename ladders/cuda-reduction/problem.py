"""y = the sum of x[N] in float32 on a GPU: what every rung of this ladder computes. x is read once and nothing else is
of any size, so the rate at which memory can be read is all there is to reach.

Of the sizes that are only proved, each x is a whole number of 128ths, at most 127 of them. A sum of such numbers is
exact in float32 while it stays below 2^17, in whatever order and however grouped: so a rung has to give *the* sum,
and one element left out, taken twice or rounded on the way shows among 2^31 as it does among 3. What sums on the way
come to: of n elements about 0.57 sqrt(n), some 27,000 for the most that is proved; 2^17 is five times as much. What
is timed are normal numbers, all of whose bits are random (it made no difference: 4696 GB/s of either, and of zeros).

A rung must also give the same bits twice. That leaves out atomic additions of floats: they come in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.baselines_cub import cub_sum
from kernelworks.climb.problem import Inputs, Problem, Size

PARTS = 128
UNIT_ROUNDOFF = 2.0**-24
TIMED = (2**30, 2**26, 2**24)


def inputs(size: Size, generator: torch.Generator) -> Inputs:
    n, device = size["N"], generator.device
    if n in TIMED:
        return {"x": torch.randn(n, generator=generator, device=device)}
    whole = torch.randint(1 - PARTS, PARTS, (n,), dtype=torch.int8, generator=generator, device=device)
    return {"x": whole.to(torch.float32).div_(PARTS)}


def bound(exact: Inputs, reference: Tensor) -> Tensor:
    """Nothing, where every sum is exact. Else gamma_n sum |x| (Higham, Accuracy and Stability of Numerical Algorithms,
    section 4.2), n the longest chain of additions: of a thread among 1024, and of their sums. That is wide, and is
    there to see that the timed call has computed its own inputs' sum and no other's; exact sums are the
    verification."""
    x = exact["x"]
    if x.numel() not in TIMED:
        return torch.zeros_like(reference)
    steps = (x.numel() / 1024 + 1100) * UNIT_ROUNDOFF
    return (steps / (1 - steps) * x.abs().sum()).view(1)


def torch_sum(given: Inputs, threads: int) -> Callable[[], Tensor]:
    x = given["x"]
    out = x.new_empty(())
    return lambda: torch.sum(x, 0, out=out).view(1)


PROBLEM = Problem(
    title="the sum of 2^30 floats on a GPU, y = x[0] + x[1] + ... + x[N - 1]",
    symbol="sum",
    device="cuda",
    size={"N": TIMED[0]},
    verification_sizes=(
        {"N": 1},
        {"N": 3},
        {"N": 33},
        {"N": 1000},
        {"N": 4097},
        {"N": 131072},
        {"N": 131071},
        {"N": 1234567},
        {"N": 33554432},
        {"N": 87654321},
        {"N": 2**30 + 8191},
        {"N": 2**31 + 5},  # more than an int counts
    ),
    also=tuple({"N": n} for n in TIMED[1:]),
    inputs=inputs,
    shape=lambda size: (1,),
    tiled=lambda size: (size["N"],),
    reference=lambda exact: exact["x"].sum().view(1),
    bound=bound,
    flop=lambda size: 1.0 * size["N"],
    bytes=lambda size: 4.0 * (size["N"] + 1),
    output="y",
    unit="GB/s",
    lessons="src/kernelworks/tile/reduction.py",
    baselines={"torch": torch_sum, "CUB": cub_sum},
    said={
        "torch": "torch.sum(x, 0, out=y)",
        "CUB": "cub::DeviceReduce::Sum of the CUDA toolkit, compiled by its nvcc for this GPU",
    },
)
