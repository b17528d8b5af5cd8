"""Attention: grouped-query, causal both ways, sliding window, capped scores, for many queries and for one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from kernelworks.build.kernels import also_of, cuda_kernel, triton_kernel
from kernelworks.contract import Kernel, Request
from kernelworks.contract.memory_layout import new_output
from kernelworks.dispatch.passthrough import ExactShapes, Passthrough
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.machine.gpu_targets import HOPPER, is_other_than
from kernelworks.ops.attention.attention import simd
from kernelworks.ops.attention.attention.contract import CONTRACT, MAX_DIM, TEMPLATE
from kernelworks.ops.attention.attention.simd import readable
from kernelworks.ops.attention.attention.sm90 import guard as sm90_guard
from kernelworks.ops.attention.attention.sm90_backward import guard as sm90_backward_guard
from kernelworks.ops.attention.attention.sm90_backward_wide import guard as sm90_backward_wide_guard
from kernelworks.ops.attention.attention.sm90_decode import guard as sm90_decode_guard
from kernelworks.templates.attention.arguments import decline_wide_float32
from kernelworks.templates.attention.mutants import MUTANTS
from kernelworks.templates.attention.op import split_cpp_kernels
from kernelworks.templates.attention.torch_kernels import composite, cudnn_gradients, in_aten, native

__all__ = ["OP", "attention", "new_output", "readable"]

PACKAGE = Path(__file__).parent


@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: str | None = None, window: int | None = None, scale: float | None = None,
    softcap: float | None = None, sinks: Array | None = None, mask: Array | None = None,
    with_lse: Literal[False] = False, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: str | None = None, window: int | None = None, scale: float | None = None,
    softcap: float | None = None, sinks: Array | None = None, mask: Array | None = None, with_lse: Literal[True],
    out: tuple[Array, Array] | None = None, kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False, window: int | None = None,
    softcap: float | None = None, sinks: Array | None = None, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def attention(
    q: Any = ABSENT, k: Any = ABSENT, v: Any = ABSENT, *rest: Any, causal: str | None = None, window: int | None = None,
    scale: float | None = None, softcap: float | None = None, sinks: Any = None, mask: Any = None,
    with_lse: bool = False, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Scaled dot product attention; the matrix of scores is never formed.

    ``output[i] = sum_j p[i, j] v[j]`` with ``p[i, :] = softmax(scale q[i] . k[j])`` over the keys j that query i sees.
    A query that sees no key gives 0 (and takes no gradient), where softmax alone would give NaN.

    Args:
        q: [B, H, Lq, D], float32, bfloat16 or float16; D from 1 to 256. Any strides: [B, L, H, D] storage is read in
            place; only a last dimension that is not contiguous costs a copy.
        k, v: [B, Hkv, Lk, D] of q's dtype; H must be a multiple of Hkv, and query head h reads head h // (H / Hkv).
        causal: ``None``; ``"top_left"``: query i sees keys j <= i; ``"bottom_right"``: keys j <= i + Lk - Lq, so the
            last query sees the last key, as in decoding with a cache. The two agree where Lq = Lk.
        window: with ``causal``: how many keys a query looks back on, its own included: it sees the keys
            ``p - window < j <= p`` of its position p = i, or i + Lk - Lq.
        scale: what scores are multiplied by; 1 / sqrt(D) by default.
        softcap: above 0: scaled scores become ``softcap * tanh(score / softcap)`` before any is hidden, as in Gemma 2.
        sinks: [H] of q's dtype: a score of each head that joins the softmax's denominator alone, as in gpt-oss: weights
            add up to less than 1. Differentiable.
        mask: bool, [B, H, Lq, Lk] or 1 in any of them; True where a key is seen. Joined to causal and window by "and".
        with_lse: returns ``(output, lse)``; lse [B, H, Lq], float32, is the logarithm of the softmax's denominator
            (-inf where no key is seen, nor is there a sink). It is not differentiable.
        out: where to write: a contiguous tensor like q, or a pair with a contiguous float32 [B, H, Lq].
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        [B, H, Lq, D] of q's dtype, laid out as [B, Lq, H, D], so that ``.transpose(1, 2)`` is contiguous.

    A value (in v) that is not finite may show in the output of a query that does not see it, as in torch.

    Error bound: u |output| for the last rounding, and sum_j p |v| times 2^-24 ((D + 4) sum |q||k| scale + 8 max_j of
    that + 10 Lk/64 + 200), about; README.md has it exactly. Everything is computed in float32.
    Cost: 4 D flop and one exponential per pair of query and key, with ``softcap`` a tanh more; reads q, k, v and writes
    output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Vaswani et al. 2017, arXiv:1706.03762; Milakov and Gimelshein 2018, arXiv:1805.02867; ``softcap``: Gemma 2,
    2024, arXiv:2408.00118; ``sinks``: Xiao et al. 2023, arXiv:2309.17453, and gpt-oss, 2025, arXiv:2508.10925.
    """
    if torchs or rest:
        own = {"causal": causal, "window": window, "scale": scale, "mask": mask, "with_lse": with_lse}
        own |= {"softcap": softcap, "sinks": sinks}
        return TORCH_SIGNATURE((q, k, v, *rest), torchs, own, out, kernel)
    return OP.call(q, k, v, causal, window, scale, mask, with_lse, softcap, sinks, out, kernel)


