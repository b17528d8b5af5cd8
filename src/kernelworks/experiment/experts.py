"""Routing: how many experts' weights a batch has to read."""

from __future__ import annotations

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

EXPERTS, EXPERTS_A_TOKEN = 128, 8
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAWS = 32


def expected_share(tokens: int) -> float:
    """Of the experts, that T tokens name if each names k of E by chance: ``1 - (1 - k / E)^T``."""
    return 1 - (1 - EXPERTS_A_TOKEN / EXPERTS) ** tokens


def _run(say: Say, rough: bool) -> Findings:
    import torch

    import kernelworks

    draws = torch.Generator().manual_seed(9)
    liked = 1.5 * torch.randn(EXPERTS, generator=draws)  # a router that was never balanced likes some experts more

    def touched(tokens: int, bias: torch.Tensor) -> float:
        found = 0
        for _ in range(DRAWS):
            _, chosen = kernelworks.router_topk(torch.randn(tokens, EXPERTS, generator=draws) + bias, EXPERTS_A_TOKEN)
            found += int(chosen.unique().numel())
        return 100 * found / DRAWS / EXPERTS

    even = [touched(tokens, torch.zeros(EXPERTS)) for tokens in TOKENS]
    skewed = [touched(tokens, liked) for tokens in TOKENS]
    chance = [100 * expected_share(tokens) for tokens in TOKENS]

    def series(name: str, found: list[float], *, is_limit: bool = False) -> Series:
        return Series(name, tuple(computed_point(t, y) for t, y in zip(TOKENS, found, strict=True)), is_limit)

    at = TOKENS.index(16)
    served = TOKENS[at] * EXPERTS_A_TOKEN / (even[at] * EXPERTS / 100)
    return Findings(
        Axis("tokens in one step", "", logarithmic=True), Axis("experts whose weights are read", "%"),
        (series("router without preference", even), series("router with favourites", skewed),
         series("by chance", chance, is_limit=True)),
        (
            f"one token reads {even[0]:.3g}% of the experts, 16 tokens {even[at]:.3g}%, {TOKENS[-1]} tokens "
            f"{even[-1]:.3g}%",
            f"at 16 tokens each of the experts that is read serves {served:.2g} tokens: "
            "a matrix product of so few rows is bound by reading its weights",
            f"with favourites 16 tokens read {skewed[at]:.3g}%: fewer bytes, and one expert with a long queue",
        ),
        "",
        (
            f"{EXPERTS} experts, {EXPERTS_A_TOKEN} for each token, chosen by kernelworks.router_topk; "
            f"means of {DRAWS} draws",
        ),
    )  # fmt: skip


PLAN = Plan(
    name="experts",
    question="How much of a mixture of experts does a step read?",
    expected="A token reads 8 of 128 experts. Tokens choose apart from each other, so some tens of them read "
    "nearly all, each "
    "expert for a handful of tokens.",
    page="mixture-of-experts.md",
    seconds=2,
    is_timed=False,
    run=_run,
)
