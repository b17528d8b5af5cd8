"""Random programs do after a swap what they did before it, and after undo exactly that."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import fuzz_judge
import pytest
import torch
from eligible import KERNELS
from fuzz_blocks import HEADER
from fuzz_grammar import Builder, Source
from fuzz_judge import faults, reduced
from torch import Tensor, nn

PROGRAMS, ALL_PROGRAMS, TOGETHER = 60, 2000, 100
OURS = {
    "linear", "layer_norm", "rms_norm", "gelu", "softmax", "silu_mul", "gelu_mul", "cross_entropy", "attention", "rope",
}  # fmt: skip
RARE = {"rope", "gelu_mul"}  # of which not every hundred programs have one that we take


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Programs have numbers, so that one can be made again, and go on in parts, so that a run can be taken up again."""
    if "numbers" in metafunc.fixturenames:
        whole = ALL_PROGRAMS if metafunc.config.getoption("--all") else PROGRAMS
        parts = [range(first, min(first + TOGETHER, whole)) for first in range(0, whole, TOGETHER)]
        metafunc.parametrize("numbers", parts, ids=lambda part: f"{part.start}-{part.stop - 1}")


def program(number: int) -> tuple[Source, str]:
    """The program of this number, and our kernel that runs in it."""
    choices = random.Random(number)
    kernel = choices.choice(
        ("avx2", "avx512")
    )  # drawn whether it runs here or not: else others would be drawn after it
    return Builder(choices).program(), kernel if kernel in KERNELS else KERNELS[-1]


@pytest.mark.timeout(3600)
def test_random_programs_behave_as_before(numbers: range, tmp_path: Path) -> None:
    taken: set[str] = set()
    found = []  # of every program that differs: one of them does not hide the others
    for number in numbers:
        source, kernel = program(number)
        wrong, ours = faults(source, kernel, tmp_path)
        taken.update(op for op, _ in ours)
        if wrong:
            least = reduced(source, kernel, tmp_path)
            found += [f"\nprogram {number} with {kernel}:", str(least), "", *faults(least, kernel, tmp_path)[0]]
    assert not found, "\n".join(found)
    assert taken >= (OURS - RARE if numbers.start else OURS)


# ---------------------------------------------------------------- the judge is judged


PROGRAM = Source(
    HEADER
    + """
class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return F.gelu(self.inner(x))
""",
    (
        "model = build(Program, 'float32')",
        "swap(model)",
        "x = tensor((3, 8), 'plain', grad=True)",
        "call(model, x)",
        "call(model, x[..., :3])",
        "model.inner = nn.Tanh()",
        "call(model, x)",
        "undo()",
        "call(model, x)",
    ),
)


class Undoing:
    """A swap that puts a function around the forward of the inner module, and takes it away again."""

    def __init__(self, model: nn.Module, around: Callable[..., Tensor]) -> None:
        self.inner = inner = model.inner
        inner.forward = lambda x: around(type(inner).forward, inner, x)

    def undo(self) -> None:
        del self.inner.forward


class Leaving(Undoing):
    def undo(self) -> None:
        super().undo()
        self.inner.left = 1


def quiet(forward: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Tensor:
    try:
        return forward(module, x)
    except RuntimeError:
        return torch.zeros(3, 8)


def other_error(forward: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Tensor:
    if x.shape[-1] != 8:
        raise ValueError("the last dimension must be 8")
    return forward(module, x)


def writing(forward: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Tensor:
    result = forward(module, x)
    x.data.mul_(1.001)
    return result


def counting(forward: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Tensor:
    module.__dict__["calls"] = module.__dict__.get("calls", 0) + 1
    return forward(module, x)


SABOTAGES: dict[str, Callable[[nn.Module], Undoing]] = {
    "is off by a thousandth": lambda m: Undoing(m, lambda f, s, x: f(s, x) * 1.001),
    "drops the input's gradient": lambda m: Undoing(m, lambda f, s, x: f(s, x.detach())),
    "drops all gradients": lambda m: Undoing(m, lambda f, s, x: f(s, x).detach()),
    "returns another dtype": lambda m: Undoing(m, lambda f, s, x: f(s, x).double()),
    "swallows an error": lambda m: Undoing(m, quiet),
    "raises another error": lambda m: Undoing(m, other_error),
    "writes its input": lambda m: Undoing(m, writing),
    "keeps a count": lambda m: Undoing(m, counting),
    "makes a NaN": lambda m: Undoing(m, lambda f, s, x: f(s, x) * torch.where(x[..., :1] > 0, 1.0, torch.nan)),
    "leaves something after undo": lambda m: Leaving(m, lambda f, s, x: f(s, x)),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_judge_sees_a_swap_that(sabotage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz_judge, "swap", lambda model, verbose: SABOTAGES[sabotage](model))
    assert faults(PROGRAM, KERNELS[-1], tmp_path)[0]


def test_the_judge_has_nothing_against_a_swap_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz_judge, "swap", lambda model, verbose: Undoing(model, lambda f, s, x: f(s, x)))
    assert faults(PROGRAM, KERNELS[-1], tmp_path)[0] == []
