"""Kernels that make gradients with their forward: when they are used, and what becomes of what they keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernelworks.contract import Kernel
from kernelworks.dispatch.op import OPS, Op

CALLS: list[str] = []


def _training(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, needs: list[bool]) -> Any:
    CALLS.append("training")
    reference = OPS["cross_entropy"].kernel("reference")
    loss = reference.load("forward")(logits, target, ignore_index, reduction)
    one = torch.ones_like(loss)
    return loss, reference.load("backward")(one, logits, target, ignore_index, reduction)


def _resumed(kept: Tensor, grad: Tensor) -> tuple[Tensor]:
    CALLS.append("resumed")
    return (kept if bool(grad == 1) else kept.mul_(grad),)


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Op:
    """cross_entropy with a kernel that trains."""
    found = OPS["cross_entropy"]
    passes = {p: found.kernel("reference").load(p) for p in ("forward", "backward")}
    passes |= {"training": _training, "resumed": _resumed}
    kernel = Kernel(name="kept", target="kept", load=passes.__getitem__, passes=tuple(passes))
    monkeypatch.setattr(found, "kernels", (kernel, *found.kernels))
    CALLS.clear()
    return found


def _case() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits, target = torch.randn(5, 33, generator=generator), torch.tensor([1, 2, -100, 32, 0])
    leaf = logits.double().requires_grad_()
    torch.nn.functional.cross_entropy(leaf, target).backward()
    assert leaf.grad is not None
    return logits.requires_grad_(), target, leaf.grad


@pytest.mark.parametrize("flow", [1.0, -2.5])
def test_gradients_come_from_the_forward(op: Op, flow: float) -> None:
    logits, target, want = _case()
    (op(logits, target, -100, "mean", kernel="kept") * flow).backward()
    assert CALLS == ["training", "resumed"]
    assert logits.grad is not None and torch.allclose(logits.grad.double(), want * flow, atol=1e-6)


def test_what_was_kept_becomes_the_gradient_of_a_leaf_without_a_copy(op: Op) -> None:
    logits, target, _ = _case()
    loss = op(logits, target, -100, "mean", kernel="kept")
    address = loss.grad_fn.kept.data_ptr()
    loss.backward()
    assert logits.grad is not None and logits.grad.data_ptr() == address


def test_a_graph_walked_twice_takes_the_backward_first(op: Op) -> None:
    logits, target, want = _case()
    loss = op(logits, target, -100, "mean", kernel="kept")
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0]
    first.zero_()  # the caller's own: what is kept stays as it is
    second = torch.autograd.grad(loss, logits)[0]
    assert CALLS == ["training", "resumed"]
    assert torch.allclose(second.double(), want, atol=1e-6)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, logits)


def test_without_gradients_or_by_another_kernel_nothing_is_kept(op: Op) -> None:
    logits, target, want = _case()
    with torch.no_grad():
        op(logits, target, -100, "mean", kernel="kept")
    op(logits, target, -100, "mean", kernel="reference").backward()
    assert CALLS == []
    assert logits.grad is not None and torch.allclose(logits.grad.double(), want, atol=1e-6)


def test_the_dispatcher_stops_at_the_kernels_that_need_no_certificate(op: Op) -> None:
    logits, target, _ = _case()
    assert op.training_passes((logits, target, -100, "mean"), "kept") is not None
    assert op.training_passes((logits, target, -100, "mean"), None) is None


def test_inputs_changed_in_between_are_noticed(op: Op) -> None:
    logits, target, _ = _case()
    x = logits * 1.0
    loss = op(x, target, -100, "mean", kernel="kept")
    x.detach().add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
