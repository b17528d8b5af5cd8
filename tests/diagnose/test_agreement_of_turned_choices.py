"""Modules in 16 bits that choose by values: rounding turns choices, an honest kernel's as the original's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.verify.agreement import FLOAT64, Agreement, compare
from kernelworks.diagnose.verify.turned_choices import ChosenIndices, TurnedRows, number_of_rows

TOKENS, WIDTH, EXPERTS, CHOSEN = 96, 32, 8, 2
SEEDS = (0, 14, 21, 31, 43, 57)  # of 14, 21, 31, 43 and 57 the rounding turns a tenth of the answer


class Experts(nn.Module):
    """Each token is answered by the experts that score highest for it."""

    def __init__(self, tokens: int = TOKENS) -> None:
        super().__init__()
        self.first, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(0.3 * torch.randn(EXPERTS, WIDTH, WIDTH))
        self.register_buffer("of_no_call", torch.zeros(3))

    def forward(self, x: Tensor, chosen: int = CHOSEN) -> Tensor:
        x = torch.nn.functional.silu(self.first(x))
        values, experts = torch.topk(self.score(x), chosen, dim=-1)
        each = torch.stack([x @ w for w in self.weight.unbind()], dim=-2)
        taken = each.gather(-2, experts[..., None].expand(*experts.shape, WIDTH))
        return (torch.softmax(values, -1)[..., None] * taken).sum(-2)


def in_one_kernel(module: Experts, x: Tensor) -> Tensor:
    """What a fused kernel does: all in float32, rounded once at the end."""
    wide = Experts()
    wide.load_state_dict({name: value.float() for name, value in module.state_dict().items()})
    return wide(x.float()).to(x.dtype)


def without_the_second(module: Experts, x: Tensor) -> Tensor:
    return Experts.forward(module, x, 1)


def too_large(module: Experts, x: Tensor) -> Tensor:
    return 1.3 * Experts.forward(module, x)


def of_shifted_scores(module: Experts, x: Tensor) -> Tensor:
    """One expert in eight is another."""
    x = torch.nn.functional.silu(module.first(x))
    values, experts = torch.topk(module.score(x), CHOSEN, dim=-1)
    experts = torch.where(torch.arange(len(x))[:, None] % 4 == 0, (experts + 1) % EXPERTS, experts)
    each = torch.stack([x @ w for w in module.weight.unbind()], dim=-2)
    return (
        torch.softmax(values, -1)[..., None] * each.gather(-2, experts[..., None].expand(*experts.shape, WIDTH))
    ).sum(-2)


def judged(kernel: Callable[[Experts, Tensor], Tensor], seed: int, tokens: int = TOKENS) -> Agreement:
    torch.manual_seed(seed)
    module = Experts().to(torch.bfloat16).eval()
    x = torch.randn(tokens, WIDTH).to(torch.bfloat16)

    @contextlib.contextmanager
    def changed(module: nn.Module) -> Iterator[None]:
        module.forward = lambda x: kernel(module, x)
        try:
            yield
        finally:
            del module.forward

    with torch.no_grad():
        return compare([Sample(module, (x,), {}, inference=False)], changed=changed)


@pytest.mark.parametrize("tokens", [TOKENS, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_honest_kernel_agrees_whatever_it_chooses(seed: int, tokens: int) -> None:
    found = judged(in_one_kernel, seed, tokens)
    assert found.agrees and found.against == FLOAT64 and found.after > 0, found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wrong", [without_the_second, too_large, of_shifted_scores])
def test_a_wrong_one_does_not(wrong: Callable[[Experts, Tensor], Tensor], seed: int) -> None:
    assert not judged(wrong, seed).agrees


class Switch(nn.Module):
    """Each token has the expert of its highest score."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(24, 24), nn.Linear(24, 6)
        self.experts = nn.ModuleList(nn.Linear(24, 24) for _ in range(6))

    def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
        h = torch.tanh(self.first(x))
        scores = self.gate(h)
        chosen = scores.argmax(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            out = out + torch.where((chosen == number)[..., None], expert(h), 0)
        return out * scores.softmax(-1).gather(-1, chosen[..., None]) * times


@pytest.mark.parametrize(("wide", "times", "agrees"), [(True, 1.0, True), (False, 1.5, False)])
def test_a_step_under_autocast_whose_tokens_are_turned(wide: bool, times: float, agrees: bool) -> None:
    """Of some steps float64 turns other tokens than bfloat16: it is no reference for them."""

    @contextlib.contextmanager
    def changed(module: nn.Module) -> Iterator[None]:
        def forward(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=not wide):
                return Switch.forward(module, x, times).bfloat16()

        module.forward = forward
        try:
            yield
        finally:
            del module.forward

    for seed in range(15):
        torch.manual_seed(seed)
        module, x = Switch(), torch.randn(3, 20, 24)
        modes = tuple(True for _ in module.modules())
        step = Sample(module, (x,), {}, False, True, modes, {"cpu": torch.bfloat16}, recording=True)
        assert compare([step], changed=changed).agrees == agrees, seed


def test_buffers_that_nobody_wrote_say_nothing() -> None:
    """An answer that is turned as a whole is not compared, though its module has a buffer that is as it was."""
    found = judged(lambda module, x: torch.zeros_like(x), 14)
    assert not found.agrees


def test_a_choice_is_another_if_it_names_others() -> None:
    x = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    turned, swapped = torch.tensor([[1.0, 3.0, 0.0, 2.0]]), torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    found = []
    for one in (x, swapped, turned):
        with ChosenIndices() as chosen:
            torch.topk(one, 2)
            one.argmax(-1)
        found.append(chosen)
    assert not found[0].differ_from(found[0]) and found[2].differ_from(found[0])
    assert found[1].differ_from(found[0])  # by argmax: the two that topk names are the same
    assert torch.equal(found[1].found[0], found[0].found[0])


def test_twice_as_many_rows_may_be_turned_and_no_more() -> None:
    rows = torch.zeros(40, 8) + 1.0
    near, far = 1e-3, 0.5

    def turned(count: int, by: float = far) -> Tensor:
        moved = rows + near
        moved[:count] += by
        return moved

    held = TurnedRows.of(rows + near, rows, [turned(2), turned(3)])
    assert held.says(1.1, 0.1) and number_of_rows(rows) == 40
    assert held.agrees(turned(6), 1.1, 0.0) and not held.agrees(turned(7), 1.1, 0.0)
    assert not held.agrees(turned(1, by=0.9), 1.1, 0.0)  # further than any
    assert not held.agrees(rows + 3 * near, 1.1, 0.0)  # every row
    assert not TurnedRows.of(turned(30), rows, [turned(30)]).says(1.1, 0.1)
