"""Calls that no kernel may serve from memory: every kind of tensor and of transform, for every op.

Each is made after the same call on plain tensors, so that a plan for it is at hand and would be found by shape alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from calls import CALLS, Called
from eligible import KERNELS, only
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

from kernelworks.dispatch.plans import Plan, Plans, forget_all

NAMES = list(CALLS)


@pytest.fixture(autouse=True, scope="module")
def our_kernels() -> Iterator[None]:
    """Kernels of ours that read memory, whatever is verified on this machine."""
    with only(KERNELS[-1]) if KERNELS else contextlib.nullcontext():
        yield


class Subclass(torch.Tensor):
    """A subclass that torch's functions keep."""


TENSORS = {
    "negative bit": lambda x: torch._neg_view(x.neg()),
    "imaginary part of a conjugate": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
    "strided": lambda x: torch.stack((x, x), -1)[..., 0],
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "subclass": lambda x: x.as_subclass(Subclass),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}  # fmt: skip


def close(got, want) -> None:
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)


def planned(name: str) -> tuple[Called, list[Tensor]]:
    """An op's call with its plan made, without and with gradients, and tensors for it."""
    called = CALLS[name]
    tensors = called.tensors()
    for _ in range(2):
        called.ours(*tensors)
        called.ours(*(t.clone().requires_grad_() for t in tensors)).sum().backward()
    return called, tensors


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("name", NAMES)
def test_unusual_tensors_forward_and_backward(name: str, kind: str) -> None:
    called, tensors = planned(name)
    for place in range(len(tensors)):
        given = [TENSORS[kind](t) if i == place else t for i, t in enumerate(tensors)]
        copies = [t.as_subclass(Tensor).clone().resolve_neg().contiguous() for t in given]
        want = called.theirs(*copies)
        got = called.ours(*given)
        assert (kind == "subclass") == (type(got) is Subclass)
        close(got.as_subclass(Tensor), want)
        wants = [t.clone().requires_grad_() for t in copies]
        leaves = [t.clone().requires_grad_() for t in copies]
        changed = kind not in ("parameter", "expanded")  # these two are leaves of their own, or lose values
        flow = torch.linspace(-1, 1, want.numel()).reshape(want.shape)
        theirs = torch.autograd.grad(called.theirs(*wants), wants, flow)
        for other in (flow, torch._neg_view(flow.neg())):
            inputs = [TENSORS[kind](t) if i == place and changed else t for i, t in enumerate(leaves)]
            ours = torch.autograd.grad(called.ours(*inputs).as_subclass(Tensor), leaves, other)
            for a, b in zip(ours, theirs, strict=True):
                close(a, b)


# ---------------------------------------------------------------- no kernel is reached


closed: list[bool] = []  # while it holds something, no plan may be run


