"""Programs without modules, or with functions beside them: which functions are found, and that they are verified,
compiled and put in place as modules are."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.fix.plan import AppliedPlan, as_plan
from kernelworks.diagnose.optimization import Candidate, Scene
from kernelworks.diagnose.optimizations.torch_compile import OPTIMIZATION as COMPILE
from kernelworks.diagnose.sites import functions
from kernelworks.diagnose.sites.functions import Function, find_functions
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.verify.agreement import FLOAT64, compare
from kernelworks.profile.program import Program, from_function, from_target

torch.manual_seed(0)
X = torch.randn(64, 64)
WEIGHT = torch.randn(64, 64, requires_grad=True)
STATE = torch.zeros(64, 64)
LOG: list[float] = []
NET = nn.Linear(64, 64)
count = 0


def step(x: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.tanh(x @ X) / 8
    return x


def loop() -> Tensor:
    x = X + 0
    for _ in range(20):
        x = step(x)
    return x


def relaxed(x: Tensor) -> Tensor:
    """Less of its time is in what it calls again and again than in itself."""
    for _ in range(30):
        x = (helper(x) @ X).tanh() @ X @ X @ X / 64
    return x


def solved() -> Tensor:
    return relaxed(X + 0)


def once() -> float:
    """Two parts that are called once each, and a number."""
    return (step(X) + helper(X)).sum().item()


def helper(x: Tensor) -> Tensor:
    return (x @ x).softmax(-1)


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return step(x)


def counts(x: Tensor) -> Tensor:
    global count
    count += 1
    return step(x)


class Odd:
    """Of a module that is none, as classes made by other languages have it."""

    __module__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.scale, self.step = 0.5, step


ODD = Odd()


def with_an_odd_object(x: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.tanh(x @ X) * ODD.scale
    return x


def calls_a_module(x: Tensor) -> Tensor:
    return NET(step(x))  # type: ignore[no-any-return]


def learns() -> Tensor:
    value = loss(X + 0)
    value.backward()
    found, WEIGHT.grad = WEIGHT.grad, None
    assert found is not None
    return found


def loss(x: Tensor) -> Tensor:
    LOG.append(1.0)
    return (step(x @ WEIGHT) - x).square().mean()


def mapped() -> Tensor:
    return torch.vmap(lambda row: torch.tanh(row @ X))(X)


def items() -> Iterator[Tensor]:
    for _ in range(20):
        yield counts(X)


@pytest.fixture(autouse=True)
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others take of the cores is no time of a function."""
    monkeypatch.setattr(functions, "time", SimpleNamespace(perf_counter=time.thread_time))


@pytest.mark.parametrize(
    ("program", "args", "names"),
    [
        (loop, (), ["step"]), (once, (), ["once"]), (decorated, (X,), ["decorated"]), (counts, (X,), ["step"]),
        (with_an_odd_object, (X,), ["with_an_odd_object"]),
        (calls_a_module, (X,), ["step"]), (learns, (), ["loss"]), (items, (), ["step"]),
        (mapped, (), ["mapped"]),
        (lambda: (X @ X @ X).tanh(), (), ["<lambda>"]), (torch.tanh, (X,), []), (NET, (X,), []),
    ],
)  # fmt: skip
def test_which_functions_are_found(program: Callable[..., Any], args: tuple[Any, ...], names: list[str]) -> None:
    made = from_function(program, args)
    made.run()  # what is done once is done
    found = find_functions(made)
    assert [function.path for function in found] == names
    assert sys.getprofile() is None


@pytest.mark.parametrize(("calls", "parts"), [(30 * 9, []), (10**6, ["helper"])])
def test_of_a_loop_that_no_compiler_gets_through_what_it_calls_is_a_part(calls: int, parts: list[str]) -> None:
    made = from_function(solved)
    made.run()
    (found,) = find_functions(made, calls)
    assert found.path == "solved" and [part.path for part in found.parts] == parts


def scene_of(program: Callable[[], Any]) -> Scene:
    made = from_function(program)
    made.run()
    roots = find_roots(made.run, functions=find_functions(made))
    return Scene(roots, made, walls=(1e-9,))


def test_what_a_function_reads_is_put_back_and_its_gradients_are_answers() -> None:
    scene = scene_of(learns)
    (sample,) = scene.roots.samples
    assert isinstance(sample.module, Function) and sample.training and sample.module.held
    assert any(p is WEIGHT for p in sample.module.parameters())
    log = len(LOG)
    found = compare(scene.roots.samples, changed=lambda module: contextlib.nullcontext())
    assert found.agrees and found.against == FLOAT64 and len(LOG) == log and WEIGHT.dtype is torch.float32

    @contextlib.contextmanager
    def wrong(module: Any) -> Iterator[None]:
        whole, module.fn = module.fn, lambda x: loss(x) + 1e-3 * (WEIGHT - WEIGHT.detach()).sum()
        yield
        module.fn = whole

    found = compare(scene.roots.samples, changed=wrong)  # the same loss, other gradients
    assert not found.agrees and "gradient" in found.note


