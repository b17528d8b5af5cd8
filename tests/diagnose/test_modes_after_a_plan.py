"""A plan in place under compilers, tracers, transforms and threads, in other dtypes, beside hooks, and when it is
undone: the model answers as one without a plan."""

from __future__ import annotations

import copy
import io
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from planned import EDITS, KINDS, PAIRS, Kind, Normed, Projected, X, close, models, plan_of
from torch import Tensor, nn

import kernelworks as kw


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "edit", ["data in place", "in place", "another parameter", "trained", "a state dict", "no bias"]
)
def test_a_compiled_program_holds_nothing_that_was_derived(name: str, edit: str) -> None:
    """Applied where gradients are on, and called where they are off."""
    kind = KINDS[name]
    model, plain = models(kind)
    torch._dynamo.reset()
    with kw.apply(plan_of(kind, model), model):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        with torch.no_grad():
            close(kind, compiled(X), plain(X))
        with torch.no_grad() if edit != "trained" else torch.enable_grad():
            for each in (model, plain):
                EDITS[edit](each, each.get_submodule(kind.first))
        with torch.no_grad():
            close(kind, compiled(X), plain(X))
            if name == "folded":
                for each in (model, plain):
                    each.norm.eps = 1.0
                    each.norm.running_var.data.fill_(0.2)
                close(kind, compiled(X), plain(X))


@pytest.mark.parametrize("name", KINDS)
def test_whoever_looks_at_operators_sees_torchs_own(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        model(X)
        traced = torch.jit.trace(model, (X,), check_trace=False)
        state = {n: t * 1.5 if t.is_floating_point() else t for n, t in plain.state_dict().items()}
        traced.load_state_dict(state)
        other = copy.deepcopy(plain)
        other.load_state_dict(state)
        close(kind, traced(X), other(X))
        for each in (model, plain):
            each.load_state_dict(state)
        graph = torch.export.export(model, (X,), strict=False)
        close(kind, graph.module()(X), plain(X))
        fx = torch.fx.experimental.proxy_tensor.make_fx(lambda x: model(x))(X)
        want = torch.fx.experimental.proxy_tensor.make_fx(lambda x: plain(x))(X)
        assert [str(n.target) for n in fx.graph.nodes] == [str(n.target) for n in want.graph.nodes]
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as fake:
            assert model(fake.from_tensor(X)).shape == plain(X).shape


@pytest.mark.parametrize("name", KINDS)
def test_an_ensemble_under_vmap(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    others = [models(kind)[1] for _ in range(3)]
    for number, other in enumerate(others):
        for p in other.parameters():
            p.data.mul_(1 + number)
    parameters, buffers = torch.func.stack_module_state(others)
    parameters = {n: t.detach() for n, t in parameters.items()}
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        model(X)

        def run(each: nn.Module) -> Tensor:
            return torch.vmap(lambda p, b: torch.func.functional_call(each, (p, b), (X,)))(parameters, buffers)

        close(kind, run(model), run(plain))


@pytest.mark.parametrize("name", KINDS)
def test_other_dtypes_and_devices(name: str) -> None:
    kind = KINDS[name]
    for dtype in (torch.float64, torch.bfloat16):
        model, plain = models(kind)
        with kw.apply(plan_of(kind, model), model), torch.no_grad():
            model(X)
            for each in (model, plain):
                each.to(dtype)
            tolerance = 0.05 if dtype is torch.bfloat16 else kind.tolerance
            close(kind._replace(tolerance=tolerance), model(X.to(dtype)), plain(X.to(dtype)))
            for each in (model, plain):
                each.to("meta")
            assert model(X.to("meta", dtype)).device.type == "meta"


# ---------------------------------------------------------------- threads


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.c2, self.n2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.c1(x)
        a = self.n1(a)
        return a + self.n2(self.c2(x))  # type: ignore[no-any-return]


class Crossed(Branches):
    """Each norm after both convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.c1(x), self.c2(x)
        return self.n1(a) + self.n2(b)  # type: ignore[no-any-return]


@pytest.fixture
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
@pytest.mark.filterwarnings("ignore:kernelworks. not applied")
@pytest.mark.parametrize("name", ["folded", "merged", "cast", "branches", "crossed"])
def test_threads_that_call_one_model(name: str) -> None:
    cls = {"branches": Branches, "crossed": Crossed}.get(name, Branches)
    pairs = {"pairs": [["c1", "n1"], ["c2", "n2"]]}
    kind = KINDS.get(name, Kind(cls, "folded norms", pairs, "c1", 1e-4, (object, "")))
    model, plain = models(kind)
    inputs = [torch.randn_like(X) for _ in range(4)]
    with torch.no_grad():
        want = [plain(x) for x in inputs]
    wrong: list[str] = []

    def call(number: int) -> None:
        with torch.no_grad():
            for _ in range(150):
                try:
                    close(kind, model(inputs[number]), want[number])
                except Exception as error:
                    wrong.append(str(error))

    with kw.apply(plan_of(kind, model), model) as applied:
        threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):  # out and in again while they call
            with applied.aside():
                pass
        for thread in threads:
            thread.join()
    assert not wrong, (len(wrong), wrong[0])


# ---------------------------------------------------------------- each by itself


@pytest.mark.parametrize("shape", [(4, 6, 6), (2, 3, 6, 6), (2, 4), (0, 4, 6, 6)])
def test_a_folded_norm_takes_and_refuses_what_torchs_does(shape: tuple[int, ...]) -> None:
    model, plain = models(KINDS["folded"])
    x = torch.randn(shape)
    with kw.apply(plan_of(KINDS["folded"], model), model), torch.no_grad():
        model(X)
        try:
            want = plain(x)
        except Exception as error:
            with pytest.raises(type(error), match=re.escape(str(error)[:30])):
                model(x)
        else:
            close(KINDS["folded"], model(x), want)


class Flat(nn.Module):
    """As many rows of the matrix as channels: BatchNorm1d norms along the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.head(x))  # type: ignore[no-any-return]


def test_a_linear_of_three_dimensions_is_normed_along_its_second() -> None:
    kind = Kind(Flat, "folded norms", {"pairs": [["head", "norm"]]}, "head", 1e-4, (object, ""))
    model, plain = models(kind)
    for each in (model, plain):
        each.norm.running_var.data.copy_(torch.arange(6) + 1.0)
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        for x in (torch.randn(3, 6), torch.randn(3, 6, 6)):
            close(kind, model(x), plain(x))


def test_merged_products_are_tensors_of_their_own() -> None:
    model, _ = models(KINDS["merged"])
    seen: list[Tensor] = []

    class Keeping(Projected):
        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x)
            k = self.k(x)
            v = self.v(x)
            seen.extend((q, k, v))
            return q

    model.__class__ = Keeping
    with kw.apply(plan_of(KINDS["merged"], model), model) as applied, torch.no_grad():
        assert applied.done
        model(X)
        for each in seen:
            assert each.is_contiguous() and each.view(-1).shape == (each.numel(),)
            file = io.BytesIO()
            torch.save(each, file)
            assert each.untyped_storage().nbytes() == each.nbytes
    for part in (model.q, model.k, model.v):
        assert part.weight.untyped_storage().nbytes() == part.weight.nbytes


