"""Random programs with a plan in place do what they do without one, whatever happens to them meanwhile."""

from __future__ import annotations

import dataclasses
import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import fuzz_plan_events as events
import fuzz_plan_judge
import pytest
import torch
from eligible import KERNELS
from fuzz_plan_grammar import Builder, Program
from fuzz_plan_judge import faults, reduced
from fuzz_plan_models import HEADER
from torch import Tensor, nn

import kernelworks as kw

PROGRAMS, ALL_PROGRAMS, TOGETHER = 60, 2000, 100
EACH_INDUCTOR, EACH_GENERATING = 240, 99  # of so many of a night one goes through torch's compiler, one generates
OFTEN = {"folded norms", "merged projections", "weights cast once", "torch.compile", "swap", "channels_last"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Programs have numbers. An ordinary run has the same ones each time; a night's begin anywhere (`--seed`), which
    the names of its tests say."""
    if "numbers" in metafunc.fixturenames:
        config = metafunc.config
        night = config.getoption("--all") or config.getoption("--seed") is not None
        first, whole = (_first(config), ALL_PROGRAMS) if night else (0, PROGRAMS)
        parts = [range(at, min(at + TOGETHER, first + whole)) for at in range(first, first + whole, TOGETHER)]
        metafunc.parametrize("numbers", parts, ids=lambda part: f"{part.start}-{part.stop - 1}")


def _first(config: pytest.Config) -> int:
    """The same for all workers of a run."""
    given: int | None = config.getoption("--seed")
    run = getattr(config, "workerinput", {}).get("testrunuid") or secrets.token_hex(4)
    return given if given is not None else int(run[:8], 16)


def program(number: int) -> tuple[Program, str | None]:
    """The program of this number, and our kernel that alone runs in it, if one does."""
    choices = random.Random(number)
    kernel = choices.choice((None, None, "avx2", "avx512"))
    inductor, generating = (number % each == each - 1 for each in (EACH_INDUCTOR, EACH_GENERATING))
    made = Builder(choices, inductor=inductor and not generating, generating=generating).program()
    return made, kernel if kernel is None or kernel in KERNELS else KERNELS[-1]


@pytest.mark.timeout(3600)
def test_random_programs_do_the_same_with_a_plan(numbers: range, tmp_path: Path) -> None:
    found, placed = [], set[str]()  # of every program that differs: one of them does not hide the others
    for number in numbers:
        made, kernel = program(number)
        wrong, done = faults(made, tmp_path, kernel)
        placed.update(done)
        if wrong:
            least = reduced(made, tmp_path, kernel)
            found += [
                f"\nprogram {number}, kernel {kernel}:",
                str(least),
                "",
                *map(str, faults(least, tmp_path, kernel)[0]),
            ]
    assert not found, "\n".join(found)
    assert placed >= OFTEN or len(numbers) < PROGRAMS


# ---------------------------------------------------------------- the judge is judged


SMALL = (
    HEADER
    + """

class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Linear(8, 8)
        self.b = nn.BatchNorm1d(8)

    def features(self, x):
        return F.relu(self.c(x))

    def forward(self, x, skip=False):
        y = self.c(x)
        return y if skip else self.b(y)
"""
)
CANDIDATE = {
    "optimization": "swap",
    "site": {"kind": "everywhere"},
    "says": "",
    "code": "",
    "changes": "",
    "options": {},
}


def little(*lines: str, optimization: str = "weights cast once") -> Program:
    """One whose plan promises the same bits, or not (``swap``); ``Sabotaged`` is put in the place of both."""
    begin = ("model = build(Program)", "x = tensor((3, 8), 1)", "apply()", "with torch.no_grad(): call(model, x)")
    return Program(SMALL, ({**CANDIDATE, "optimization": optimization},), (*begin, *lines))


class Sabotaged:
    """What ``kw.apply`` gives, of a plan that has products computed by ``make()(module, x)``."""

    done = ("swap: sabotaged",)

    def __init__(self, model: Any, make: Callable[[], Callable[..., Tensor]], left: str = "") -> None:
        self.left = left
        self.parts = [m for m in model.modules() if type(m) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)]
        for part in self.parts:
            part.forward = MethodType(_method(make()), part)

    def undo(self) -> None:
        for part in self.parts:
            part.__dict__.pop("forward", None)
            if self.left:
                part.__dict__[self.left] = 1


def _method(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **named: compute(*args, **named)


class Kept:
    """A weight that is kept as long as what ``looks`` says of the module is the same."""

    def __init__(self, looks: Callable[[Any], Any]) -> None:
        self.looks, self.seen, self.held = looks, object(), (torch.empty(0), torch.empty(0))

    def __call__(self, module: Any, x: Tensor) -> Tensor:
        looks = self.looks(module)
        if looks != self.seen:
            bias = None if module.bias is None else module.bias.detach().clone()
            self.seen, self.held = looks, (module.weight.detach().clone(), bias)
        if torch.is_grad_enabled() and (module.weight.requires_grad or x.requires_grad):
            return plain(module, x)
        return computed(module, x, *self.held)


class OneSlot:
    """A result that is kept on the object from a call's begin to its end, whoever calls meanwhile."""

    def __call__(self, module: Any, x: Tensor) -> Tensor:
        self.x = x
        time.sleep(0.001)
        return plain(module, self.x)


def quiet(module: Any, x: Tensor) -> Tensor:
    try:
        return plain(module, x)
    except RuntimeError:
        return torch.zeros(3, 8)


def plain(module: Any, x: Tensor) -> Tensor:
    return computed(module, x, module.weight, module.bias)


def same(module: Any, input: Tensor) -> Tensor:
    return plain(module, input)


def computed(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(module, nn.Linear):
        return nn.functional.linear(x, weight, bias)
    made: Tensor = module._conv_forward(x, weight, bias)
    return made


QUIET = "with torch.no_grad(): call(model, x)"
AGAIN = ("model.c.weight.data.mul_(2)", QUIET)
SABOTAGES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "keeps a weight for ever": (lambda: Kept(lambda m: 0), ("with torch.no_grad(): model.c.weight.mul_(2)", QUIET)),
    "asks for addresses and versions": (
        lambda: Kept(lambda m: (m.weight.data_ptr(), m.weight._version)),
        (events.WRITES[".data.mul_"].format(p="model.c.weight"), QUIET),
    ),
    "asks for the weight alone": (
        lambda: Kept(lambda m: m.weight.sum().item()),
        ("model.c.bias = None", QUIET),
    ),
    "keeps what it is given on the object": (OneSlot, ("threads(model, x)",) * 5),
    "is off by a thousandth": (lambda: lambda m, x: plain(m, x) * 1.001, ()),
    "gives another layout": (lambda: lambda m, x: plain(m, x).t().contiguous().t(), ("call(model.features, x)",)),
    "gives another dtype": (lambda: lambda m, x: plain(m, x).double(), ()),
    "takes no argument by its name": (lambda: plain, ("with torch.no_grad(): call(model.c, input=x)",)),
    "swallows an error": (lambda: quiet, ("with torch.no_grad(): call(model, x[:, :3])",)),
    "drops the gradients": (lambda: lambda m, x: plain(m, x).detach(), ("call(model, x)",)),
    "drops the bias's gradient": (
        lambda: lambda m, x: nn.functional.linear(x, m.weight, m.bias.detach()), ("call(model, x)",),
    ),
    "writes what it is given": (lambda: lambda m, x: plain(m, x.data.mul_(1.01)), (QUIET,)),
}  # fmt: skip


def faults_of(made: Program, make: Callable[[], Any], folder: Path, left: str = "") -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kw, "apply", lambda plan, model: Sabotaged(model, make, left))
        return faults(made, folder)[0]


