"""What is not supported, each with a call that shows how it is declined: an error that says what is wrong; of a swap,
torch's own function; of a diagnosis, what it says of itself. ``python tests/limits/limits.py`` writes the page.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from limit import Limit, heads, written_between, x
from limits_compiled import COMPILED
from limits_diagnosed import HOPPER, PROGRAMS
from limits_installed import INSTALLED
from limits_of_sizes import SIZES
from limits_planned import PLANS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import kernelworks as kw
from kernelworks.nn.compiled_loss import loss_with_gradients

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "limits.md"
HEAD = """# limits

What kernelworks does not do, and what happens then. A test makes each of these calls; this page is written from the
table that it reads (`make docs`).
"""

SCALAR = torch.tensor(1.0)


def row_over_itself() -> Any:
    rows = x(5, 16)
    return kw.rope(rows.view(1, 1, 5, 16), rows.view(1, 1, 5, 16), x(1, 5, 16), x(1, 5, 16), out=(x(1, 1, 5, 16),) * 2)


def over_itself() -> Any:
    square, weight = x(16, 16), x(16, 16)
    want = F.linear(square, weight)
    return kw.linear(square, weight, out=square), want


def by_name_under_autocast() -> Any:
    a, w, b = x(), x(8, 16), x(8)
    with torch.autocast("cpu", torch.bfloat16):
        found = kw.linear(a, w, b)
    return found, F.linear(a, w, b)


def into_inference_tensor() -> Any:
    with torch.inference_mode():
        kept = torch.empty(4, 16)
    kw.gelu(x(), out=kept)


def tangent_of_attention() -> Any:
    q, k, v = heads()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = torch.func.jvp(F.scaled_dot_product_attention, (q, k, v), (v, q, k))[1]
    return torch.func.jvp(kw.attention, (q, k, v), (v, q, k))[1], want


def swapped(model: nn.Module, *args: Any, **how: Any) -> tuple[Any, Any]:
    """What a model gives after a swap, and what it gave before."""
    want = model(*args, **how)
    with kw.swap(model, verbose=False):
        return model(*args, **how), want


def linear(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    for name, value in changes.items():
        setattr(model, name, None if value is None else nn.Parameter(value))
    return model


class Function(nn.Module):
    """A module whose forward is one call of torch.nn.functional."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.function = forward

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def attended(*args: Any) -> Tensor:
    return F.scaled_dot_product_attention(*args)


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, label_smoothing=0.1)


def second_derivative() -> tuple[Any, Any]:
    found = []
    for f in (kw.gelu, F.gelu):
        value = x().requires_grad_()
        (first,) = torch.autograd.grad(f(value).sum(), value, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), value)[0])
    return found[0], found[1]


def swapped_twice() -> None:
    model = linear()
    with kw.swap(model, verbose=False):
        kw.swap(model, verbose=False)


def overwritten(model: nn.Module, given: Tensor, *more: Tensor) -> None:
    given = given * 1
    with kw.swap(model, verbose=False):
        result = model(given, *more)
        given.zero_()
        result.sum().backward()


class Branching(nn.Module):
    """A root mean square norm that does more in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, given: Tensor) -> Tensor:
        if self.training:
            given = given * 1.0
        return self.weight * given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + 1e-6)


class Shifted(nn.Module):
    """A root mean square norm with a parameter more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))

    def forward(self, given: Tensor) -> Tensor:
        return self.weight * given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + 1e-6) + self.shift


def left(model: nn.Module) -> str:
    """Why a swap leaves a model."""
    with kw.swap(model, verbose=False) as swap:
        assert not swap.replaced
        return " ".join(map(str, swap.left))


def copied() -> tuple[Any, Any]:
    model = linear()
    want = model(x())
    with kw.swap(model, verbose=False):
        made = copy.deepcopy(model)
        kw.swap(made, verbose=False).undo()  # would raise, were it swapped
        return made(x()), want


def operators(make: Callable[[nn.Module], Any]) -> tuple[str, str]:
    """The operators in what is made of a swapped model, and of the model as it was."""
    model = nn.Sequential(linear(), nn.GELU(), nn.LayerNorm(8))
    want = str(make(model))
    with kw.swap(model, verbose=False):
        return str(make(model)), want