class Writes(Projected):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        x.data.add_(1)
        return q + self.k(x) + self.v(x).sum()  # type: ignore[no-any-return]


class Calls(Projected):
    def written(self, x: Tensor) -> Tensor:
        self.k.weight.data.mul_(1.01)
        return x

    def forward(self, x: Tensor) -> Tensor:
        q = self.written(self.q(x))
        return q + self.k(x) + self.v(x).sum()  # type: ignore[no-any-return]


class Rebinds(Projected):
    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        x = x + 1
        return q + self.k(x) + self.v(x).sum()  # type: ignore[no-any-return]


class Loops(Projected):
    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        for turn in range(3):
            y = x + turn
            made = made + torch.cat([self.q(y) * self.k(y), self.v(y)], -1)[..., :6]
        return made


@pytest.mark.parametrize("cls", [Writes, Calls, Rebinds, Loops])
def test_products_between_which_somebody_may_write_are_left_apart(cls: Any) -> None:
    kind = KINDS["merged"]._replace(make=cls)
    model, plain = models(kind)
    if cls is Loops:
        context: Any = kw.apply(plan_of(kind, model), model)
    else:
        with pytest.warns(RuntimeWarning, match="passes one variable to all of q, k, v"):
            context = kw.apply(plan_of(kind, model), model)
    with context, torch.no_grad():
        for _ in range(2):
            close(kind, model(X.clone()), plain(X.clone()))


class Caught(Normed):
    """A norm that fails is caught, and what it was to norm is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        try:
            y = self.conv(x)
            y = self.norm(y)
        except ValueError:
            return y * 2
        return y


def test_a_variable_that_is_caught_is_what_it_would_be() -> None:
    kind = KINDS["folded"]._replace(make=Caught, options={"pairs": PAIRS[:1]})
    model, plain = models(kind)
    with pytest.warns(RuntimeWarning, match="no method of Caught calls the one"):
        kw.apply(plan_of(kind, model), model)
    with torch.no_grad():
        torch.testing.assert_close(model(X[0]), plain(X[0]))


@pytest.mark.parametrize("name", KINDS)
def test_hooks_for_all_modules_are_called_for_each(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    calls: list[str] = []
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        model(X)
        handle = nn.modules.module.register_module_forward_hook(lambda m, given, made: calls.append(type(m).__name__))
        try:
            model(X)
            ours, calls[:] = list(calls), []
            plain(X)
        finally:
            handle.remove()
    assert ours == calls


@pytest.mark.parametrize("name", KINDS)
def test_undo_gives_everything_back(name: str) -> None:
    kind = KINDS[name]
    model, _ = models(kind)
    before = [dict(part.__dict__) for part in model.modules()]
    held = {
        n: (t, t.data_ptr() if name != "merged" else 0, t.clone()) for n, t in model.state_dict(keep_vars=True).items()
    }
    applied = kw.apply(plan_of(kind, model), model)
    with torch.no_grad():
        model(X)
    made = copy.deepcopy(model)
    assert not any("forward" in part.__dict__ for part in made.modules())
    applied.undo()
    assert [dict(part.__dict__) for part in model.modules()] == before
    for path, tensor in model.state_dict(keep_vars=True).items():
        was, at, value = held[path]
        assert tensor is was and at in (0, tensor.data_ptr()) and torch.equal(tensor, value)
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


@pytest.mark.parametrize("name", ["merged"])
def test_what_a_model_became_meanwhile_stays_so_after_undo(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    with kw.apply(plan_of(kind, model), model):
        model.double()
    torch.testing.assert_close(model(X.double()), plain.double()(X.double()))
