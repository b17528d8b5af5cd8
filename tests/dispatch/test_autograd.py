"""The functions that autograd records in eager mode: the gradients of torch.library's own path, and its limits."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import kernelworks as kw
from kernelworks.dispatch.op import OPS


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


CALLS = {
    "rms_norm": (lambda x, w: kw.rms_norm(x, w, eps=1e-6), ((5, 64), (64,))),
    "rms_norm_no_weight": (lambda x: kw.rms_norm(x, None, eps=1e-6), ((5, 64),)),
    "rms_norm_residual": (lambda x, w, r: kw.rms_norm(x, w, eps=1e-6, residual=r), ((5, 64), (64,), (5, 64))),
    "rms_norm_sum_alone": (lambda x, w, r: kw.rms_norm(x, w, eps=1e-6, residual=r)[1], ((5, 64), (64,), (5, 64))),
    "layer_norm": (lambda x, w, b: kw.layer_norm(x, w, b, eps=1e-5), ((5, 64), (64,), (64,))),
    "silu_mul": (kw.silu_mul, ((5, 64), (5, 64))),
    "gelu": (kw.gelu, ((5, 64),)),
    "softmax": (kw.softmax, ((5, 64),)),
    "sum": (kw.sum, ((5, 64),)),
    "sum_down": (lambda x: kw.sum(x, 0), ((5, 64),)),
    "sum_kept": (lambda x: kw.sum(x, 1, keepdim=True), ((3, 5, 64),)),
    "linear": (kw.linear, ((5, 64), (32, 64))),
    "attention": (lambda q, k: kw.attention(q, k, k, causal="top_left"), ((1, 4, 9, 16), (1, 2, 9, 16))),
    "rope_first_alone": (
        lambda q, k: kw.rope(q, k, torch.ones(9, 16), torch.ones(9, 16))[0], ((1, 4, 9, 16), (1, 2, 9, 16))
    ),
}  # fmt: skip


def gradients(call, inputs: list[torch.Tensor]) -> tuple[str, list[torch.Tensor]]:
    result = call(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    seeds = [torch.linspace(-1, 1, o.numel()).reshape(o.shape) for o in outputs]
    found = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
    return outputs[0].grad_fn.name(), [torch.zeros(()) if g is None else g for g in found]


@pytest.mark.parametrize("name", CALLS)
def test_same_gradients_as_through_torch_library(name, monkeypatch) -> None:
    call, shapes = CALLS[name]
    inputs = leaves(*shapes)
    node, direct = gradients(call, inputs)
    assert node.endswith("_functionBackward")
    assert node.removesuffix("_functionBackward") in OPS
    monkeypatch.setattr("torch.autograd.profiler._is_profiler_enabled", True)
    node, through = gradients(call, inputs)
    assert not node.endswith("_functionBackward")
    for a, b in zip(direct, through, strict=True):
        assert a.shape == b.shape or not b.any()
        assert torch.equal(a.expand_as(b), b)


def test_only_the_gradients_asked_for() -> None:
    x, w = leaves((5, 64), (64,))
    kw.rms_norm(x.detach(), w, eps=1e-6).sum().backward()
    assert x.grad is None and w.grad is not None


def test_a_second_derivative() -> None:
    (x,) = leaves((5, 64))

    def twice(function):
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(twice(kw.gelu), twice(torch.nn.functional.gelu))


def test_checks_and_changed_inputs_still_raise() -> None:
    x, w = leaves((5, 64), (64,))
    with pytest.raises(TypeError, match="weight must have x's dtype"):
        kw.rms_norm(x, w.double(), eps=1e-6)
    y = x * 1
    out = kw.gelu(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_subclasses_and_modes_go_through_torch_library() -> None:
    class Watched(torch.Tensor):
        pass

    x, w = leaves((5, 64), (64,))
    assert "_function" not in kw.gelu(x.as_subclass(Watched)).grad_fn.name()
    with FlopCounterMode(display=False):
        assert "_function" not in kw.rms_norm(x, w, eps=1e-6).grad_fn.name()


def test_checkpointing() -> None:
    x, w = leaves((5, 64), (64,))
    _, (want, _) = gradients(lambda x, w: kw.gelu(kw.rms_norm(x, w, eps=1e-6)), [x, w])
    _, (got, _) = gradients(
        lambda x, w: checkpoint(lambda a: kw.gelu(kw.rms_norm(a, w, eps=1e-6)), x, use_reentrant=False), [x, w]
    )
    assert torch.equal(got, want)
