"""torch's own samples (its OpInfo database) for every function of torch's that an op of ours stands in for.

Each sample is called as a swapped model calls it, in torch's signature, as it is and with every floating tensor laid
out in an unusual way. Values, gradients, tangents, second derivatives and batches must be as near to float64 as
torch's own.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from torch import Tensor

import kernelworks as kw
from kernelworks.contract.tensors import is_transform_active
from kernelworks.nn import functional

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (functional.softmax, F.softmax),
    "nn.functional.gelu": (functional.gelu, F.gelu),
    "nn.functional.silu": (lambda x: functional.GATED_FUNCTIONS["silu"](x, x), lambda x: F.silu(x) * x),
    "nn.functional.linear": (functional.linear, F.linear),
    "nn.functional.layer_norm": (functional.layer_norm, F.layer_norm),
    "nn.functional.rms_norm": (functional.rms_norm, F.rms_norm),
    "nn.functional.scaled_dot_product_attention": (
        functional.scaled_dot_product_attention, F.scaled_dot_product_attention,
    ),
    "nn.functional.relu": (kw.relu, F.relu),
    "log_softmax": (lambda x, *a, **k: (kw.log_softmax if x.dim() else F.log_softmax)(x, *a, **k), F.log_softmax),
    "sum": (kw.sum, torch.sum),
    "argmax": (kw.argmax, torch.argmax),
    "nn.functional.cross_entropy": (functional.FUNCTIONS["cross_entropy"], F.cross_entropy),
    "nn.functional.embedding": (
        lambda weight, ids, **k: F.embedding(ids, weight, **k) if k else kw.embedding(ids, weight),
        lambda weight, ids, **k: F.embedding(ids, weight, **k),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def our_kernels() -> Iterator[None]:
    """Kernels of ours that read memory, whatever is verified on this machine."""
    with only(KERNELS[-1]) if KERNELS else contextlib.nullcontext():
        yield


def chosen(function: Callable[..., Any], place: int) -> Callable[..., Tensor]:
    """The values and what the indices name, added: of equal elements any may be named. Where there are some, a little
    is added to each, for gradients tell which of them was taken. ``place`` is the dimension's behind the tensor."""

    def call(x: Tensor, *args: Any, **named: Any) -> Tensor:
        if not is_transform_active() and len(x.unique()) < x.numel():
            x = x + torch.linspace(0, 1e-3, x.numel(), dtype=x.dtype).reshape(x.shape)
        values, indices = function(x, *args, **named)
        return values + x.gather(named.get("dim", args[place] if len(args) > place else -1), indices)

    return call


FUNCTIONS |= {
    "topk": (chosen(kw.topk, 1), chosen(torch.topk, 1)),
    "sort": (chosen(kw.sort, 0), chosen(torch.sort, 0)),
}


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda t: t,
    "strided": lambda t: torch.stack((t, t), -1)[..., 0],
    "negative": lambda t: torch._neg_view(t.neg()),
    "of a conjugate": lambda t: torch.complex(torch.zeros_like(t), t.neg()).conj().imag,
    "expanded": lambda t: t[..., :1].expand(t.shape) if t.dim() and t.numel() else t,
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
}  # fmt: skip


@pytest.fixture(scope="module")
def samples() -> dict[str, list[Any]]:
    sys.modules.setdefault("expecttest", types.ModuleType("expecttest"))
    if not hasattr(sys.modules["expecttest"], "TestCase"):  # torch's tests are not run, only their samples taken
        sys.modules["expecttest"].TestCase = type("TestCase", (), {})  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        torch.default_generator.manual_seed(0)
        found: dict[str, list[Any]] = {}
        for op in op_db:
            if op.name in FUNCTIONS and op.variant_test_name in ("", "with_dtype"):
                found.setdefault(op.name, []).extend(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    return found


def tensors_of(sample: Any) -> list[Tensor]:
    """The floating tensors of a sample, in a fixed order."""
    flat = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [t for t in flat if isinstance(t, Tensor) and t.is_floating_point()]


def as_function(function: Callable[..., Any], sample: Any) -> Callable[..., Any]:
    """The call of a sample as a function of its floating tensors."""
    flat, shape = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))

    def call(*given: Tensor) -> Tensor:
        torch.default_generator.manual_seed(0)  # dropout
        rest = iter(given)
        leaves = [next(rest) if isinstance(v, Tensor) and v.is_floating_point() else v for v in flat]
        first, args, kwargs = torch.utils._pytree.tree_unflatten(leaves, shape)
        result: Tensor = function(first, *args, **kwargs)
        return result

    return call


