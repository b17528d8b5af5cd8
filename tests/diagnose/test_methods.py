"""Methods and closures as roots: found, called in their place, verified with what they write, applied by a plan."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.diagnose.fix.plan import AppliedPlan, as_plan
from kernelworks.diagnose.optimization import Candidate, Scene
from kernelworks.diagnose.optimizations import swapped_functions
from kernelworks.diagnose.optimizations.torch_compile import OPTIMIZATION as COMPILE
from kernelworks.diagnose.optimizations.torch_compile import PART
from kernelworks.diagnose.sites import functions
from kernelworks.diagnose.sites.functions import Function, find_function, find_functions
from kernelworks.diagnose.sites.holders import places
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.verify.agreement import FLOAT64, compare
from kernelworks.profile.program import from_function

torch.manual_seed(0)
X = torch.randn(64, 64)
MANY = 20


class Solver:
    """Keeps where it is in attributes, a number among them."""

    def __init__(self) -> None:
        self.at, self.weight, self.time = torch.zeros(64, 64), torch.randn(64, 64) / 8, 0.0

    def step(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(x @ self.weight)
        self.at = self.at + x
        self.time += 0.5
        return x

    @staticmethod
    def turned(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(x @ X) / 8
        return x

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return cls.turned(x) + 1


class Heavy(Solver):
    """What cannot be copied for each run."""

    def __init__(self) -> None:
        super().__init__()
        self.items = [object() for _ in range(10 * functions.LIGHT)]

    def step(self, x: Tensor) -> Tensor:
        return super().step(x)


SOLVER, HEAVY = Solver(), Heavy()


def stepped() -> Tensor:
    for _ in range(MANY):
        x = SOLVER.step(X)
    return x


def heavy() -> Tensor:
    for _ in range(MANY):
        x = HEAVY.step(X)
    return x


def turned() -> Tensor:
    for _ in range(MANY):
        x = Solver.turned(X + 0)
    return x


def make(weight: Tensor) -> Callable[[Tensor], Tensor]:
    def advance(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(x @ weight) / 8
        return x

    return advance


go = make(X / 8)  # by another name than its own


def make_other(weight: Tensor) -> Callable[[Tensor], Tensor]:
    def turn(x: Tensor) -> Tensor:
        return torch.tanh(x @ weight)

    return turn


class Has:
    def __init__(self) -> None:
        self.run = make_other(X / 4)
        self.other = 0


HAS = Has()


def closed() -> Tensor:
    for _ in range(MANY):
        x = go(X + 0)
    return x


def anew() -> Tensor:
    own = make(X / 8)
    for _ in range(MANY):
        x = own(X + 0)
    return x


@pytest.fixture(autouse=True)
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others take of the cores is no time of a function."""
    monkeypatch.setattr(functions, "time", SimpleNamespace(perf_counter=time.thread_time))


@pytest.fixture(autouse=True)
def where_it_was() -> Iterator[None]:
    at, when = SOLVER.at, SOLVER.time
    yield
    SOLVER.at, SOLVER.time = at, when


def scene_of(program: Callable[[], Any], calls: int | None = None) -> Scene:
    made = from_function(program)
    made.run()
    roots = find_roots(made.run, functions=find_functions(made, calls))
    return Scene(roots, made, walls=(1e-9,))


@pytest.mark.parametrize(
    ("program", "names"),
    [(stepped, ["Solver.step"]), (turned, ["Solver.turned"])],
)
def test_methods_are_found_and_called_in_their_place(program: Callable[[], Any], names: list[str]) -> None:
    scene = scene_of(program)
    assert [root.path for root in scene.roots.models] == []
    assert [root.path for root in scene.roots.modules] == names
    (root,) = scene.roots.modules
    assert isinstance(root, Function) and root.source_name == names[0] and scene.roots.calls[id(root)] == MANY
    assert Solver.__dict__["step"] is not None and isinstance(Solver.__dict__["turned"], staticmethod)
    assert (
        COMPILE._candidate(scene.site(root), _mode(), written=root.source_name).code
        == f"{names[0]} = torch.compile({names[0]})"
    )


