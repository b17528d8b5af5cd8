"""What calls write into: versions, overlap, refusals; the same on a first call, a planned one, and while watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from calls import CALLS, COS, SIN, D, L
from eligible import KERNELS, only
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import kernelworks as kw
from kernelworks.dispatch.op import OPS

WITH_OUT = [name for name, called in CALLS.items() if called.out]


@pytest.fixture(autouse=True, scope="module")
def our_kernels() -> Iterator[None]:
    """Kernels of ours that read memory, whatever is verified on this machine."""
    with only(KERNELS[-1]) if KERNELS else contextlib.nullcontext():
        yield


class Watching(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    with torch.profiler.profile():
        yield


WORLDS: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "profiler": profiled,
    "dispatch mode": lambda: FlopCounterMode(display=False),
    "function mode": Watching,
    "another default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
}
PLANNED = {"first call": False, "planned": True}


def plan(name: str, wanted: bool) -> None:
    called = CALLS[name]
    OPS[next(op for op in OPS if name.startswith(op.rstrip("_")))].forget()
    if wanted:
        for _ in range(2):
            called.ours(*called.tensors(), out=torch.empty_like(called.theirs(*called.tensors())))


@pytest.fixture(params=list(PLANNED))
def planned(request: pytest.FixtureRequest) -> bool:
    return PLANNED[request.param]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", WITH_OUT)
def test_out_is_written_checked_and_known_to_autograd(name: str, world: str, planned: bool) -> None:
    called = CALLS[name]
    plan(name, planned)
    tensors = called.tensors(3)
    want = called.theirs(*tensors)
    out = torch.full_like(want, torch.nan)
    before = out._version
    with WORLDS[world]():
        assert called.ours(*tensors, out=out) is out
    torch.testing.assert_close(out, want, rtol=2e-4, atol=2e-5)
    assert out._version > before
    if world == "inference mode":
        return
    weird = [
        (torch.full_like(want, torch.nan, dtype=torch.float64), TypeError, "dtype"),
        (torch.full((*want.shape, 2), torch.nan), ValueError, "shape"),
        (torch.full_like(want, torch.nan, requires_grad=True), RuntimeError, "autograd"),
    ]
    if want.dim():
        weird.append((torch.full((*want.shape, 2), torch.nan)[..., 0], ValueError, "contiguous"))
        weird.append((torch.full(want.shape[:-1], torch.nan)[..., None].expand(want.shape), ValueError, "contiguous"))
    with torch.inference_mode():
        kept = torch.full_like(want, torch.nan)
    weird.append((kept, RuntimeError, "inference"))
    for out, error, text in weird:
        with WORLDS[world](), pytest.raises(error, match=text):
            called.ours(*tensors, out=out)
        assert out.isnan().all()
    with WORLDS[world](), pytest.raises(RuntimeError, match="autograd"):
        called.ours(tensors[0].clone().requires_grad_(), *tensors[1:], out=torch.empty_like(want))


@pytest.mark.parametrize("name", WITH_OUT)
def test_a_saved_tensor_that_is_written_is_an_error(name: str, planned: bool) -> None:
    called = CALLS[name]
    plan(name, planned)
    tensors = called.tensors(3)
    a, saved = torch.ones(()).requires_grad_(), torch.zeros_like(called.theirs(*tensors))
    y = (a * saved).sum()
    called.ours(*tensors, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("world", ["nothing", "profiler", "dispatch mode"])
@pytest.mark.parametrize(
    ("name", "shapes"),
    {
        "gelu": ((L, D),), "gelu_erf": ((L, D),), "silu_mul": ((L, D), (L, D)), "softmax": ((L, D),),
        "softmax_first": ((L, D),), "linear_no_bias": ((D, D), (D, D)), "linear": ((D, D), (D, D), (D,)),
        "layer_norm": ((L, D), (D,), (D,)), "rms_norm": ((L, D), (D,)), "attention": ((1, 2, L, D),) * 3,
    }.items(),
)  # fmt: skip
def test_out_that_is_or_overlaps_an_input(name: str, shapes: tuple[tuple[int, ...], ...], world: str) -> None:
    """Every input of the result's size as ``out``, and every input shifted into it by one element or one row."""
    called = CALLS[name]
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(*shape, generator=generator) for shape in shapes]
    want = called.theirs(*plain)
    for _ in range(2):  # the second time with a plan
        for place, given in enumerate(plain):
            for shift in (0, 1, D) if given.numel() == want.numel() else (0, 1):
                storage = torch.zeros(max(given.numel(), want.numel()) + shift)
                seen = storage[shift : shift + given.numel()].view(given.shape).copy_(given)
                out = storage[: want.numel()].view(want.shape)
                with WORLDS[world]():
                    called.ours(*(seen if i == place else t for i, t in enumerate(plain)), out=out)
                torch.testing.assert_close(out, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("world", ["nothing", "profiler"])
def test_outputs_crossed_and_outputs_that_share(world: str) -> None:
    q, k = torch.randn(1, 2, L, D), torch.randn(1, 2, L, D)
    want = kw.rope(q.clone(), k.clone(), COS, SIN)
    for _ in range(2):
        a, b = q.clone(), k.clone()
        with WORLDS[world]():
            kw.rope(a, b, COS, SIN, out=(b, a))
        torch.testing.assert_close((b, a), want)
        both = torch.full((2 * q.numel() - 1,), torch.nan)
        shared = both[: q.numel()].view(q.shape), both[-q.numel() :].view(q.shape)
        with WORLDS[world](), pytest.raises(ValueError, match="share no memory"):
            kw.rope(q, k, COS, SIN, out=shared)
        assert both.isnan().all()
        x, w, r = torch.randn(L, D), torch.randn(D), torch.randn(L, D)
        norm, total = kw.rms_norm(x, w, eps=1e-6, residual=r)
        x2, r2 = x.clone(), r.clone()
        with WORLDS[world]():
            kw.rms_norm(x2, w, eps=1e-6, residual=r2, out=(r2, x2))
        torch.testing.assert_close((r2, x2), (norm, total))


# ---------------------------------------------------------------- steps in place


def stepped(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    options = {"step": 3, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
    kw.adamw_([p], [g], [m], [v], **options)


def lists() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(7, 5, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_step_is_known_to_autograd(place: int) -> None:
    for _ in range(2):
        tensors = lists()
        a = torch.ones((), requires_grad=True)
        y = (a * tensors[place]).sum()
        stepped(*tensors)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


@pytest.mark.parametrize("unusual", [0, 1, 2, 3])
def test_a_step_of_tensors_with_a_negative_bit(unusual: int) -> None:
    want = lists()
    stepped(*want)
    for _ in range(2):
        tensors = lists()
        tensors[unusual] = torch._neg_view(tensors[unusual].neg())
        stepped(*tensors)
        for a, b in zip(tensors, want, strict=True):
            torch.testing.assert_close(a.resolve_neg(), b)


def test_a_step_without_a_gradient_and_of_inference_tensors() -> None:
    stepped(*lists())
    none, zero = lists(), lists()
    none[1].zero_()
    zero[1] = torch._efficientzerotensor(zero[1].shape)
    stepped(*none)
    stepped(*zero)
    for a, b in zip(none[::2], zero[::2], strict=True):
        torch.testing.assert_close(a, b)
    with torch.inference_mode():
        kept = lists()
        stepped(*kept)
    copies = [t.clone() for t in kept]
    with pytest.raises(RuntimeError, match="inference"):
        stepped(*kept)
    for a, b in zip(kept, copies, strict=True):
        assert torch.equal(a, b)


# ---------------------------------------------------------------- small types


X, W = torch.randn(L, D), torch.randn(D)
Q = torch.randn(1, 2, L, D)
SMALL = {
    "eps": (lambda v: kw.rms_norm(X, W, eps=v), (1, 1.0), (True, numpy.float32(1), "1", None, 1j)),
    "eps of layer_norm": (lambda v: kw.layer_norm(X, W, W, eps=v), (1, 1.0), (True, numpy.float32(1), None)),
    "dim": (lambda v: kw.softmax(X, dim=v), (1, 0), (1.0, True, 0.0, False, numpy.int64(1), None)),
    "window": (lambda v: kw.attention(Q, Q, Q, causal="top_left", window=v), (1, 2), (True, 1.0, numpy.int64(1))),
    "scale": (lambda v: kw.attention(Q, Q, Q, scale=v), (1, 1.0), (True, numpy.float32(1), "1")),
    "softcap": (lambda v: kw.attention(Q, Q, Q, softcap=v), (1, 1.0), (True, numpy.float32(1), "1", 0.0, -1.0)),
    "with_lse": (lambda v: kw.attention(Q, Q, Q, with_lse=v), (True, False), (1, 0, 1.0, None)),
    "interleaved": (lambda v: kw.rope(Q, Q, COS, SIN, interleaved=v), (True, False), (1, 0, 1.0, None)),
    "ignore_index": (
        lambda v: kw.cross_entropy(X, torch.ones(L, dtype=torch.int64), ignore_index=v), (0,), (False, 0.0, None)
    ),
    "step": (
        lambda v: kw.adamw_(*([t] for t in lists()), step=v, lr=0.1, beta1=0.9, beta2=0.9, eps=0.1, weight_decay=0.0),
        (1, 2), (True, 1.0, 2.0, None),
    ),
    "lr": (
        lambda v: kw.adamw_(*([t] for t in lists()), step=1, lr=v, beta1=0.9, beta2=0.9, eps=0.1, weight_decay=0.0),
        (1, 0.1), (True, "1", None, float("nan")),
    ),
    "maximize": (
        lambda v: kw.adamw_(
            *([t] for t in lists()), step=1, lr=0.1, beta1=0.9, beta2=0.9, eps=0.1, weight_decay=0.0, maximize=v
        ),
        (True, False), (1, 0, 0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_small_types_are_refused_after_equal_values_were_planned(name: str) -> None:
    call, right, wrong = SMALL[name]
    for watched in (contextlib.nullcontext, profiled):
        for value in right * 2:
            call(value)
        for value in wrong:
            with watched(), pytest.raises((TypeError, ValueError)):
                call(value)


# ---------------------------------------------------------------- results


def written_result(function: Callable[..., Tensor], tensors: list[Tensor], **more: Any) -> list[Tensor] | str:
    """The gradients through a result that is written in place, or what torch says of it."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    try:
        y = function(*leaves, **more)
        y.mul_(2.0)
        return list(torch.autograd.grad(y.sum(), leaves))
    except RuntimeError as error:
        return str(error).partition(":")[0]


@pytest.mark.parametrize("through", ["C++", "Python"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_OUT)
def test_a_result_may_be_written_in_place(
    name: str, dtype: torch.dtype, through: str, request: pytest.FixtureRequest
) -> None:
    """Also one that torch's kernel makes as a view, as it makes products of more than two dimensions."""
    if through == "Python":
        request.getfixturevalue("through_python")
    called = CALLS[name]
    tensors = [t.to(dtype) for t in called.tensors()]
    if name.startswith("linear") and "cross" not in name:
        tensors[0] = torch.stack((tensors[0], tensors[0].neg()))
    want = written_result(called.theirs, tensors)
    for kernel in ("torch", None):
        got = written_result(called.ours, tensors, kernel=kernel)
        if isinstance(got, str):  # a backward that reads the result refuses; torch's reads another tensor at times
            assert "modified by an inplace operation" in got
        elif not isinstance(want, str):
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, torch.as_tensor(b), rtol=2e-2, atol=2e-2)
