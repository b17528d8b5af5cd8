"""A state of fixed size in place of a cache: what it remembers, and what writing a difference changes."""

from __future__ import annotations

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

WIDTH = 32  # of keys and values
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _run(say: Say, rough: bool) -> Findings:
    import torch

    import kernelworks

    draws = torch.Generator().manual_seed(8)
    keys = torch.nn.functional.normalize(torch.randn(LENGTHS[-1], WIDTH, generator=draws), dim=1)
    values = torch.randn(LENGTHS[-1], WIDTH, generator=draws)

    def off(state: torch.Tensor | None, length: int) -> float:
        """What reading the last eight keys gives, off what was written with them, as a percentage."""
        assert state is not None
        first = max(0, length - 8)
        read = keys[first:length] @ state[0, 0]
        return 100 * float((read - values[first:length]).norm() / values[first:length].norm())

    added, compared = [], []
    for length in LENGTHS:
        k, v = keys[None, :length, None], values[None, :length, None]
        ones = torch.ones(1, length, 1)
        _, sums = kernelworks.linear_attention(k, k, v, scale=1.0, output_final_state=True)
        _, mended = kernelworks.gated_delta_rule(k, k, v, 0 * ones, ones, scale=1.0, output_final_state=True)
        added.append(computed_point(length, off(sums, length)))
        compared.append(computed_point(length, off(mended, length)))
    at = LENGTHS.index(WIDTH)
    return Findings(
        Axis("pairs of key and value written", "", logarithmic=True), Axis("last eight read back, error", "%"),
        (Series("linear_attention: added", tuple(added)), Series("gated_delta_rule: what is missing", tuple(compared))),
        (
            f"the state has {WIDTH} x {WIDTH} numbers after one pair and after {LENGTHS[-1]}; a cache of keys "
            "and values "
            f"would have {2 * WIDTH * LENGTHS[-1]} by then, and lose nothing",
            f"at {WIDTH} pairs, as many as a key has numbers, adding is {added[at].value:.3g}% off, the delta rule "
            f"{compared[at].value:.3g}%",
            f"at {LENGTHS[-1]} pairs adding is {added[-1].value:.3g}% off, the delta rule "
            f"{compared[-1].value:.3g}%: it "
            "forgets the old, adding blurs all",
        ),
    )  # fmt: skip


PLAN = Plan(
    name="state",
    question="How much can a state of fixed size remember of what was written into it?",
    expected="Keys of 32 numbers have 32 directions, so a state of 32 x 32 holds about 32 pairs. Adding lets "
    "every pair "
    "disturb every other. Writing only what is missing lets the latest pairs come back best.",
    page="state.md",
    seconds=2,
    is_timed=False,
    run=_run,
)
