"""One scale for how many weights: what a block of a packed format costs and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

if TYPE_CHECKING:
    import torch

__all__ = ["PLAN"]

BLOCKS = (8, 16, 32, 64, 128, 256, 512, 1024, 4096)
ROWS, COLUMNS = 64, 4096
SCALE_BITS, OUTLIER, OUTLIERS = 16, 20.0, 1000  # one weight of so many is so many times larger
PACKED_BLOCK = 32


def round_blocks(x: torch.Tensor, block: int, bits: int) -> torch.Tensor:
    """Each block as integers from -(2^(bits - 1) - 1) to as much, times a scale in float16."""
    most = 2 ** (bits - 1) - 1
    blocks = x.reshape(-1, block)
    scale = (blocks.abs().amax(1, keepdim=True) / most).half().float()
    restored: torch.Tensor = (blocks / scale).round().clamp(-most, most) * scale
    return restored.reshape(x.shape)


def share_off(x: torch.Tensor, y: torch.Tensor) -> float:
    """The root mean square of what is lost, as a percentage of x's."""
    return 100 * float((x - y).double().square().mean().sqrt() / x.double().square().mean().sqrt())


def _run(say: Say, rough: bool) -> Findings:
    import torch

    import kernelworks

    draws = torch.Generator().manual_seed(6)
    plain = torch.randn(ROWS, COLUMNS, generator=draws)
    pointed = torch.where(torch.rand(plain.shape, generator=draws) * OUTLIERS < 1, OUTLIER * plain, plain)
    usual = pointed.abs() < OUTLIER / 4  # what lies beside the outliers

    lost = {
        "4 bits": [share_off(plain, round_blocks(plain, block, 4)) for block in BLOCKS],
        "4 bits, beside outliers": [
            share_off(pointed[usual], round_blocks(pointed, block, 4)[usual]) for block in BLOCKS
        ],
        "8 bits": [share_off(plain, round_blocks(plain, block, 8)) for block in BLOCKS],
        "8 bits, beside outliers": [
            share_off(pointed[usual], round_blocks(pointed, block, 8)[usual]) for block in BLOCKS
        ],
    }
    series = tuple(
        Series(name, tuple(computed_point(block, share) for block, share in zip(BLOCKS, shares, strict=True)))
        for name, shares in lost.items()
    )
    ours = {}
    for format in ("Q4_0", "Q8_0"):
        packed = kernelworks.quantize(plain, format)
        ours[format] = share_off(plain, kernelworks.dequantize(packed, format)), 8 * packed.shape[1] / COLUMNS
    at = {one.name: {point.x: point.value for point in one.points} for one in series}
    return Findings(
        Axis("weights that share a scale", "", logarithmic=True), Axis("lost, root mean square", "%", logarithmic=True),
        series,
        (
            f"blocks of {PACKED_BLOCK} cost {SCALE_BITS / PACKED_BLOCK:g} bits a weight for the scale; blocks of 4096 "
            f"next to nothing, and lose {at['4 bits'][4096] / at['4 bits'][PACKED_BLOCK]:.2g} times as much",
            f"one weight of {OUTLIERS} that is {OUTLIER:.0f} times larger: its neighbours lose "
            f"{at['4 bits, beside outliers'][4096]:.2g}% with one scale for 4096, "
            f"{at['4 bits, beside outliers'][PACKED_BLOCK]:.2g}% with one for {PACKED_BLOCK}",
            *(f"kernelworks.quantize, {format}: {share:.3g}% lost at {bits:g} bits a weight"
              for format, (share, bits) in ours.items()),
        ),
    )  # fmt: skip


PLAN = Plan(
    name="block-size",
    question="How many weights should share one scale?",
    expected="A scale is set by the largest weight of its block. The larger the block, the larger that one is, and the "
    "coarser all others are rounded. An outlier spoils its own block only, so small blocks contain the damage.",
    page="quantisation.md",
    seconds=3,
    is_timed=False,
    run=_run,
)