def outcome(question: Callable[[Any], Any], call: Callable[..., Any]) -> Any:
    try:
        found = question(call)
    except Exception as error:
        return type(error)
    return [t for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, Tensor)]


def exponent(name: str, given: list[Tensor]) -> float:
    """How large the numbers are that exponentials are taken of: rounded, they are off by that much of a last place."""
    if not name.endswith("attention"):
        return 0.0
    largest = [float(t.abs().max()) if t.numel() else 0.0 for t in given[:2]]
    return given[0].shape[-1] ** 0.5 * largest[0] * largest[1]


def hold(ours: Any, theirs: Any, exact: Any, exponents: float, what: str) -> None:
    """Ours as near to float64 as torch's answer, up to a few roundings more; an answer where torch has one."""
    if isinstance(theirs, type):
        return
    assert not isinstance(ours, type), f"{what}: {ours} where torch answers"
    assert len(ours) == len(theirs), what
    references = exact if not isinstance(exact, type) and len(exact) == len(theirs) else theirs
    for a, b, reference in zip(ours, theirs, references, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, what
        a, b, reference = (t.detach().to_dense().double() for t in (a, b, reference))
        assert torch.equal(a.isnan(), b.isnan()), f"{what}: NaN"
        if not reference.numel():
            continue
        size = float(reference.nan_to_num().abs().max())
        error, least = (float((t - reference).nan_to_num().abs().max()) for t in (a, b))
        allowed = 4 * least + (2**-19 + 2**-24 * exponents) * size + 1e-30
        assert error <= allowed, f"{what}: {error:.2g}, torch's {least:.2g}, of {size:.2g}"


def differentiated(call: Callable[..., Tensor], given: list[Tensor], order: int, turn: bool) -> Any:
    """Gradients of a weighted sum of the result, or their second derivative."""
    leaves = [t.clone().requires_grad_() for t in given]
    y = call(*leaves)
    flow = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    first = torch.autograd.grad(
        y, leaves, torch._neg_view(flow.neg()) if turn else flow, create_graph=order > 1, allow_unused=True
    )
    if order == 1:
        return first
    total = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
    return torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, Tensor) else ()


def questions(given: list[Tensor], thorough: bool) -> Iterator[tuple[str, Callable[[Callable[..., Any]], Any]]]:
    """What is asked of a call, by name."""
    yield "forward", lambda call: call(*given_as(call, given))
    yield "backward", lambda call: differentiated(call, given_as(call, given), 1, turn=False)
    if not thorough:
        return
    yield "backward of a negative", lambda call: differentiated(call, given_as(call, given), 1, turn=True)
    yield "second derivative", lambda call: differentiated(call, given_as(call, given), 2, turn=False)
    yield "tangent", lambda call: torch.func.jvp(call, *[tuple(given_as(call, given))] * 2)[1]
    yield "batch", lambda call: torch.vmap(call)(*(torch.stack((t, t * 0.5)) for t in given_as(call, given)))


def given_as(call: Any, given: list[Tensor]) -> list[Tensor]:
    return [t.double() for t in given] if getattr(call, "exact", False) else given


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples(name: str, layout: str, samples: dict[str, list[Any]]) -> None:
    ours, theirs = FUNCTIONS[name]
    asked = 0
    for number, sample in enumerate(samples[name]):
        given = [LAYOUTS[layout](t) for t in tensors_of(sample)]
        exact = as_function(theirs, in_float64(sample))
        exact.exact = True  # type: ignore[attr-defined]
        for what, question in questions(given, thorough=layout in ("as it is", "negative")):
            found = [outcome(question, c) for c in (as_function(ours, sample), as_function(theirs, sample), exact)]
            hold(*found, exponent(name, given), f"{name} {number} {what}")
            asked += 1
    assert asked > 4


def in_float64(sample: Any) -> Any:
    wide = copy.copy(sample)
    wide.kwargs = {k: torch.float64 if isinstance(v, torch.dtype) else v for k, v in sample.kwargs.items()}
    return wide
