"""The functions of torch.nn.functional that kernelworks has an op for, with torch's own signatures.

Each calls the op where it can say what was asked for, and torch's function otherwise: another device, float64,
autocast, mixed dtypes, nested and sparse tensors, a bias that broadcasts, a keyword that the op does not have. What an
op's contract refuses is torch's to take or to refuse, too. So what a swapped model accepts, and the errors it raises on
bad input, stay torch's. "torch's function" is the one that torch ships (``shipped.py``): what a user has put in its
place is looked up where the call stands, before any of these is reached.

On a GPU a call's host time counts as much as its kernel. Where one kernel of ours stands for one of torch's, the op is
called from ``LARGE`` elements on, so that no call which is over sooner than it is launched becomes dearer; matrix
products go to the op only where the dispatcher has a row for so few rows. Under ``torch.compile`` the ops that stand
for several of torch's kernels keep to that limit too, since the compiler fuses small ones into their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from kernelworks.choose import choose
from kernelworks.contract import FLOATS
from kernelworks.models.shipped import TORCHS
from kernelworks.ops.activation.gelu import gelu as gelu_op
from kernelworks.ops.activation.silu_mul import silu_mul as silu_mul_op
from kernelworks.ops.attention.attention import OP as ATTENTION
from kernelworks.ops.attention.attention import attention as attention_op
from kernelworks.ops.linear.linear import OP as LINEAR
from kernelworks.ops.linear.linear import linear as linear_op
from kernelworks.ops.norm.layer_norm import layer_norm as layer_norm_op
from kernelworks.ops.norm.rms_norm import rms_norm as rms_norm_op
from kernelworks.ops.position.rope import rope as rope_op
from kernelworks.ops.reduction.cross_entropy import cross_entropy as cross_entropy_op
from kernelworks.ops.reduction.softmax import softmax as softmax_op
from kernelworks.plain import PLAIN
from kernelworks.plans import MOST_PLANS

__all__ = [
    "FUNCTIONS", "REFUSED", "attends", "attention_taken", "cross_entropy", "expressible", "gelu", "layer_norm",
    "linear", "mul_silu", "none_of", "pays", "pays_fused", "rms_norm", "rotary", "scaled_dot_product_attention",
    "silu_mul", "softmax", "softmax_by_op", "takes_rows", "truth",
]  # fmt: skip

WIDEST_HEAD = 256  # of the attention op
LARGE = 2**22  # elements: moving 16-bit ones in and out takes an H200 4 us, about what launching a kernel takes
SMALL = 2**20  # elements: two kernels that move fewer are over before they are launched
FEW_ROWS = 64  # of a matrix product on a GPU; with more, reading the weight is no longer what it waits on

REDUCTIONS = ("mean", "sum", "none")

_SUPPORTED = frozenset(FLOATS)
_autocast = torch.is_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_is_tracing = torch.jit.is_tracing  # type: ignore[attr-defined]


_cross_entropy, _gelu, _layer_norm, _linear, _rms_norm, _attention, _silu, _softmax = TORCHS.values()

# How an op's contract refuses arguments: then they are torch's, to take or to refuse in its own words.
REFUSED = (TypeError, ValueError)


def _standing_in(x: Tensor) -> bool:
    """Whether a tensor that is no plain one stands for such while a program is looked at. What is exported is torch's
    own operators: it may be run where kernelworks is not installed."""
    return type(x) is FakeTensor and not torch.compiler.is_exporting()


def expressible(x: Tensor, *others: Tensor | None) -> bool:
    """Whether kernelworks has rows for these tensors: no subclass that means something by a call, all on the CPU or on
    one GPU, all of one of the three dtypes, no autocast and no trace. (What else a tensor may be, sparse or without
    memory, the op's entry asks, and takes torch's own operators.)"""
    if (type(x) not in PLAIN and not _standing_in(x)) or x.is_nested:
        return False
    dtype, device = x.dtype, x.get_device()
    if dtype not in _SUPPORTED or _is_tracing():  # type: ignore[no-untyped-call]
        return False
    if device < 0:
        if not x.is_cpu or _autocast("cpu"):
            return False
    elif not x.is_cuda or _autocast("cuda"):
        return False
    for other in others:
        if other is not None and (
            (type(other) not in PLAIN and not _standing_in(other))
            or other.dtype is not dtype
            or other.get_device() != device
        ):
            return False
    # what was made in inference mode may not be kept for a backward
    return not _grad_enabled() or _is_compiling() or not x.is_inference()


def takes_rows(x: Tensor, weight: Tensor) -> bool:
    """Whether a weight is one of the rows of ``x``, so that nothing broadcasts."""
    return weight.dim() == 1 and x.dim() > 0 and x.shape[-1] == weight.shape[0]


def _one_row(normalized_shape: Any, weight: Tensor) -> bool:
    """Whether a shape, in a form that torch takes, is that of a weight of one dimension."""
    if type(normalized_shape) not in _SHAPES or len(normalized_shape) != 1 or weight.dim() != 1:
        return False
    size = normalized_shape[0]
    return type(size) is int and size == weight.shape[0]


_SHAPES = frozenset({tuple, list, torch.Size})
_NUMBERS = frozenset({int, float})


def truth(value: Any) -> bool:
    """Whether a value is a truth value as torch takes one: no 1, no None, none of NumPy's."""
    return type(value) is bool