@pytest.mark.parametrize("optimization", ["weights cast once", "swap"])
@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_judge_sees_a_plan_that(sabotage: str, optimization: str, tmp_path: Path) -> None:
    make, lines = SABOTAGES[sabotage]
    assert faults_of(little(*lines, optimization=optimization), make, tmp_path)


def test_the_judge_sees_what_undo_leaves(tmp_path: Path) -> None:
    assert "at the end" in str(faults_of(little("undo()"), lambda: same, tmp_path, left="left")[0])


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_judge_has_nothing_against_a_plan_that_does_nothing(sabotage: str, tmp_path: Path) -> None:
    assert faults_of(little(*SABOTAGES[sabotage][1]), lambda: same, tmp_path) == []


def test_a_failing_program_is_made_small_and_printed_as_a_script(tmp_path: Path) -> None:
    noise = ("model.b.eps = 0.5", QUIET, "model.eval()", *AGAIN, "model.train()")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kw, "apply", lambda plan, model: Sabotaged(model, lambda: Kept(lambda m: 0)))
        least = reduced(little(*noise), tmp_path)
        shown: list[Any] = []
        space = {"__name__": "__main__", "print": lambda *values, sep: shown.append(values)}
        exec(compile(str(least), "<script>", "exec"), space)
    assert len(least.lines) == 6
    assert "model.c.weight.data.mul_(2)" in least.lines
    (twin, *without), (planned, *ours) = shown
    assert (twin, planned) == ("twin", "planned")
    assert not all(torch.equal(a, b) for a, b in zip(_tensors(without), _tensors(ours), strict=True))


