"""A plan in place never serves an old answer: whatever becomes of a model's weights, statistics, attributes, parts and
hooks after it was applied, the model answers as one to which the same was done without a plan.

Every optimization that derives something from weights gets every edit.
"""

from __future__ import annotations

import copy
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import kernelworks as kw
from kernelworks.diagnose.remedies import cast_weights, fewer_bits, folded_norms, merged_projections

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(3))


class Normed(nn.Module):
    """Two statements, a call in a call, and an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.deep, self.after = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4, affine=False)
        self.rest = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = self.norm(y)
        return self.rest(self.after(self.deep(y)).relu())  # type: ignore[no-any-return]


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).relu()
        k, v = self.k(x), self.v(x)
        return torch.cat([q * k, v], -1)


class Narrow(nn.Module):
    """Under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.conv(x).relu())  # type: ignore[no-any-return]


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


class Kind(NamedTuple):
    make: Callable[[], Any]
    remedy: str
    options: dict[str, Any]
    first: str  # a product in it
    tolerance: float
    serves: tuple[type, str]
    everywhere: bool = False


PAIRS = [["conv", "norm"], ["deep", "after"], ["rest.0", "rest.1"]]
KINDS = {
    "folded": Kind(Normed, "folded norms", {"pairs": PAIRS}, "conv", 1e-4, (folded_norms.Pair, "__call__")),
    "merged": Kind(
        Projected, "merged projections", {"groups": [["q", "k", "v"]]}, "k", 1e-5,
        (merged_projections.Merged, "__call__"),
    ),
    "cast": Kind(Narrow, "weights cast once", {}, "head", 0.0, (cast_weights.CastOnce, "called"), True),
    "int8": Kind(Whole, "fewer bits", {"bits": "int8"}, "head", 0.06, (fewer_bits.Quantised, "called"), True),
}  # fmt: skip


def plan_of(kind: Kind, model: nn.Module, *more: dict[str, Any]) -> dict[str, Any]:
    of = f"{type(model).__module__}.{type(model).__qualname__}"
    site = {"kind": "module", "root": of, "number": 0, "path": "", "type": of}
    if kind.everywhere:
        site = {"kind": "everywhere", "root": "", "number": 0, "path": "", "type": ""}
    offer = {"remedy": kind.remedy, "site": site, "says": "", "code": "", "changes": "", "options": kind.options}
    return {
        "kernelworks_plan": 1, "program": "p", "kind": "", "torch": "", "saves": None, "roots": [of],
        "offers": [offer, *more],
    }  # fmt: skip


def models(kind: Kind) -> tuple[Any, Any]:
    torch.manual_seed(0)
    made = kind.make().eval()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -1, 1)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
    return made, copy.deepcopy(made)


