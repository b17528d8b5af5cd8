"""A swapped model under everything that looks inside a program: transforms, traces, compilers. As the original."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import kernelworks as kw


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(-2, -3) for t in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(16), nn.RMSNorm(16, eps=1e-6)
        self.attention, self.gated = Attention(), Gated()
        self.inner, self.act, self.head = nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        x = x + self.gated(self.second(x))
        return F.softmax(self.head(self.act(self.inner(x))), -1)


X, Y = (torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[nn.Module, nn.Module]]:
    torch.manual_seed(0)
    model = Model()
    original = copy.deepcopy(model)
    flash = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)  # torch's own kernel has no tangent and no second derivative
    with only(KERNELS[-1]) if KERNELS else contextlib.nullcontext():
        swap = kw.swap(model)
        yield model, original
        swap.undo()
    torch.backends.cuda.enable_flash_sdp(flash)


def loss(model: nn.Module) -> Callable[..., Tensor]:
    return lambda parameters, x: torch.func.functional_call(model, parameters, (x,)).square().sum()


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def penalty(model: nn.Module) -> Any:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), list(model.parameters()), allow_unused=True)


def trained(run: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module], Any]:
    def step(model: nn.Module) -> Any:
        x = X.clone().requires_grad_()
        return torch.autograd.grad(run(model, x).square().sum(), [x, *model.parameters()])

    return step


def on_cpu(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(x)


def traced(model: nn.Module, grad: bool) -> Tensor:
    with torch.set_grad_enabled(grad):
        return torch.jit.trace(model, (X,))(Y)


PROGRAMS: dict[str, Callable[[nn.Module], Any]] = {
    "forward of a negative": lambda m: m(torch.complex(torch.zeros_like(X), X).conj().imag),
    "trace": lambda m: traced(m, True),
    "trace under no_grad": lambda m: traced(m, False),
    "grad": lambda m: torch.func.grad(loss(m))(parameters(m), X),
    "gradients of each sample": lambda m: torch.vmap(torch.func.grad(loss(m)), (None, 0))(parameters(m), X[:, None]),
    "vmap": lambda m: torch.vmap(m)(torch.stack((X, Y))),
    "jvp": lambda m: torch.func.jvp(m, (X,), (Y,)),
    "vjp": lambda m: torch.func.vjp(m, X)[1](torch.ones(2, 5, 4)),
    "jacrev": lambda m: torch.func.jacrev(m)(X),
    "jacfwd": lambda m: torch.func.jacfwd(m)(X),
    "hessian": lambda m: torch.func.hessian(lambda x: m(x).square().sum())(X[:1]),
    "gradient penalty": penalty,
    "jacobian, batched": lambda m: torch.autograd.functional.jacobian(m, X, vectorize=True),
    "jacobian, forward": lambda m: torch.autograd.functional.jacobian(
        m, X, vectorize=True, strategy="forward-mode"
    ),
    "product with the hessian": lambda m: torch.autograd.functional.hvp(lambda x: m(x).square().sum(), X, Y),
    "checkpoint": trained(lambda m, x: checkpoint(m, x, use_reentrant=False)),
    "reentrant checkpoint": lambda m: checkpoint(m, X.clone().requires_grad_(), use_reentrant=True),
    "saved on the CPU": trained(on_cpu),
    "make_fx": lambda m: torch.fx.experimental.proxy_tensor.make_fx(m)(X)(Y),
    "export": lambda m: torch.export.export(m, (X,)).module()(Y),
    "jvp of compile": lambda m: torch.func.jvp(torch.compile(m, backend="aot_eager"), (X,), (Y,)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_the_original(name: str, models: tuple[nn.Module, nn.Module]) -> None:
    ours, theirs = (PROGRAMS[name](model) for model in models)
    for a, b in zip(*(torch.utils._pytree.tree_leaves(v) for v in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
@pytest.mark.parametrize("name", ["linear", "rms_norm"])
def test_transforms_that_meet_the_operator_in_a_compiled_program(name: str, transform: str) -> None:
    w = torch.randn(16)
    ours, theirs = {
        "linear": (lambda x: kw.linear(x, w.outer(w)), lambda x: F.linear(x, w.outer(w))),
        "rms_norm": (lambda x: kw.rms_norm(x, w, eps=1e-6), lambda x: F.rms_norm(x, (16,), w, 1e-6)),
    }[name]

    def program(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
        return {
            "grad": lambda x: torch.func.grad(lambda v: function(v).square().sum())(x),
            "jvp": lambda x: torch.func.jvp(function, (x,), (x,)),
            "vmap": lambda x: torch.vmap(function)(x),
        }[transform]

    torch._dynamo.reset()
    got = torch.compile(program(ours), backend="aot_eager", fullgraph=True)(X)
    torch.testing.assert_close(got, program(theirs)(X), rtol=1e-4, atol=1e-4)


class Doubled(Tensor):
    """A tensor of two, which knows torch's operators and no other."""

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Doubled:
        made = Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
        made.parts = first, second
        return made

    def __repr__(self) -> str:  # torch's own would look at values, which there are none of while a compiler traces
        return "Doubled"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @property
    def first(self) -> Tensor:
        return self.parts[0]

    @property
    def second(self) -> Tensor:
        return self.parts[1]

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> Doubled:
        return Doubled(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":
            raise TypeError(f"{func} is no operator of torch's")
        made = [
            func(*torch.utils._pytree.tree_map(lambda v, i=i: v.parts[i] if isinstance(v, cls) else v, args),
                 **(kwargs or {}))
            for i in (0, 1)
        ]  # fmt: skip
        return Doubled(*made) if isinstance(made[0], Tensor) else made[0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_subclass_that_knows_torchs_operators_alone(compiled: bool) -> None:
    def program(x: Tensor) -> Tensor:
        return kw.gelu(kw.softmax(x))

    torch._dynamo.reset()
    run = torch.compile(program, backend="aot_eager", fullgraph=True) if compiled else program
    got = run(Doubled(X, Y))
    assert type(got) is Doubled
    for part, plain in zip(got.parts, (X, Y), strict=True):
        torch.testing.assert_close(part, F.gelu(torch.softmax(plain, -1)))