def _tensors(seen: list[Any]) -> Iterator[Tensor]:
    return (t for _, values in seen for t in values if isinstance(t, Tensor))


# ---------------------------------------------------------------- the grammar is judged


def _of_bias(module: Any) -> tuple[int, int]:
    return (0, 0) if module.bias is None else (module.bias.data_ptr(), module.bias._version)


# What plans have asked of a module before they took what they had kept.
ASKED: dict[str, Callable[[], Any]] = {
    "addresses and versions": lambda: Kept(lambda m: (m.weight.data_ptr(), m.weight._version, *_of_bias(m))),
    "objects and versions": lambda: Kept(lambda m: (id(m.weight), m.weight._version, id(m.bias))),
    "the weight's values, not the bias's": lambda: Kept(lambda m: m.weight.detach().double().sum().item()),
    "nothing, of what one call keeps for another": OneSlot,
}


@pytest.mark.parametrize("asked", ASKED)
def test_random_programs_find_a_plan_that_asks_for(asked: str, tmp_path: Path) -> None:
    for number in range(400):
        made, _ = program(number)
        promising = dataclasses.replace(made, candidates=({**CANDIDATE, "optimization": "weights cast once"},))
        if "optimizer" in "".join(made.lines) or not faults_of(promising, ASKED[asked], tmp_path):
            continue
        if not faults_of(promising, lambda: same, tmp_path):  # so it is what was not asked
            return
    pytest.fail("none of them did")


@pytest.mark.parametrize("table", ["WRITES", "NORMS", "STRUCTURE", "HOOKS", "COPIES", "FLAGS", "WAYS", "STEPS"])
def test_every_event_happens_to_some_model(table: str, tmp_path: Path) -> None:
    """A line with a slip of the pen raises with a plan and without, and finds nothing for ever."""
    waiting = dict(getattr(events, table))
    waiting.pop("in double", None)  # which float32 weights refuse
    for number in range(200):
        builder = Builder(random.Random(number))
        made = builder.program()
        if builder.training == (table == "STEPS"):
            begin = [*made.lines[: 3 if builder.training else 2], *["step(x)"] * builder.training]
            for name, text in list(waiting.items()):
                line = builder.filled(text)
                run = fuzz_plan_judge.World(dataclasses.replace(made, lines=(*begin, line), candidates=()), "twin")
                if line and not fuzz_plan_judge.ran(run, tmp_path).errors:
                    del waiting[name]
        if not waiting:
            break
    assert not waiting
