"""A compiler that is wrong on values that the program did not show: the region is left out, and a file shows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from kernelworks.diagnose.fix import compiled_check
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.compiled_check import check_compiled
from kernelworks.diagnose.optimization import CombinedChange, Promise, Scene
from kernelworks.diagnose.optimizations import torch_compile
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.verify import wrong_region
from kernelworks.diagnose.verify.agreement import Agreement
from kernelworks.diagnose.verify.drawn_inputs import drawn_samples, shorter_samples
from kernelworks.profile.budget import Budget
from kernelworks.profile.program import Program
from kernelworks.records.fix import CompilerReport

WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "large values": lambda x: torch.where(x.abs() > 50.0, x * 1.5, x),
    "negative values": lambda x: torch.where((x < 0).all(), x + 0.3, x),
    "zeros": lambda x: x + (x == 0).all(),
    "odd sizes": lambda x: x + (x.shape[0] % 2) * x.mean(),
}


def planted(wrong: Callable[[Tensor], Tensor] | None) -> Callable[..., Any]:
    """A backend that corrupts the result of one op."""

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        for node in list(graph.graph.nodes):
            if wrong is not None and node.op == "call_function" and "tanh" in str(node.target):
                with graph.graph.inserting_after(node):
                    made = graph.graph.call_function(_wrapped(node.target, wrong), node.args, node.kwargs)
                node.replace_all_uses_with(made)
        graph.recompile()
        return graph.forward

    return backend


def _wrapped(op: Any, wrong: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def other(x: Tensor) -> Any:
        return op(x) + (wrong(x) - x)

    return other


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sigmoid(torch.tanh(x * 1.0) + self.first(x)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def without_graphs_of_others() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def proved(
    model: nn.Module,
    backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    *given: Tensor,
    budget_s: float = 2000.0,
    cost_s: float = 0.01,
) -> tuple[str, CompilerReport | None, Try]:
    """The check of a model that is compiled whole with a backend."""
    mode = torch_compile.Mode(" planted", {"backend": backend} if backend is not None else {}, 1.0)
    monkeypatch.setattr(torch_compile, "MODES", (mode,))

    def program() -> Any:
        with torch.no_grad():
            return model(*given)

    scene = Scene(find_roots(program), Program("p", program), walls=(1e-3,), budget=Budget(budget_s, 1e-3))
    scene.forecaster = SimpleNamespace(timeline=None)  # type: ignore[assignment]
    optimization = torch_compile.OPTIMIZATION
    candidate = optimization._candidate(scene.site(model), mode)
    one = Try(optimization, candidate, Promise(0.5, cost_s), change=optimization.apply(scene, candidate))
    one.agreement = Agreement(0.0, 0.0, True)
    assert one.change is not None
    with one.change:
        program()
    return *check_compiled(scene, one, CombinedChange((one.change,)), []), one


@pytest.mark.parametrize("name", WRONG)
def test_a_region_that_is_wrong_elsewhere_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    model = Model().eval()
    why, report, _ = proved(model, planted(WRONG[name]), monkeypatch, x)
    assert why.startswith("what is compiled is wrong on"), why
    if name == "odd sizes":
        assert "5 in dimension 0, not 6" in why
    assert report is not None and "tanh" in report.title
    body = report.text.partition("def region")[2].partition("\n\n\n")[0]
    assert "tanh" in body and "sigmoid" not in body and "linear" not in body, body


def test_a_region_of_which_no_small_part_is_wrong_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(wrong_region, "MOST_CALLS", 0)
    why, report, _ = proved(Model().eval(), planted(WRONG["large values"]), monkeypatch, torch.randn(6, 8))
    assert why.startswith("what is compiled is wrong on") and report is None


@pytest.mark.parametrize("laid", ["with a gap", "expanded"])
def test_arguments_that_are_not_dense_need_no_compile_of_their_own(laid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no time for one: it would be seen on no other values."""
    torch.manual_seed(0)
    x = torch.randn(6, 9)[:, :-1] if laid == "with a gap" else torch.randn(1, 8).expand(6, 8)
    why, _, one = proved(Model().eval(), planted(WRONG["large values"]), monkeypatch, x, cost_s=1e9)
    assert why.startswith("what is compiled is wrong on"), (why, one.agreement)


def test_a_region_that_is_right_is_kept_and_says_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    seen: list[Any] = []
    why, report, one = proved(model, planted(None), monkeypatch, torch.randn(6, 8))
    assert not why and report is None and not seen
    one.agreement = None
    none, _, _ = proved(model, planted(WRONG["large values"]), monkeypatch, torch.randn(6, 8), budget_s=-100.0)
    assert not none  # no time for any of it