@pytest.fixture(autouse=True)
def _plans_that_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every plan that is kept, of every op and pass, fails if it is run while ``no_kernels`` holds."""
    keep = Plans.keep

    def kept(plans: Plans, *key_and_plan: Any) -> None:
        *key, plan = key_and_plan
        whole = dataclasses.replace(plan, call=run(plan.call), run=run(plan.run)) if isinstance(plan, Plan) else plan
        keep(plans, *key, whole)

    def run(call: Any) -> Any:
        def closing(*given: Any, **named: Any) -> Any:
            assert not closed, "a kernel was handed what is not plain memory"
            return call(*given, **named)

        return closing

    monkeypatch.setattr(Plans, "keep", kept)
    forget_all()
    yield
    forget_all()


@contextlib.contextmanager
def no_kernels() -> Iterator[None]:
    closed.append(True)
    try:
        yield
    finally:
        closed.clear()


def wrapped(transform):
    """A call made inside a transform, which hands it wrappers."""
    return lambda call, tensors: transform(call)(*tensors)


def inside_a_dual_level(call, tensors):
    with forward_ad.dual_level():
        return call(*tensors)


def of_tensors(make):
    return lambda call, tensors: [call(*(make(t) if i == place else t for i, t in enumerate(tensors)))
                                  for place in range(len(tensors))]  # fmt: skip


UNREACHED = {
    "zero tensor": of_tensors(lambda t: torch._efficientzerotensor(t.shape)),
    "subclass": of_tensors(lambda t: t.as_subclass(Subclass)),
    "sparse": of_tensors(lambda t: t.to_sparse()),
    "mkldnn": of_tensors(lambda t: t.to_mkldnn()),
    "nested": of_tensors(lambda t: torch.nested.nested_tensor([t, t])),
    "meta": of_tensors(lambda t: t.to("meta")),
    "vmap": wrapped(lambda f: lambda *t: torch.vmap(f)(*(torch.stack((v, v)) for v in t))),
    "grad": wrapped(lambda f: torch.func.grad(lambda *t: f(*t).sum())),
    "jvp": wrapped(lambda f: lambda *t: torch.func.jvp(f, t, t)),
    "functionalize": wrapped(torch.func.functionalize),
    "another level's transform": wrapped(lambda f: lambda *t: torch.vmap(lambda _: f(*t))(torch.zeros(2))),
    "trace": wrapped(lambda f: lambda *t: torch.jit.trace(f, t, check_trace=False)),
    "dual level": inside_a_dual_level,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("graded", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("kind", UNREACHED)
@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_is_reached(name: str, kind: str, graded: bool) -> None:
    called, tensors = planned(name)
    says_so = contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError)  # torch may have no such function
    with no_kernels(), torch.set_grad_enabled(graded), says_so:
        UNREACHED[kind](called.ours, tensors)


@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_is_reached_in_a_backward(name: str) -> None:
    called, tensors = planned(name)
    leaves = [t.clone().requires_grad_() for t in tensors]
    y = called.ours(*leaves)
    flow = torch.ones_like(y)
    with no_kernels():
        torch.autograd.grad(y, leaves, torch._efficientzerotensor(y.shape), retain_graph=True)
        torch.autograd.grad(y, leaves, flow, retain_graph=True, create_graph=True)
        torch.autograd.grad(y, leaves, torch.stack((flow, flow)), retain_graph=True, is_grads_batched=True)
        with forward_ad.dual_level():
            torch.autograd.grad(y, leaves, forward_ad.make_dual(flow, flow))


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_without_memory(name: str) -> None:
    called, tensors = planned(name)
    leaves = [t.clone().requires_grad_() for t in tensors]
    y = called.ours(*leaves)
    for g in torch.autograd.grad(y, leaves, torch._efficientzerotensor(y.shape)):
        assert not torch.as_tensor(g).resolve_neg().clone().any()


@pytest.mark.parametrize("name", NAMES)
def test_forward_mode(name: str) -> None:
    called, tensors = planned(name)
    tangents = called.tensors(1)
    close(torch.func.jvp(called.ours, tuple(tensors), tuple(tangents))[1],
          torch.func.jvp(called.theirs, tuple(tensors), tuple(tangents))[1])  # fmt: skip
    recorded = [t.clone().requires_grad_() for t in tensors]
    with forward_ad.dual_level():
        for inputs in (tensors, recorded):
            duals = [forward_ad.make_dual(t, d) for t, d in zip(inputs, tangents, strict=True)]
            ours, theirs = (forward_ad.unpack_dual(f(*duals)).tangent for f in (called.ours, called.theirs))
            assert ours is not None
            close(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_a_tangent_that_arrives_in_the_backward(name: str) -> None:
    called, tensors = planned(name)
    found = []
    for function in (called.ours, called.theirs):
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = function(*leaves)
        with forward_ad.dual_level():
            flow = forward_ad.make_dual(torch.ones_like(y), torch.linspace(0, 1, y.numel()).reshape(y.shape))
            gradients = torch.autograd.grad(y, leaves, flow)
            found.append([forward_ad.unpack_dual(g).tangent for g in gradients])
    for a, b in zip(*found, strict=True):
        assert a is not None
        close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_transforms(name: str) -> None:
    called, tensors = planned(name)
    stacked = [torch.stack((t, t.neg(), t * 0.5)) for t in tensors]
    every = tuple(range(len(tensors)))

    def loss(function):
        return lambda *inputs: function(*inputs).square().sum()

    def batched(function, first):
        return torch.vmap(function, (0, *(None if first else 0 for _ in tensors[1:])))

    for first in (False, True):
        inputs = [stacked[0], *(tensors if first else stacked)[1:]]
        close(batched(called.ours, first)(*inputs), batched(called.theirs, first)(*inputs))
        gots, wants = (batched(torch.func.grad(loss(f), every), first)(*inputs) for f in (called.ours, called.theirs))
        close(gots, wants)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        scalar = transform in (torch.func.grad, torch.func.hessian)
        functions = (loss(called.ours), loss(called.theirs)) if scalar else (called.ours, called.theirs)
        gots, wants = (transform(f)(*tensors) for f in functions)
        close(gots, wants)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name: str) -> None:
    called, tensors = planned(name)
    found = []
    for function in (called.ours, called.theirs):
        leaves = [t.clone().requires_grad_() for t in tensors]
        first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, create_graph=True)
        third = torch.autograd.grad(sum(g.sin().sum() for g in second), leaves)
        found.append((first, second, third))
    for ours, theirs in zip(*found, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.detach().abs().max() + 1))


@pytest.mark.parametrize("name", NAMES)
def test_batched_gradients(name: str) -> None:
    called, tensors = planned(name)
    found = []
    for function in (called.ours, called.theirs):
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = function(*leaves)
        flows = torch.linspace(-1, 1, 3 * y.numel()).reshape(3, *y.shape)
        found.append(torch.autograd.grad(y, leaves, flows, is_grads_batched=True))
    for a, b in zip(*found, strict=True):
        close(a, b)


@pytest.mark.parametrize("graded", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", NAMES)
def test_a_trace_holds_operators_and_no_answers(name: str, graded: bool) -> None:
    called, tensors = planned(name)
    with warnings.catch_warnings(), torch.set_grad_enabled(graded):
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(called.ours, tuple(t.clone().requires_grad_(graded) for t in tensors))
        others = called.tensors(7)
        close(traced(*others), called.theirs(*others))


ALONE = [n for n in NAMES if n not in ("embedding", "cross_entropy", "linear_cross_entropy", "rope")]  # no CPU tensor


@pytest.mark.parametrize("name", ALONE)
def test_tensors_without_data(name: str) -> None:
    called, tensors = planned(name)
    got = called.ours(*(t.to("meta") for t in tensors))
    assert got.is_meta and got.shape == called.theirs(*tensors).shape


@pytest.mark.parametrize("name", ALONE)
def test_tensors_that_stand_for_others(name: str) -> None:
    called, tensors = planned(name)
    got = called.ours(*(torch._to_functional_tensor(t) for t in tensors))
    assert torch._is_functional_tensor(got)
    close(torch._from_functional_tensor(got), called.theirs(*tensors))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in tensors]
        inside = called.ours(*fakes)
    for got in (inside, called.ours(*fakes)):
        assert type(got) is FakeTensor and got.shape == called.theirs(*tensors).shape