class Served:
    """How often an optimization gave an answer of its own."""

    def __init__(self, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        owner, name = kind.serves
        plain = getattr(owner, name)

        def counting(own: Any, *args: Any) -> Any:
            made = plain(own, *args)
            self.times += made is not None
            return made

        monkeypatch.setattr(owner, name, counting)


# ---------------------------------------------------------------- edits: of a model, and of a product in it


Edit = Callable[[Any, Any], Any]


def every(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


def through_numpy(tensor: Tensor) -> None:
    tensor.detach().numpy()[...] *= 1.5


def anew(part: Any, name: str = "weight") -> None:
    setattr(part, name, nn.Parameter(getattr(part, name).detach() * 1.5 + 0.1))


def through_storage(tensor: Tensor) -> None:
    other = (tensor.detach() * 1.5).contiguous()
    whole = tensor.untyped_storage()
    at = tensor.storage_offset() * tensor.itemsize
    torch.tensor([], dtype=torch.uint8).set_(whole)[at : at + other.nbytes].copy_(other.reshape(-1).view(torch.uint8))  # type: ignore[call-overload]


def loaded(model: Any, **how: Any) -> None:
    state = {n: t * 1.25 + 0.1 if t.is_floating_point() else t for n, t in model.state_dict().items()}
    model.load_state_dict(state, **how)


def trained(model: Any) -> None:
    model.train().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).float().square().mean().backward()
        optimizer.step()
    model.eval()


def averaged(model: Any) -> None:
    held = [p.data for p in model.parameters()]
    torch._foreach_lerp_(held, [torch.ones_like(t) for t in held], 0.3)


EDITS: dict[str, Edit] = {
    "nothing": lambda m, part: None,
    "in place": lambda m, part: [p.detach().mul_(1.5) for p in every(m)],
    "data in place": lambda m, part: [p.data.mul_(1.5) for p in every(m)],
    "data copied": lambda m, part: part.weight.data.copy_(part.weight.data.flip(0) * 2),
    "one element": lambda m, part: part.weight.data.view(-1)[3].add_(1),
    "foreach over data": lambda m, part: averaged(m),
    "NumPy": lambda m, part: through_numpy(part.weight),
    "DLPack": lambda m, part: torch.from_dlpack(part.weight.detach()).mul_(1.5),  # type: ignore[attr-defined]
    "storage": lambda m, part: through_storage(part.weight),
    "other data": lambda m, part: setattr(part.weight, "data", part.weight.data * 1.5),
    "transposed where it lies": lambda m, part: setattr(part.weight, "data", part.weight.data.transpose(0, 1)),
    "negated where it lies": lambda m, part: setattr(part.weight, "data", torch._neg_view(part.weight.data)),
    "another parameter": lambda m, part: anew(part),
    "another bias": lambda m, part: anew(part, "bias"),
    "other data of the bias": lambda m, part: setattr(part.bias, "data", part.bias.data * 3 + 1),
    "the bias in place": lambda m, part: part.bias.data.fill_(0.7),
    "no bias": lambda m, part: setattr(part, "bias", None),
    "a state dict": lambda m, part: loaded(m),
    "a state dict assigned": lambda m, part: loaded(m, assign=True),
    "trained": lambda m, part: trained(m),
    "weight norm": lambda m, part: nn.utils.parametrizations.weight_norm(part),
    "an old weight norm": lambda m, part: nn.utils.weight_norm(part),
    "frozen": lambda m, part: m.requires_grad_(False),
    "a hook that doubles": lambda m, part: part.register_forward_hook(lambda module, given, made: made * 2),
    "a hook on what it is given": lambda m, part: part.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "another forward": lambda m, part: setattr(part, "forward", lambda x: type(part).forward(part, x) + 1),
    "another module": lambda m, part: setattr(m, name_of(m, part), nn.Sequential(copy.deepcopy(part), nn.Tanh())),
    "pruned": lambda m, part: prune.l1_unstructured(part, "weight", 0.5),
}  # fmt: skip
OF_NORMS: dict[str, Edit] = {
    "eps": lambda m, part: [setattr(n, "eps", 1.0) for n in norms(m)],
    "variance, data": lambda m, part: [n.running_var.data.fill_(0.3) for n in norms(m)],
    "mean, NumPy": lambda m, part: [n.running_mean.numpy().__setitem__(..., 2.0) for n in norms(m)],
    "another variance": lambda m, part: setattr(m.norm, "running_var", m.norm.running_var * 2),
    "no statistics": lambda m, part: (setattr(m.norm, "running_mean", None), setattr(m.norm, "running_var", None)),
    "scale, data": lambda m, part: m.norm.weight.data.mul_(-2),
    "no scale": lambda m, part: setattr(m.norm, "weight", None),
    "statistics of the batch": lambda m, part: m.norm.train(),
    "an identity for the norm": lambda m, part: setattr(m, "norm", nn.Identity()),
    "another norm": lambda m, part: setattr(m, "norm", nn.GroupNorm(2, 4)),
    "an identity in the sequence": lambda m, part: m.rest.__setitem__(1, nn.Identity()),
    "one more in the sequence": lambda m, part: m.rest.insert(1, nn.Tanh()),
    "a hook on the norm": lambda m, part: m.norm.register_forward_hook(lambda module, given, made: made * 2),
    "its strides": lambda m, part: setattr(part, "stride", (2, 2)),
    "its padding": lambda m, part: setattr(part, "padding", (0, 0)),
}  # fmt: skip


def norms(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]


def name_of(model: nn.Module, part: nn.Module) -> str:
    return next(name for name, each in model.named_children() if each is part)


def close(kind: Kind, got: Tensor, want: Tensor) -> None:
    scale = max(1.0, float(want.detach().abs().max())) if want.numel() else 1.0
    torch.testing.assert_close(got, want, rtol=0.0, atol=kind.tolerance * scale, check_stride=True)


CASES = [(kind, edit) for kind in KINDS for edit in EDITS] + [("folded", edit) for edit in OF_NORMS]


@pytest.mark.parametrize(("name", "edit"), CASES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_after_every_edit_the_answer_is_the_edited_models(
    name: str, edit: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    (model, plain), served = models(kind), Served(kind, monkeypatch)
    change = (EDITS | OF_NORMS)[edit]
    with kw.apply(plan_of(kind, model), model) as applied:
        assert applied.done and not applied.failed
        with getattr(torch, mode)():
            close(kind, model(X), plain(X))
            assert served.times, "the optimization is not at work, and this test would say nothing"
        with torch.no_grad() if edit != "trained" else torch.enable_grad():
            for each in (model, plain):
                change(each, each.get_submodule(kind.first))
        with getattr(torch, mode)():
            for _ in range(2):
                close(kind, model(X), plain(X))
    with torch.no_grad():
        close(kind._replace(tolerance=1e-5), model(X), plain(X))


@pytest.mark.parametrize("name", KINDS)
def test_addresses_are_given_again_to_other_weights(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    part, other = model.get_submodule(kind.first), plain.get_submodule(kind.first)
    values = [torch.randn_like(part.weight) for _ in range(30)]
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        for value in values:
            part.weight = None
            part.weight = nn.Parameter(value.clone())
            got = model(X)
            other.weight = nn.Parameter(value)
            close(kind, got, plain(X))


@pytest.mark.parametrize("name", KINDS)
def test_each_part_called_alone_is_torchs_own(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        model(X)
        for path, part in plain.named_children():
            if name != "int8":
                close(kind, model.get_submodule(path)(X), part(X))
        if name == "merged":  # values of an earlier call wait for nobody
            x = X.clone()
            model.q(x)
            model.k.weight.data.mul_(2)
            plain.k.weight.data.mul_(2)
            close(kind, model.k(x), plain.k(x))
            model.q(x)
            x.numpy()[...] = 1.0
            close(kind, model.v(x), plain.v(x))
        if name == "folded":
            close(kind, model.norm(model.conv(X).clone()), plain.norm(plain.conv(X)))


@pytest.mark.parametrize("name", ["folded", "merged", "cast"])
@pytest.mark.parametrize("frozen", ["all", "weights", "none"])
def test_gradients_are_as_without_a_plan(name: str, frozen: str) -> None:
    """Also where it was first used in inference mode, whose tensors autograd does not take."""
    kind = KINDS[name]
    model, plain = models(kind)
    with kw.apply(plan_of(kind, model), model):
        with torch.inference_mode():
            model(X)
        for each in (model, plain):
            for path, parameter in each.named_parameters():
                parameter.requires_grad_(frozen == "none" or (frozen == "weights" and path.endswith("bias")))
        for wanted in (True, False) if frozen != "all" else (True,):
            given = [X.clone().requires_grad_(wanted) for _ in range(2)]
            for each, x in zip((model, plain), given, strict=True):
                each.zero_grad()
                each(x).float().square().sum().backward()
            if wanted:
                torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-3, atol=1e-3)
            for (path, p), (_, other) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
                assert (p.grad is None) == (other.grad is None), path
                if p.grad is not None:
                    torch.testing.assert_close(p.grad, other.grad, rtol=1e-3, atol=1e-3)


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
@pytest.mark.filterwarnings("ignore:kernelworks. not in place")
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
    """As many rows as channels: BatchNorm1d norms along the second dimension."""

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
        with pytest.warns(RuntimeWarning, match="hands one variable to all of q, k, v"):
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
    with pytest.warns(RuntimeWarning, match="no method of Caught calls them"):
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