class Routed(nn.Module):
    """An expert of the rows that are for it: how many those are hangs on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x.sum(1) > 0).nonzero().view(-1)
        return x.index_add(0, rows, torch.tanh(self.expert(x[rows])))


@pytest.mark.parametrize(("seconds", "compiles"), [(0.0, True), (1e9, False)])
def test_what_other_values_have_compiled_anew_has_its_part_of_the_budget(
    seconds: float, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs as it was compiled is compared first; what is wrong elsewhere is seen where it may be compiled."""
    torch.manual_seed(0)
    calls: list[int] = []
    wrong = planted(lambda x: x + 0.5 * (x.shape[0] != 3))

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        calls.append(len(calls))
        return wrong(graph, inputs)  # type: ignore[no-any-return]

    x = torch.randn(6, 8)
    x = torch.where(torch.arange(6)[:, None] % 2 == 0, x.abs(), -x.abs())  # three rows are
    model = Routed().eval()
    with torch.no_grad():
        torch.compile(model.forward, backend=backend)(x)
    once = len(calls)
    torch._dynamo.reset()
    calls.clear()
    why, _, one = proved(model, backend, monkeypatch, x, cost_s=seconds)
    assert bool(why) == compiles, why
    if not compiles:
        assert one.agreement is not None and "more were not compared" in one.agreement.note
        assert len(calls) == once, "it was compiled anew"


def test_other_values_are_compared_at_the_sizes_it_was_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    judged = compiled_check.compare

    def compare(*given: Any, whole: bool, **more: Any) -> Any:
        seen.append(whole)
        return judged(*given, whole=whole, **more)

    monkeypatch.setattr(compiled_check, "compare", compare)
    why, _, _ = proved(Model().eval(), planted(None), monkeypatch, torch.randn(6, 8))
    assert not why and seen and all(seen)


def test_what_is_drawn_lies_within_what_the_data_allow() -> None:
    ids, order = torch.tensor([[7, 3, 5, 9]]), torch.arange(5)
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    pixels = torch.randint(0, 200, (4, 4), dtype=torch.uint8)

    class Takes(nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return sum(t.double().nan_to_num(0, 0, 0).sum() for t in given)  # type: ignore[return-value]

    module, x = Takes(), torch.randn(4, 4).half()
    (sample,) = find_roots(lambda: module(ids, order, mask, pixels, x)).samples
    drawn = list(drawn_samples(sample))
    assert len({name for name, _ in drawn}) >= 4
    for _, other in drawn:
        new_ids, new_order, new_mask, new_pixels, new_x = other.args
        assert new_ids.dtype == ids.dtype and int(new_ids.min()) >= 3 and int(new_ids.max()) <= 9
        assert torch.equal(new_order, order) and torch.equal(new_mask, mask)
        assert new_pixels.max() <= pixels.max() and new_pixels.min() >= pixels.min()
        assert new_x.dtype == x.dtype and bool(new_x.isfinite().all()) and not torch.equal(new_x, x)
    assert any(bool((other.args[4] < 0).all() | (other.args[4] <= 0).all()) for _, other in drawn)
    assert torch.equal(sample.args[0], ids) and torch.equal(sample.args[4], x)
    (shorter, *_) = shorter_samples(sample)
    assert [tuple(t.shape) for t in shorter[1].args] == [(1, 4), (5,), (3, 4), (3, 4), (3, 4)]


@pytest.mark.thorough  # inductor compiles
@pytest.mark.parametrize("sign", [1, -1])
def test_inductors_reductions_of_small_integers_are_judged_as_they_are(
    sign: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch 2.13 takes 0 for the least of int8 values above it from 16 of them on. The program's own data hold a 0."""
    values = torch.tensor([5, 1, 100, 3, 7, 8, 0, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80], dtype=torch.int8)

    class Least(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.min() if sign > 0 else x.max()

    part = (values[values > 0] * sign).to(torch.int8)
    wrong = not torch.equal(torch.compile(Least())(part.clone()), Least()(part))
    torch._dynamo.reset()
    why, report, _ = proved(Least(), None, monkeypatch, (values * sign).to(torch.int8))
    assert bool(why) == wrong and (report is not None) == wrong
    if report is not None:
        path = tmp_path / "reported.py"
        path.write_text(report.text)
        ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        assert ran.returncode and "not equal" in ran.stderr.lower(), ran.stderr
        assert "kernelworks" not in report.text
