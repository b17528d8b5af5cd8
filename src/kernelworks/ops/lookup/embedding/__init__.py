"""Rows of a table, looked up by id."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.lookup.embedding.contract import CONTRACT
from kernelworks.ops.lookup.embedding.mutants import MUTANTS

__all__ = ["OP", "embedding"]


@overload
def embedding(ids: Array, weight: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def embedding(
    input: Array,
    weight: Array,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def embedding(
    ids: Any = ABSENT, weight: Any = ABSENT, *rest: Any, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """Rows of a table: ``output[..., :] = weight[ids[...], :]``.

    Args:
        ids: any shape and strides, int64 or int32, each in [0, V).
        weight: [V, D], float32, bfloat16 or float16; rows may lie any distance apart.
        out: where to write: a contiguous tensor [*ids.shape, D] of weight's dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [*ids.shape, D], bit for bit the rows of weight.

    Error bound: none, the values are copied. Gradient of a row that n ids looked up: ``u |sum| + n 2^-24 sum |grad|``;
    the sum is kept in float32, in an order that follows from the ids alone: the same bits for any number of threads.
    Cost: no arithmetic; reads ids and the looked-up rows once and writes output once.
    Raises: IndexError for an id outside [0, V), before anything is written; on a GPU, where nothing waits for the
    answer, the row of such an id is NaN and the next call raises. TypeError, ValueError naming the argument;
    RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.embedding.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((ids, weight, *rest), torchs, {}, out, kernel)
    return OP.call(ids, weight, out, kernel)


def _refuse(ids: Tensor, position: int, V: int) -> None:
    found = ids.reshape(-1)[position].item()
    raise IndexError(f"ids must be in [0, {V}), weight's rows; got {found} at position {position}")


def _check_ids(ids: Tensor, V: int) -> None:
    flat = ids.reshape(-1)
    outside = (flat < 0) | (flat >= V)
    if bool(outside.any()):
        _refuse(ids, int(outside.nonzero()[0]), V)


def _rows(weight: Tensor) -> Tensor:
    return weight if weight.stride(1) == 1 or weight.shape[1] <= 1 else weight.contiguous()


def _forward(lib: Any, ids: Tensor, weight: Tensor, out: Any = None) -> Tensor:
    output: Tensor = torch.empty((*ids.shape, weight.shape[1]), dtype=weight.dtype) if out is None else out
    ids = ids.contiguous()
    kernel, nth = choose_threads(lib.embedding, output.numel())
    outside = kernel(output, ids, _rows(weight), nth)
    if outside >= 0:
        _refuse(ids, outside, weight.shape[0])
    return output


def _backward(lib: Any, grad: Tensor, ids: Tensor, weight: Tensor, needs: list[bool], out: Any = None) -> Tensor:
    grad_weight: Tensor = torch.empty(weight.shape, dtype=weight.dtype) if out is None else out
    rows = grad.reshape(ids.numel(), weight.shape[1])
    sorted_ids, places = torch.sort(ids.reshape(-1).long(), stable=True)
    kernel, nth = choose_threads(lib.embedding_backward, grad_weight.numel() + rows.numel())
    kernel(grad_weight, _rows(rows), sorted_ids, places, nth)
    return grad_weight


def _composite(ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(ids, weight)


def _aten(ids: Any, weight: Any) -> Any:
    return aten("embedding", weight, ids)


def _torch(ids: Tensor, weight: Tensor, out: Any = None) -> Any:
    _check_ids(ids, weight.shape[0])
    return into(_composite(ids, weight), out)


def _torch_backward(
    grad: Tensor, ids: Tensor, weight: Tensor, needs: list[bool], out: Any = None, compute: torch.dtype = torch.float32
) -> Tensor:
    total = torch.zeros(weight.shape, dtype=compute, device=weight.device)
    total.index_add_(0, ids.reshape(-1), grad.reshape(ids.numel(), weight.shape[1]).to(compute))
    return total.to(weight.dtype)


def _reference(ids: Tensor, weight: Tensor, out: Any = None) -> Any:
    _check_ids(ids, weight.shape[0])
    return into(weight[ids.long()], out)


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent),
        *cpp_kernels(Path(__file__).parent, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        "embedding(Tensor ids, Tensor weight, str? op_kernel=None) -> Tensor",
        lambda ids, weight: weight.new_empty((*ids.shape, weight.shape[1])),
    ),
    backward=Pass(
        "embedding_backward(Tensor grad_output, Tensor ids, Tensor weight, bool[] needs, "
        "str? op_kernel=None) -> Tensor",
        lambda grad, ids, weight, needs: weight.new_empty(weight.shape),
        returns=("weight",),
    ),
    composite=_composite,
    aten=_aten,
    passthrough=Passthrough("embedding(weight, ids)", ("ids", "weight"), names={"embedding": torch.embedding}),
    mutants=MUTANTS,
)


def _ours(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``padding_idx`` says that one row takes no gradient: where none is taken, it says nothing."""
    trained = torch.is_grad_enabled() and weight.requires_grad
    if max_norm is not None:
        return "max_norm scales rows of the weight in place"
    if trained and (padding_idx is not None or scale_grad_by_freq or sparse):
        return "padding_idx, scale_grad_by_freq and sparse ask for another gradient"
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        return "padding_idx is no row of the weight"
    return input, weight


TORCH_SIGNATURE = TorchSignature(
    OP, F.embedding, _ours, {"input": "ids"}, no_swap_reason="torch already reads the rows at the rate of memory"
)  # fmt: skip