def _plain_scores(request: Request) -> str | None:
    return None if request.args.get("softcap") is None else "takes no softcap"


def _plain_softmax(request: Request) -> str | None:
    return _plain_scores(request) or (None if request.args.get("sinks") is None else "takes no sinks")


def _hopper(guard: Callable[[Request], str | None]) -> Kernel:
    """The forward of many queries."""

    def plain(request: Request) -> str | None:
        return _plain_scores(request) or guard(request)

    return replace(cuda_kernel(PACKAGE, guard=plain, replays=("forward",)), inner="input")


def _hopper_decode(guard: Callable[[Request], str | None]) -> Kernel:
    """The forward of few, whose launch knows of no softcap and no sinks."""

    def plain(request: Request) -> str | None:
        return _plain_softmax(request) or guard(request)

    op_kernel = cuda_kernel(PACKAGE, source="sm90_decode.cu", name="sm90_decode", guard=plain)

    def without(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, out=None: run(*args[:-2], out=out)

    def prepare(pass_: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        call = op_kernel.prepare(pass_, args[:-2]) if op_kernel.prepare else None
        return None if call is None else without(call)

    return replace(op_kernel, load=lambda pass_: without(op_kernel.load(pass_)), prepare=prepare, inner="input")


def _hopper_backward(name: str, guard: Callable[[Request], str | None]) -> Kernel:
    """Hopper's gradients after Triton's forward, which its certificate speaks for too."""
    both = ("forward", "backward")
    op_kernel = cuda_kernel(PACKAGE, source=f"{name}.cu", name=name, guard=guard, passes=both, replays=("backward",))
    return also_of(replace(op_kernel, inner="input"), _triton())


@functools.cache
def _triton() -> Kernel:
    return triton_kernel(PACKAGE, inner="input", guard=_triton_guard)


def _triton_guard(request: Request) -> str | None:
    q = request.args["q"]
    if not q.shape[1]:
        return "there are no heads"
    # These may take triton_pipeline's launch; compiling it for another GPU would end the process.
    if q.dtype != torch.float32 and q.shape[3] in (64, 128) and is_other_than(HOPPER):
        return "with head_dim 64 and 128 in 16 bits it runs on compute capability 9.0 (Hopper)"
    return decline_wide_float32(request)


OP = TEMPLATE.op(
    CONTRACT,
    [
        _hopper(sm90_guard),
        _hopper_decode(sm90_decode_guard),
        _triton(),
        _hopper_backward("sm90_backward", sm90_backward_guard),
        _hopper_backward("sm90_backward_wide", sm90_backward_wide_guard),
        *split_cpp_kernels(
            PACKAGE, ("decode.cpp", "simd.cpp", "backward.cpp"), forward=simd.forward, backward=simd.backward, first=2,
            guard=_plain_softmax,
        ),
    ],
    composite=composite,
    native=native,
    gradients=cudnn_gradients,
    aten=in_aten,
    passthrough=Passthrough(
        "sdpa(q, k, v, None, 0.0, causal is not None, scale=scale, enable_gqa=to[1] != of[1])",
        ("q", "k", "v"),
        (
            "(causal is None or causal == 'top_left') and mask is window is softcap is sinks is None",
            "with_lse is False and (scale is None or scale.__class__ is float and isfinite(scale))",
            "forward_ad._current_level < 0",  # which differentiates the formula, not a kernel
        ),
        {"sdpa": F.scaled_dot_product_attention, "isfinite": math.isfinite, "forward_ad": forward_ad},
        exact=ExactShapes(
            (
                "(of := k.shape) == v.shape and (to := q.shape)[0] == of[0]",
                f"0 < to[3] == of[3] and to[3] <= {MAX_DIM}",
                "(to[1] == of[1] > 0 or of[1] > 0 == to[1] % of[1])",
            ),
            "sdpa(q, k, v, None, 0.0, causal is not None, scale=scale, enable_gqa=learned) if scale is not None "
            "else sdpa(q, k, v, is_causal=causal is not None, enable_gqa=True) if learned "
            "else sdpa(q, k, v) if causal is None else sdpa(q, k, v, is_causal=True)",
            lambda q, k, v: q.shape[1] != k.shape[1],
        ),
    ),
    mutants=MUTANTS,
)  # fmt: skip


def _ours(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Any, ...] | str:  # fmt: skip
    if dropout_p:
        return "dropout_p"
    if attn_mask is not None:
        if is_causal or attn_mask.dtype is not torch.bool:
            return "attn_mask must hold truth values, and is_causal be said in it"
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    if query.dim() > 1 and key.dim() > 1 and query.shape[1] != key.shape[1] and not enable_gqa:
        return "query and key must have as many heads, or enable_gqa be given"
    return query, key, value, "top_left" if is_causal else None, None, scale, attn_mask, False, None, None


TORCH_SIGNATURE = TorchSignature(
    OP,
    F.scaled_dot_product_attention,
    _ours,
    {"query": "q", "key": "k", "value": "v"},
    joined={"causal": "is_causal", "mask": "attn_mask"},
    name="scaled_dot_product_attention",
)