class Seeing(TorchDispatchMode):
    """Notes the operators that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def moded(model: nn.Module) -> list[str]:
    """The operators that a mode sees of a call."""
    given = x()
    with Seeing() as mode, torch.no_grad():
        model(given)
    return mode.seen


def kinds(program: Any) -> list[str]:
    """The operators of a program of torch.jit."""
    return [node.kind() for node in program.inlined_graph.nodes()]


def twice() -> None:
    given = x().requires_grad_()
    loss = loss_with_gradients(given, x(8, 16), torch.arange(4), None, -100)
    torch.autograd.grad(loss, given, create_graph=True)


def autocast(call: Callable[..., Any], *args: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return call(*args)


OPS = [
    Limit(
        "Ops take float32, bfloat16 and float16, nothing else.",
        lambda: kw.gelu(x().double()),
        TypeError,
        "must have dtype",
    ),
    Limit(
        "All tensors of a call have one dtype.",
        lambda: kw.linear(x(), x(8, 16).bfloat16()),
        TypeError,
        "must have x's dtype",
    ),
    Limit(
        "All tensors of a call are on one device.",
        lambda: kw.linear(x(), x(8, 16).to("meta")),
        ValueError,
        "must be on x's device",
    ),
    Limit(
        "Tensors are torch's, NumPy's or speak DLPack: lists of numbers are refused.",
        lambda: kw.gelu([1.0, 2.0]),
        TypeError,
        "must be a torch.Tensor",
    ),
    Limit(
        "Quantized tensors are refused.",
        lambda: kw.gelu(torch.quantize_per_tensor(x(), 0.1, 0, torch.qint8)),
        TypeError,
        "must have dtype",
    ),
    Limit(
        "Two tensors are not broadcast: `silu_mul` takes two of one shape.",
        lambda: kw.silu_mul(x(), x(1, 16)),
        ValueError,
        "must have shape [4, 16], its sizes as in gate",
    ),
    Limit("A weight of `linear` is a matrix.", lambda: kw.linear(x(), x(2, 8, 16)), ValueError, "must have shape"),
    Limit(
        "A bias of `linear` has one number for each row of the weight matrix.",
        lambda: kw.linear(x(), x(8, 16), x(1)),
        ValueError,
        "bias must have shape",
    ),
    Limit(
        "Norms are over the last dimension alone.",
        lambda: kw.rms_norm(x(), x(4, 16), eps=1e-6),
        ValueError,
        "weight must have shape",
    ),
    Limit("`eps` has no default, because frameworks differ in it.", lambda: kw.rms_norm(x(), x(16)), TypeError, "eps"),
    Limit(
        "A bool is no number: `eps=True` is refused.",
        lambda: kw.rms_norm(x(), x(16), eps=True),
        TypeError,
        "eps must be a float",
    ),
    Limit(
        "GELU has the approximations `none` and `tanh`.",
        lambda: kw.gelu(x(), approximate="sigmoid"),
        ValueError,
        "must be 'none' or 'tanh'",
    ),
    Limit(
        "`relu` keeps its input for the gradients, torch the result: an input that is written meanwhile raises.",
        lambda: written_between(kw.relu),
        RuntimeError,
        "modified by an inplace operation",
    ),
    Limit(
        "`add_layer_norm` keeps its inputs, where torch keeps their sum: an input that is written meanwhile raises.",
        lambda: written_between(lambda h: kw.add_layer_norm(h, x(), x(16), x(16), eps=1e-5)[0]),
        RuntimeError,
        "modified by an inplace operation",
    ),
    Limit("`log_softmax` takes at least one dimension.", lambda: kw.log_softmax(SCALAR, dim=0), ValueError, "[..., N]"),
    Limit("`softmax` takes at least one dimension.", lambda: kw.softmax(SCALAR, dim=0), ValueError, "[..., N]"),
    Limit(
        "An op that is called by its own name computes in its inputs' dtype, under autocast too.",
        by_name_under_autocast,
    ),
    Limit(
        "An array with a mask is refused: its numbers alone would be read.",
        lambda: kw.gelu(np.ma.masked_array(np.ones((2, 2), np.float32))),
        TypeError,
        "without a mask",
    ),
    Limit(
        "Collectives have no gradient.",
        lambda: kw.all_reduce(x().requires_grad_(), group="self"),
        ValueError,
        "pass x.detach()",
    ),
    Limit(
        "`rope` has no gradient for its tables.",
        lambda: kw.rope(x(1, 2, 5, 16), x(1, 2, 5, 16), x(1, 5, 16).requires_grad_(), x(1, 5, 16)),
        ValueError,
        "pass cos.detach()",
    ),
    Limit(
        "`cross_entropy` takes rows of logits; move the classes to the last dimension and flatten the rest.",
        lambda: kw.cross_entropy(x(2, 3, 4), torch.zeros(2, 4).long()),
        ValueError,
        "must have shape [M, N]",
    ),
    Limit(
        "`cross_entropy` takes classes, not probabilities.",
        lambda: kw.cross_entropy(x(), x().softmax(-1)),
        TypeError,
        "target must have dtype int64",
    ),
    Limit(
        "`cross_entropy` with class weights or label smoothing is torch's: no kernel of kernelworks has them.",
        lambda: kw.cross_entropy(x(), torch.arange(4), weight=x(16), kernel="scalar"),
        RuntimeError,
        "weight",
    ),
    Limit(
        "`attention` takes [B, H, L, D].",
        lambda: kw.attention(*heads(2, 5, 16)),
        ValueError,
        "must have shape [B, H, Lq, D]",
    ),
    Limit(
        "`attention` takes heads of at most 256.",
        lambda: kw.attention(*heads(1, 1, 4, 257)),
        ValueError,
        "with 1 <= D <= 256",
    ),
    Limit(
        "`attention` takes keys and values of one shape.",
        lambda: kw.attention(*heads()[:2], x(1, 2, 5, 8)),
        ValueError,
        "Hkv and Lk as in k",
    ),
    Limit(
        "A mask of `attention` says which keys are seen; it is not added.",
        lambda: kw.attention(*heads(), mask=x(1, 1, 5, 5)),
        TypeError,
        "mask must have dtype bool",
    ),
    Limit(
        "A window of `attention` needs a causal mask.",
        lambda: kw.attention(*heads(), window=2),
        ValueError,
        "window needs causal",
    ),
    Limit(
        "`attention` with dropout is torch's: no kernel of kernelworks has it.",
        lambda: kw.attention(*heads(), dropout_p=0.1, kernel="scalar"),
        RuntimeError,
        "dropout_p",
    ),
    Limit(
        "`out=` is not differentiated.",
        lambda: kw.gelu(x().requires_grad_(), out=x()),
        RuntimeError,
        "out= does not support autograd",
    ),
    Limit("`out=` lies as results do.", lambda: kw.gelu(x(), out=x(16, 4).T), ValueError, "out must be contiguous"),
    Limit(
        "`out=` of two results takes two tensors that share no memory.", row_over_itself, ValueError, "share no memory"
    ),
    Limit(
        "A kernel that is asked for by name runs or raises; no other takes its place.",
        lambda: kw.gelu(x(), kernel="triton"),
        RuntimeError,
        "cannot run",
    ),
    Limit(
        "Second derivatives, forward-mode derivatives and `vmap` are torch's own kernels, not ours.", second_derivative
    ),
    Limit(
        "There a kernel cannot be asked for by name.",
        lambda: torch.func.jvp(lambda t: kw.gelu(t, kernel="scalar"), (x(),), (x(),)),
        RuntimeError,
        "must see torch's own functions",
    ),
    Limit("There `attention` forms the matrix of scores.", tangent_of_attention),
    Limit(
        "A tensor that is no plain memory (sparse, a subclass, another device) is served by torch's own functions.",
        lambda: (kw.linear(x().to_sparse(), x(8, 16)), F.linear(x(), x(8, 16))),
    ),
    Limit("`out=` that shares memory with an argument costs a copy: all arguments are read first.", over_itself),
    Limit(
        "Inference tensors are not written outside inference mode.", into_inference_tensor, RuntimeError, "inference"
    ),
]


class CopiesItself(nn.Linear):
    def __copy__(self) -> Any: ...


SWAP = [
    Limit("`swap` takes modules.", lambda: kw.swap(F.gelu), TypeError, "must be a torch.nn.Module"),
    Limit(
        "A model is swapped once; undo the first swap before another.", swapped_twice, RuntimeError, "swapped already"
    ),
    Limit(
        "Logits that are overwritten between a loss and its backward raise: ours reads them again, torch keeps a copy.",
        lambda: overwritten(nn.CrossEntropyLoss(), x().requires_grad_(), torch.arange(4)),
        RuntimeError,
        "modified by an inplace operation",
    ),
    Limit(
        "So does the input of an RMS norm that needs no gradient: torch keeps a value derived from it.",
        lambda: overwritten(nn.RMSNorm(16), x()),
        RuntimeError,
        "modified by an inplace operation",
    ),
    Limit("float64 runs torch's functions.", lambda: swapped(linear().double(), x().double())),
    Limit("Under autocast torch's functions run.", lambda: autocast(swapped, linear(), x())),
    Limit(
        "Additive masks, dropout and values of another width run torch's attention.",
        lambda: swapped(Function(attended), *heads(), x(5, 5)),
    ),
    Limit(
        "Label smoothing, weights of classes and probabilities run torch's cross entropy.",
        lambda: swapped(Function(entropy), x(), torch.arange(4)),
    ),
    Limit(
        "Nested tensors run torch's functions.",
        lambda: [t.to_padded_tensor(0.0) for t in swapped(linear(), torch.nested.nested_tensor([x(), x(2, 16)]))],
    ),
    Limit("A sparse weight runs torch's function.", lambda: swapped(linear(weight=x(8, 16).to_sparse_csr()), x())),
    Limit("A bias that is broadcast runs torch's function.", lambda: swapped(linear(bias=x(1)), x())),
    Limit(
        "Modules whose class has a `__copy__` of its own stay as they are: its copies may share entries.",
        lambda: swapped(CopiesItself(16, 16), x()),
    ),
    Limit("Modules made by `torch.jit.script` stay as they are.", lambda: swapped(torch.jit.script(linear()), x())),
    Limit(
        "Modules made by `torch.export` stay as they are.",
        lambda: swapped(torch.export.export(linear(), (x(),)).module(), x()),
    ),
    Limit(
        "Quantized modules stay as they are.",
        lambda: swapped(torch.ao.quantization.quantize_dynamic(nn.Sequential(linear())), x()),
    ),
    Limit("A norm whose forward branches is left.", lambda: left(Branching()), says="to be one: it branches"),
    Limit(
        "A norm with further parameters is left.",
        lambda: left(Shifted()),
        says="to be one: it has parameters, buffers or modules beside a weight",
    ),
    Limit("A copy of a swapped model is not swapped.", copied),
    Limit(
        "A trace of a swapped model holds torch's own operators.",
        lambda: operators(lambda model: kinds(torch.jit.trace(model, x()))),
    ),
    Limit(
        "A script of a swapped model holds torch's own operators.",
        lambda: operators(lambda model: kinds(torch.jit.script(model))),
    ),
    Limit(
        "An exported swapped model holds torch's own operators.",
        lambda: operators(lambda model: [node.target for node in torch.export.export(model, (x(),)).graph.nodes]),
    ),
    Limit(
        "Under a mode of the program's own, for functions or for operators, a swapped model runs torch's.",
        lambda: operators(moded),
    ),
    Limit(
        "The fused loss of a compiled model has no second derivative.", twice, RuntimeError, "has no second derivative"
    ),
]


SECTIONS = {
    "Ops called by name": [*OPS, *SIZES], "Swapped models": SWAP, "Compiled programs": COMPILED,
    "Programs under diagnosis": PROGRAMS, "Programs under a plan": PLANS, "On Hopper": HOPPER, "The package": INSTALLED,
}  # fmt: skip


def page() -> str:
    """The text of docs/reference/limits.md."""
    parts = [HEAD]
    for title, limits in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [f"- {limit.sentence}{_how(limit)}" for limit in limits]
        parts.append("")
    return "\n".join(parts)


def _how(limit: Limit) -> str:
    error = f"{limit.error.__name__}: " if limit.error else ""
    return f" *{error}\u2026 {limit.says} \u2026*" if limit.says else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