def _mode() -> Any:
    from kernelworks.diagnose.optimizations.torch_compile import MODES

    return MODES[0]


def test_what_a_method_writes_is_an_answer() -> None:
    scene = scene_of(stepped)
    at, when = SOLVER.at, SOLVER.time
    assert compare(scene.roots.samples, changed=lambda module: contextlib.nullcontext()).against == FLOAT64
    assert SOLVER.at is at and SOLVER.time == when

    def wrong(name: str, value: Any) -> Any:
        @contextlib.contextmanager
        def inside(module: Any) -> Iterator[None]:
            whole = module.fn

            def other(self: Solver, x: Tensor) -> Tensor:
                made: Tensor = whole(self, x)
                setattr(self, name, value(getattr(self, name)))
                return made

            module.fn = other
            yield
            module.fn = whole

        return compare(scene.roots.samples, changed=inside)

    for name, value in (("at", lambda t: t + 1e-2), ("time", lambda t: t + 0.25)):
        found = wrong(name, value)
        assert not found.agrees and name in found.note, found


@pytest.mark.parametrize("program", [stepped, turned])
def test_a_method_is_compiled_and_given_back(program: Callable[[], Any]) -> None:
    graphs: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    scene = scene_of(program)
    before, plain = dict(Solver.__dict__), program()
    site = next(iter(COMPILE.candidates(scene))).site
    change = COMPILE.apply(scene, Candidate("torch.compile", site, "", options=(("backend", compiler),)))
    assert scene.program is not None
    with change:
        torch.testing.assert_close(scene.program.run(), plain)
        assert Solver.__dict__ != before
    assert dict(Solver.__dict__) == before and graphs
    assert compare(scene.roots.samples, changed=lambda module: change).agrees


def test_an_object_that_is_too_much_to_copy_is_left_alone() -> None:
    assert "Heavy.step" not in [root.path for root in scene_of(heavy).roots.modules]


def test_a_plan_knows_a_method_by_its_class() -> None:
    scene = scene_of(stepped)
    site = next(iter(COMPILE.candidates(scene))).site
    candidate = Candidate("torch.compile", site, "compiled", options=(("backend", "eager"),))
    plan = json.loads(json.dumps(as_plan([candidate], scene.roots, program="p", kind="k", saves=0.5)))
    original = Solver.__dict__["step"]
    with AppliedPlan(plan) as found:
        assert found.done == ["torch.compile: compiled (Solver.step())"] and Solver.__dict__["step"] is not original
        stepped()
    assert Solver.__dict__["step"] is original


# ---------------------------------------------------------------- closures


def test_a_closure_is_held_by_names_attributes_and_other_closures(made_anew: ModuleType) -> None:
    has = made_anew.HAS
    given = has.run
    assert isinstance(given, type(stepped))
    holder = held_by(given)
    function = Function(given)
    assert len(function.places) == 2 and function.path == "make_other.<locals>.turn" and not function.method
    assert any(b is made_anew.X or torch.equal(b, made_anew.X / 4) for b in function.buffers())
    back = function.bind(lambda x: x + 1)
    assert has.run is not given and torch.equal(holder(X), X + 1)
    back()
    assert has.run is given and torch.equal(holder(X), given(X))