def none_of(probability: Any) -> bool:
    """Whether a probability is one that torch takes, and 0."""
    return type(probability) in _NUMBERS and not probability


def pays(x: Tensor) -> bool:
    """Whether one kernel of ours in place of one of torch's is worth its host time."""
    return not x.is_cuda or x.numel() >= LARGE


def pays_fused(x: Tensor) -> bool:
    """Whether one kernel of ours in place of several of torch's, or of what a compiler makes of them, is worth it."""
    return not x.is_cuda or not _is_compiling() or x.numel() >= LARGE


def linear(input: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """``F.linear``. Without a weight it is refused by torch's function."""
    ours = type(input) is FakeTensor or (type(input) in PLAIN and (not input.is_cuda or _few_rows(input, weight, bias)))
    if ours and weight is not None and expressible(input, weight, bias) and weight.dim() == 2:
        try:
            return linear_op(input, weight, bias)
        except REFUSED:
            pass
    return _linear(input, weight, bias)  # type: ignore[no-any-return]


# (rows, N, K, ...) of matrix products on a GPU -> whether the dispatcher has a row for them that is not torch's
_FEW: dict[tuple[Any, ...], bool] = {}


def _few_rows(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether a matrix product on a GPU is one of few rows that the dispatcher does not leave to torch."""
    if weight is None or weight.layout is not torch.strided or _is_compiling() or input.is_nested or not input.dim():
        return False
    if input.numel() > FEW_ROWS * input.shape[-1]:
        return False
    if _grad_enabled() and (input.requires_grad or weight.requires_grad):
        return False
    key = (input.shape, weight.shape, weight.stride(), input.dtype, input.get_device(), bias is None)
    found = _FEW.get(key)
    if found is None:
        if not (expressible(input, weight, bias) and weight.dim() == 2):
            return False
        chosen = choose(LINEAR, LINEAR.request("forward", (input, weight, bias))).row.name
        if len(_FEW) >= MOST_PLANS:
            _FEW.clear()
        found = _FEW[key] = chosen != "torch"
    return found


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``F.rms_norm``. Without ``eps`` torch takes the dtype's own; that is defined here for float32 only."""
    if weight is not None and expressible(input, weight) and pays(input) and _one_row(normalized_shape, weight):
        number = _FLOAT32_EPS if eps is None and input.dtype is torch.float32 else eps
        if number is not None:
            try:
                return rms_norm_op(input, weight, eps=number)
            except REFUSED:
                pass
    return _rms_norm(input, normalized_shape, weight, eps)  # type: ignore[no-any-return]


_FLOAT32_EPS = torch.finfo(torch.float32).eps


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``F.layer_norm``."""
    affine = weight is not None and bias is not None and expressible(input, weight, bias)
    if affine and pays(input) and _one_row(normalized_shape, weight):  # type: ignore[arg-type]
        try:
            return layer_norm_op(input, weight, bias, eps=eps)
        except REFUSED:
            pass
    return _layer_norm(input, normalized_shape, weight, bias, eps)  # type: ignore[no-any-return]


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """``F.gelu``."""
    if approximate in ("none", "tanh") and expressible(input) and pays(input):
        try:
            return gelu_op(input, approximate=approximate)
        except REFUSED:
            pass
    return _gelu(input, approximate=approximate)  # type: ignore[no-any-return]


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``F.silu(gate) * up``. A small one that autograd records on a GPU is torch's two kernels: their recording in C++
    is as quick as ours of one in Python."""
    small = gate.is_cuda and gate.numel() < SMALL and _grad_enabled() and (gate.requires_grad or up.requires_grad)
    # for `up` alone torch keeps the activation, so that the gate may be overwritten; the op would read it again
    kept = _grad_enabled() and up.requires_grad and not gate.requires_grad
    if not small and not kept and expressible(gate, up) and gate.shape == up.shape and pays_fused(gate):
        try:
            return silu_mul_op(gate, up)  # type: ignore[no-any-return]
        except REFUSED:
            pass
    return _silu(gate) * up  # type: ignore[no-any-return]


def mul_silu(up: Tensor, gate: Tensor) -> Tensor:
    """``up * F.silu(gate)``, whose dtype and errors are the same, but for which factor torch names first."""
    if type(up) in PLAIN and up.shape == gate.shape and up.dtype is gate.dtype:
        return silu_mul(gate, up)
    return up * _silu(gate)  # type: ignore[no-any-return]


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """``F.softmax``."""
    found = softmax_by_op(input, dim, dtype)
    return _softmax(input, dim, _stacklevel, dtype) if found is None else found


def softmax_by_op(input: Tensor, dim: int | None, dtype: torch.dtype | None) -> Tensor | None:
    """The op's softmax, or None where it is torch's to take or to refuse."""
    if dim is not None and expressible(input) and (dtype is None or dtype is input.dtype) and pays(input):
        try:
            return softmax_op(input, dim=dim)
        except REFUSED:
            pass
    return None


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``F.cross_entropy``: of rows of logits with integer classes it goes to kernelworks."""
    plain = weight is None and size_average is None and reduce is None and none_of(label_smoothing)
    plain = plain and ignore_index.__class__ is int and abs(ignore_index) < 2**63
    if plain and reduction in REDUCTIONS and expressible(input) and input.dim() == 2 and pays(input):
        plain = type(target) in PLAIN or _standing_in(target)
        classes = plain and target.dim() == 1 and target.dtype is torch.int64
        if classes and target.get_device() == input.get_device():
            try:
                loss: Tensor = cross_entropy_op(input, target, ignore_index=ignore_index, reduction=reduction)
                return loss
            except REFUSED:
                pass
    return _cross_entropy(  # type: ignore[no-any-return]
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention``. Its causal mask starts at the upper left, which the op calls top_left."""
    if (
        none_of(dropout_p)
        and truth(is_causal)
        and truth(enable_gqa)
        and attends(query, key, value, attn_mask, grouped=enable_gqa)
        and (attn_mask is None or not is_causal)
    ):
        causal = "top_left" if is_causal else None
        if not query.is_cuda or attention_taken(query, key, value, causal, None, attn_mask):
            try:
                output: Tensor = attention_op(query, key, value, causal=causal, scale=scale, mask=attn_mask)
                viewed = attn_mask is None or not query.is_cuda
                return output.contiguous() if viewed and _lies_plainly(query, key, value) else output
            except REFUSED:
                pass
    return _attention(  # type: ignore[no-any-return]
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _lies_plainly(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch's attention (on a GPU the one without a mask) returns a contiguous tensor, which callers may view:
    its quick kernel's lies as the queries do, and its plain one, which takes elements that are apart, makes a new one.
    """
    apart = any(x.stride(-1) != 1 for x in (query, key, value))
    return apart or query.is_contiguous() or torch.empty_like(query).is_contiguous()


# what an attention on a GPU looks like -> whether the dispatcher has a row for it that is not torch's
_TAKEN: dict[tuple[Any, ...], bool] = {}


def attention_taken(
    query: Tensor, key: Tensor, value: Tensor, causal: str | None, window: int | None, mask: Tensor | None
) -> bool:
    """Whether the dispatcher has a row for an attention on a GPU that is not torch's. A decoding step meets a new
    length at every token, so lengths of keys count by their powers of two there."""
    if _is_compiling():
        return False
    queries, keys = query.shape[2], key.shape[2]
    recorded = _grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    of = (
        query.shape[:3], key.shape[1], query.shape[3], keys if queries > 1 else keys.bit_length(), query.dtype,
        query.get_device(), causal, window, None if mask is None else mask.shape, recorded,
    )  # fmt: skip
    found = _TAKEN.get(of)
    if found is None:
        request = ATTENTION.request("forward", (query, key, value, causal, window, None, mask, recorded))
        found = choose(ATTENTION, request).row.name != "torch"
        if len(_TAKEN) >= MOST_PLANS:
            _TAKEN.clear()
        _TAKEN[of] = found
    return found


def attends(query: Tensor, key: Tensor | None, value: Tensor | None, mask: Tensor | None, *, grouped: bool) -> bool:
    """Whether the attention op takes these: [B, H, Lq, D] with [B, Hkv, Lk, D] twice, nothing broadcast, and a mask
    of truth values, if any, that broadcasts to [B, H, Lq, Lk]."""
    if key is None or value is None or not expressible(query, key, value):
        return False
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if key.shape != value.shape or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return False
    if not 1 <= query.shape[3] <= WIDEST_HEAD:
        return False
    if mask is not None:
        if (
            (type(mask) not in PLAIN and not _standing_in(mask))
            or mask.dtype is not torch.bool
            or mask.dim() != 4
            or mask.get_device() != query.get_device()
        ):
            return False
        wanted = (*query.shape[:3], key.shape[2])
        for size, want in zip(mask.shape, wanted, strict=True):
            if size != want and size != 1:
                return False
    heads, kv_heads = query.shape[1], key.shape[1]
    return heads == kv_heads or (grouped and kv_heads > 0 and heads % kv_heads == 0)


def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, *, otherwise: Callable[..., Any]
) -> tuple[Tensor, Tensor]:
    """Llama's ``apply_rotary_pos_emb``: q and k [B, H, L, D], cos and sin [B, L, D] of two equal halves."""
    if (
        unsqueeze_dim.__class__ is int
        and unsqueeze_dim == 1
        and expressible(q, k, cos, sin)
        and q.dim() == k.dim() == 4
        and cos.dim() == 3
        and cos.shape[-1] == q.shape[-1] == k.shape[-1]  # of a part of each head, torch and the op mean other things
        and pays_fused(q)
    ):
        try:
            return rope_op(q, k, cos, sin)  # type: ignore[no-any-return]
        except REFUSED:
            pass
    result: tuple[Tensor, Tensor] = otherwise(q, k, cos, sin, unsqueeze_dim)
    return result


# What stands in for torch.nn.functional's functions in a rebound forward, by their name there.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cross_entropy": cross_entropy,
    "gelu": gelu,
    "layer_norm": layer_norm,
    "linear": linear,
    "rms_norm": rms_norm,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "softmax": softmax,
}