def says_nothing() -> None:
    print(step(X + 0).sum().item())


def writes() -> None:
    STATE.copy_(step(X + 0))


@pytest.mark.parametrize(("program", "agrees"), [(says_nothing, False), (writes, True)])
def test_what_returns_nothing_is_verified_by_what_it_writes_alone(
    program: Callable[[], Any], agrees: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = scene_of(program)
    printed, state = capsys.readouterr().out, STATE.clone()
    found = compare(scene.roots.samples, changed=lambda module: contextlib.nullcontext())
    assert found.agrees == agrees and ("returns nothing" in found.note) != agrees
    assert bool(printed) != agrees and not capsys.readouterr().out and torch.equal(STATE, state)


@pytest.mark.parametrize("program", [loop, once, learns])
def test_a_function_is_compiled_where_the_program_calls_it_and_no_more_afterwards(program: Callable[[], Any]) -> None:
    graphs: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    scene = scene_of(program)
    plain, before = program(), dict(globals())
    candidates = list(COMPILE.candidates(scene))
    path = candidates[0].site.path
    assert f"{path} = torch.compile({path})" in {candidate.code for candidate in candidates}
    candidate = Candidate("torch.compile", candidates[0].site, "", options=(("backend", compiler),))
    change = COMPILE.apply(scene, candidate)
    assert scene.program is not None
    for _ in range(2):
        with change:
            torch.testing.assert_close(scene.program.run(), plain)
        assert all(globals()[name] is value for name, value in before.items())
    assert graphs
    assert compare(scene.roots.samples, changed=lambda module: change).agrees


def test_what_is_given_to_a_function_that_reads_it_too_is_not_compiled() -> None:
    """torch.compile takes an argument and a global that are one tensor for one in later calls too."""
    scene = scene_of(lambda: [step(X) for _ in range(20)])
    assert [root.path for root in scene.roots.modules] == ["step"] and not list(COMPILE.candidates(scene))


@pytest.mark.parametrize(("calls", "fits"), [(60, True), (60000, False)])
def test_a_function_of_very_many_calls_is_not_begun(calls: int, fits: bool) -> None:
    scene = scene_of(loop)
    (root,) = scene.roots.modules
    every = [SimpleNamespace(place=SimpleNamespace(path=""), backward=False)] * calls
    scene.forecaster = SimpleNamespace(timeline=SimpleNamespace(calls=every))  # type: ignore[assignment]
    candidate = next(iter(COMPILE.candidates(scene)))
    seconds = COMPILE.expected_s(scene, candidate)
    assert scene.roots.calls[id(root)] == 20 and (seconds < 60) == fits  # of 3 calls, or of 3000


def test_a_plan_knows_a_function_by_its_module_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(loop)
    candidate = Candidate(
        "torch.compile", next(iter(COMPILE.candidates(scene))).site, "compiled", options=(("backend", "eager"),)
    )
    plan = json.loads(json.dumps(as_plan([candidate], scene.roots, program="p", kind="k", saves=0.5)))
    assert plan["roots"] == []
    original = step
    with AppliedPlan(plan) as found:
        assert found.done == ["torch.compile: compiled (step())"] and globals()["step"] is not original
        torch.testing.assert_close(loop(), scene.program.run())  # type: ignore[union-attr]
    assert globals()["step"] is original
    monkeypatch.delitem(globals(), "step")
    with AppliedPlan(plan) as found:
        assert found.waiting


FILE = "import torch\nX = torch.randn(256, 256)\ndef work():\n    print('said')\n    return (X @ X).tanh().sum()\n"


def test_a_function_of_a_file_is_replaced_where_it_is_called_and_prints_once(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "filed.py"
    path.write_text(FILE)
    program: Program = from_target(f"{path}:work")
    program.run()
    (function,) = find_functions(program)
    module: ModuleType = sys.modules["filed"]
    with function.install():
        assert module.work is not function.fn
        roots = find_roots(program.run, functions=())
    assert roots.modules == (function,) and module.work is function.fn
    assert compare(roots.samples, changed=lambda module: contextlib.nullcontext()).agrees
    assert capsys.readouterr().out == "said\n"