def held_by(inner: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def outer(x: Tensor) -> Tensor:
        return inner(x)

    return outer


def test_a_closure_that_lasts_is_found_and_one_that_is_made_anew_is_not(made_anew: ModuleType) -> None:
    closed = made_anew.closed
    scene = scene_of(closed)
    (root,) = scene.roots.modules
    assert isinstance(root, Function) and root.path == "make.<locals>.advance" and root.source_name == "go"
    plain, original = closed(), made_anew.go
    candidates = list(COMPILE.candidates(scene))
    assert candidates[0].code == "go = torch.compile(go)"
    candidate = Candidate("torch.compile", candidates[0].site, "compiled", options=(("backend", "eager"),))
    with COMPILE.apply(scene, candidate):
        torch.testing.assert_close(closed(), plain)
        assert made_anew.go is not original
    assert made_anew.go is original
    with AppliedPlan(as_plan([candidate], scene.roots, program="p", kind="k", saves=0.5)) as found:
        assert found.done and made_anew.go is not original
    assert made_anew.go is original
    assert all("advance" not in root.path for root in scene_of(made_anew.anew).roots.modules)


def test_what_a_compiled_function_was_made_of_is_not_replaced_in_it() -> None:
    compiled = torch.compile(turned, backend="eager")
    assert all(place.name for place in places(turned)) and compiled is not turned


# ---------------------------------------------------------------- loops


@pytest.mark.parametrize(
    ("calls", "names", "parts"),
    [(None, ["Solver.turned"], []), (160, ["turned"], ["Solver.turned"]), (10**6, ["Solver.turned"], [])],
)
def test_a_loop_of_few_calls_is_a_root_with_what_it_calls_as_its_part(
    calls: int | None, names: list[str], parts: list[str]
) -> None:
    scene = scene_of(turned, calls)
    assert [root.path for root in scene.roots.modules] == names
    (root,) = scene.roots.modules
    assert isinstance(root, Function) and [part.path for part in root.parts] == parts
    if not parts:
        return
    candidates = list(COMPILE.candidates(scene))
    part, whole = (next(o for o in candidates if bool(o.option(PART)) == is_part) for is_part in (True, False))
    assert part.group == whole.group and part.code == "Solver.turned = torch.compile(Solver.turned)"
    plain, before = turned(), dict(Solver.__dict__)
    graphs: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for candidate in (part, whole):
        made = Candidate("torch.compile", candidate.site, "", options=(*candidate.options, ("backend", compiler)))
        with COMPILE.apply(scene, made):
            assert scene.program is not None
            torch.testing.assert_close(scene.program.run(), plain)
    assert dict(Solver.__dict__) == before
    sizes = [sum(node.op == "call_function" for node in graph.graph.nodes) for graph in graphs]
    assert max(sizes) >= MANY * min(sizes)  # the loop in one graph


# ---------------------------------------------------------------- our ops


def activated(x: Tensor) -> Tensor:
    for _ in range(4):
        x = F.gelu(x @ X) / 8
    return x


def activating() -> Tensor:
    for _ in range(MANY):
        x = activated(X + 0)
    return x


def totals(x: Tensor) -> Tensor:
    return x * torch.tensor(0.5) / x.abs().sum() + x.softmax(-1)


def totalled() -> Tensor:
    x = X
    for _ in range(20):
        x = totals(X + x)
    return x


def test_a_method_of_a_tensor_is_no_call_of_a_function_of_its_name() -> None:
    scene = scene_of(totalled)
    assert scene.roots.modules and not list(swapped_functions.OPTIMIZATION.candidates(scene))


def test_our_ops_go_into_a_function_and_out_again() -> None:
    scene = scene_of(activating)
    (candidate,) = swapped_functions.OPTIMIZATION.candidates(scene)
    assert candidate.says == "gelu of kernelworks in it"
    assert candidate.code == "# in activated(): kernelworks.gelu in place of gelu"
    plain, original = activating(), activated
    for within in (scene, Scene(find_roots(lambda: None))):  # a plan knows no more
        with swapped_functions.OPTIMIZATION.apply(within, candidate):
            assert activated is not original
            torch.testing.assert_close(activating(), plain)
        assert activated is original
    change = swapped_functions.OPTIMIZATION.apply(scene, candidate)
    assert compare(scene.roots.samples, changed=lambda module: change).agrees
    (other,) = swapped_functions.OPTIMIZATION.candidates(scene_of(turned))
    assert other.says == "tanh of kernelworks in it"
    assert isinstance(find_function(__name__, "activated"), nn.Module)
