"""What tensor cores round before they multiply, and how two or three numbers of 16 bits make one of 32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

if TYPE_CHECKING:
    import torch

__all__ = ["PLAN", "rounded_to_bits"]

SIZE = 512
# Name, bits of precision of a term, terms.
INPUTS = (
    ("fp8 e4m3", 4, 1),
    ("bf16", 8, 1),
    ("tf32, fp16", 11, 1),
    ("2 x bf16", 8, 2),
    ("3 x bf16", 8, 3),
    ("fp32", 24, 1),
)


def rounded_to_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float64 numbers rounded to so many bits of precision, to nearest, in any exponent."""
    import torch

    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 2.0**bits) / 2.0**bits, exponent)


def split_terms(x: torch.Tensor, bits: int, count: int) -> list[torch.Tensor]:
    """Terms of so many bits that add up to x, but for what the last one rounds away."""
    terms: list[torch.Tensor] = []
    for _ in range(count):
        terms.append(rounded_to_bits(x - sum(terms), bits))
    return terms


def product_bound(bits: int, count: int) -> float:
    """The largest error of a product of two such numbers, relative to it: what either loses, and the pairs of small
    terms that are left out."""
    u = 2.0**-bits
    lost, left_out = 2 * u**count, {1: u**2, 2: u**2, 3: 2 * u**3}[count]
    return (lost + left_out) * (1 + 4 * u)


def _run(say: Say, rough: bool) -> Findings:
    import torch

    draws = torch.Generator().manual_seed(4)
    a, b = (torch.randn(SIZE, SIZE, generator=draws, dtype=torch.float64) for _ in range(2))
    exact, magnitude = a @ b, a.abs() @ b.abs()
    errors, bounds = [], []
    for index, (name, bits, count) in enumerate(INPUTS, 1):
        left, right = split_terms(a, bits, count), split_terms(b, bits, count)
        found = sum(left[i] @ right[j] for i in range(count) for j in range(count) if i + j < count)
        error = float(((found - exact).abs() / magnitude).max())
        errors.append(computed_point(index, error, name))
        bounds.append(computed_point(index, product_bound(bits, count), name))
    by_name = {point.label: point.value for point in errors}
    return Findings(
        Axis("what the products' inputs are rounded to"), Axis("error, over sum |a| |b|", "", logarithmic=True),
        (Series("largest error", tuple(errors)), Series("bound", tuple(bounds), is_limit=True)),
        (
            f"bf16 is {by_name['bf16']:.2g} off, tf32 and fp16 {by_name['tf32, fp16']:.2g}: three bits more, "
            "some eight "
            "times less",
            f"two bf16 terms ({by_name['2 x bf16']:.2g}, three products) are better than tf32; three "
            f"({by_name['3 x bf16']:.2g}, six products) come to float32 ({by_name['fp32']:.2g})",
        ),
        "",
        (f"{SIZE} x {SIZE} matrices; sums are kept in float64 here, so that the inputs' rounding is all there is",),
    )  # fmt: skip


PLAN = Plan(
    name="rounding",
    question="What does a matrix product lose when its inputs are rounded to fewer bits?",
    expected="Each input of p bits is off by 2^-p at most, so a product by about 2^(1-p). A number that is "
    "split in two or "
    "three terms of 8 bits keeps 16 or 24.",
    page="tensor-cores.md",
    seconds=2,
    is_timed=False,
    run=_run,
)
