"""Models, the optimizations that a plan has for them, and what may become of them after it was applied."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from kernelworks.diagnose.fix.plan_fields import VERSION
from kernelworks.diagnose.optimizations import cast_weights, fewer_bits, folded_norms, merged_projections

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
    optimization: str
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
        (merged_projections.MergedParameters, "__call__"),
    ),
    "cast": Kind(Narrow, "weights cast once", {}, "head", 0.0, (cast_weights.CastOnce, "run_cast"), True),
    "int8": Kind(Whole, "fewer bits", {"bits": "int8"}, "head", 0.06, (fewer_bits.QuantizedLinear, "run_int8"), True),
}  # fmt: skip


def plan_of(kind: Kind, model: nn.Module, *more: dict[str, Any]) -> dict[str, Any]:
    of = f"{type(model).__module__}.{type(model).__qualname__}"
    site = {"kind": "module", "root": of, "number": 0, "path": "", "type": of}
    if kind.everywhere:
        site = {"kind": "everywhere", "root": "", "number": 0, "path": "", "type": ""}
    candidate = {
        "optimization": kind.optimization,
        "site": site,
        "says": "",
        "code": "",
        "changes": "",
        "options": kind.options,
    }
    return {
        "kernelworks_plan": VERSION, "program": "p", "kind": "", "torch": "", "saves": None, "roots": [of],
        "candidates": [candidate, *more],
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
