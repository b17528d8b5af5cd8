"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.memory_layout import new_output
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.position.rope.contract import (
    CONTRACT,
    apply_rotation,
    rotate_half,
    rotate_half_back,
    tables_per_head,
)
from kernelworks.ops.position.rope.mutants import MUTANTS

__all__ = ["OP", "rope"]


def rope(
    q: Array,
    k: Array,
    cos: Array,
    sin: Array,
    *,
    interleaved: bool = False,
    out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]:
    """Rotary position embedding: every pair (a, b) of a head turns by the angle of its position.

    ``a' = a cos_a - b sin_a``, ``b' = b cos_b + a sin_b``. With R the tables' width, element j is paired with j + R/2
    (Llama, Qwen), or 2j with 2j + 1 where ``interleaved`` (GPT-J, RoFormer). Elements from R on are copied.

    Args:
        q: [B, H, L, D], float32, bfloat16 or float16, any strides (a transposed [B, L, H, D] costs no copy).
        k: [B, Hkv, L, D] of q's dtype.
        cos: [L, R] or [B, L, R] (B may be 1) of q's dtype or float32; R even, at most D. Each element has its own
            entry, as transformers lays them out: for halves the two halves are usually equal.
        sin: like cos. Neither table is differentiated.
        interleaved: which elements are paired.
        out: where to write: a pair of contiguous tensors like q and k.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(q', k')``, with the strides of q and k where those are dense. Their gradients are laid out as [B, L, H, D].

    Error bound: ``u |output| + 2 * 2^-24 (|a cos| + |b sin|)``, u the unit roundoff of the dtype: one rounding.
    Cost: 3 flop an element; reads q, k and the tables once and writes q' and k' once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Su et al. 2021, arXiv:2104.09864.
    """
    result: tuple[Array, Array] = OP.call(q, k, cos, sin, interleaved, out, kernel)
    return result


def _flat(x: Tensor) -> Tensor:
    """With unit stride in the last dimension, which is all that kernels ask."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _forward(lib: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Any = None) -> Any:
    q, k = _flat(q), _flat(k)
    to_q, to_k = (torch.empty_like(q), torch.empty_like(k)) if out is None else out
    kernel, nth = choose_threads(lib.rope, q.numel() + k.numel())
    kernel(to_q, to_k, q, k, _flat(cos), _flat(sin), interleaved, False, nth)
    return to_q, to_k


def _backward(
    lib: Any, grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from_q, from_k = _flat(grad_q), _flat(grad_k)
    to_q, to_k = (new_output(from_q), new_output(from_k)) if out is None else out
    kernel, nth = choose_threads(lib.rope, from_q.numel() + from_k.numel())
    kernel(to_q, to_k, from_q, from_k, _flat(cos), _flat(sin), interleaved, True, nth)
    return to_q, to_k


def _into_like(made: tuple[Tensor, ...], q: Tensor, k: Tensor, out: Any) -> Any:
    """In ``out``, or in tensors strided as q and k are."""
    return into(made, (torch.empty_like(_flat(q)), torch.empty_like(_flat(k))) if out is None else out)


def _composite(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """As transformers writes it, in the tensors' own dtype."""
    c, s, R = tables_per_head(cos), tables_per_head(sin), cos.shape[-1]

    def one(x: Tensor) -> Tensor:
        if x.shape[-1] == R:
            return (x * c + rotate_half(x, interleaved) * s).to(x.dtype)
        part = x[..., :R]
        return torch.cat(((part * c + rotate_half(part, interleaved) * s).to(x.dtype), x[..., R:]), -1)

    return one(q), one(k)


def _torch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Any = None) -> Any:
    return _into_like(_composite(q, k, cos, sin, interleaved), q, k, out)


def _torch_backward(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, needs: list[bool], out: Any = None,
    compute: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    c, s, R = tables_per_head(cos).to(compute), tables_per_head(sin).to(compute), cos.shape[-1]

    def one(g: Tensor) -> Tensor:
        wide = g.to(compute)
        if g.shape[-1] == R:
            return (wide * c + rotate_half_back(wide * s, interleaved)).to(g.dtype)
        part = wide[..., :R]
        return torch.cat((part * c + rotate_half_back(part * s, interleaved), wide[..., R:]), -1).to(g.dtype)

    made = tuple(one(g).transpose(1, 2).contiguous().transpose(1, 2) for g in (grad_q, grad_k))
    return into(made, out)  # type: ignore[no-any-return]


def _reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, ...]:
    return apply_rotation(_flat(q), cos, sin, interleaved), apply_rotation(_flat(k), cos, sin, interleaved)


def _reference_forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Any = None) -> Any:
    made = in_float64(_reference, CONTRACT.results_in_order)(q, k, cos, sin, interleaved)
    return _into_like(made, q, k, out)


def _fake(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(_flat(q)), torch.empty_like(_flat(k))


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent),
        *cpp_kernels(Path(__file__).parent, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference_forward, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        "rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved, str? op_kernel=None) -> (Tensor, Tensor)",
        _fake,
    ),
    backward=Pass(
        "rope_backward(Tensor grad_q_turned, Tensor grad_k_turned, Tensor cos, Tensor sin, bool interleaved, "
        "bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
        lambda grad_q, grad_k, cos, sin, interleaved, needs: (new_output(grad_q), new_output(grad_k)),
        returns=("q", "k"),
    ),
    composite=_composite,
    mutants=MUTANTS,
)
OP.pattern = "rotary"
