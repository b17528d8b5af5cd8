"""The functions of torch.nn.functional that kernelworks has an op for, with torch's own signatures.

Each calls the op if it can say what was asked for, and torch's function otherwise: another device, float64,
autocast, mixed dtypes, nested and sparse tensors, a bias that broadcasts, a keyword that the op does not have. What an
op's contract refuses is torch's to take or to refuse, too. So what a swapped model accepts, and the errors it raises on
bad input, stay torch's. "torch's function" is the one that torch ships (``originals.py``): what a user has put in its
place is looked up where the call stands, before any of these is reached.

Whether a kernel of ours runs is the op's own choice, by the tuning records of this machine; if it leaves a call to
torch it calls the same function of torch's, forward and backward. If what was written is no single function of torch's
(a formula, a rotary embedding, transformers' attention), that choice is asked for first (``prefers_torch``), and what
was written runs. A compiler fuses several small kernels by itself, and no tuning record speaks of that: on a GPU such
calls are left to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from kernelworks.contract import FLOATS
from kernelworks.contract.tensors import PLAIN_TYPES, has_override_mode, is_plain
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.signature import Gate, TorchSignature, gates, torch_signatures
from kernelworks.nn.originals import ONLY_FUNCTIONALS, TORCH_FUNCTIONS, TWINS
from kernelworks.ops.activation.gelu import OP as GELU
from kernelworks.ops.attention.attention import OP as ATTENTION
from kernelworks.ops.linear.linear import OP as LINEAR
from kernelworks.ops.norm.layer_norm import OP as LAYER_NORM
from kernelworks.ops.norm.rms_norm import OP as RMS_NORM
from kernelworks.ops.position.rope import OP as ROPE
from kernelworks.ops.reduction.softmax import OP as SOFTMAX
from kernelworks.templates.norm import LONG

__all__ = [
    "CONTRACT_ERRORS",
    "FUNCTIONS",
    "GATED_FUNCTIONS",
    "ROPE",
    "attends",
    "expressible",
    "fusible",
    "gelu",
    "is_bool",
    "is_zero_probability",
    "layer_norm",
    "linear",
    "prefers_torch",
    "rms_norm",
    "rotary",
    "scaled_dot_product_attention",
    "softmax",
    "softmax_by_op",
    "takes_rows",
    "twin_stand_in",
]  # fmt: skip

WIDEST_HEAD = 256  # The attention op takes no wider heads.
FUSIBLE = 2**22  # elements: with fewer, a kernel on a GPU is over before it is launched, and a compiler fuses it

_SUPPORTED = frozenset((*FLOATS, torch.complex64))
_autocast = torch.is_autocast_enabled
_is_compiling, _traced_by_dynamo = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_jit: Any = torch.jit  # which does not say that this is among its names
_is_tracing = _jit.is_tracing
_any_autocast, _traced = torch._C._is_any_autocast_enabled, torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


_gelu, _layer_norm, _linear, _rms_norm, _softmax = (
    TORCH_FUNCTIONS[name] for name in ("gelu", "layer_norm", "linear", "rms_norm", "softmax")
)
_attention = TORCH_FUNCTIONS["scaled_dot_product_attention"]

# How an op's contract refuses arguments: then they are torch's, to take or to refuse in its own words.
CONTRACT_ERRORS = (TypeError, ValueError)


def _standing_in(x: Tensor) -> bool:
    """Whether a tensor that is no plain one stands for such while a program is looked at. What is exported is torch's
    own operators: it may be run where kernelworks is not installed."""
    return type(x) is FakeTensor and not torch.compiler.is_exporting()


def expressible(x: Tensor, *others: Tensor | None) -> bool:
    """Whether kernelworks has kernels for these tensors: no subclass that means something by a call, all on the CPU or
    on one GPU, all of one dtype that some op takes, no autocast, no trace and no mode of the program's own. (What else
    a tensor may be, sparse or without memory, the op's entry asks, and takes torch's own operators.)

    It is asked at every call, so it asks what is cheap, in C if no compiler has to follow."""
    compiling = _is_compiling()
    if not compiling and (
        ((_function_modes() or _dispatch_modes()) and has_override_mode()) or _any_autocast() or _traced()
    ):
        # first of all: a mode for functions is told of every attribute that is looked at
        return False
    if (type(x) not in PLAIN_TYPES and not _standing_in(x)) or x.is_nested:
        return False
    dtype, device = x.dtype, x.get_device()
    if dtype not in _SUPPORTED or not (x.is_cpu if device < 0 else x.is_cuda):
        return False
    if compiling and (_autocast("cpu" if device < 0 else "cuda") or _is_tracing()):
        return False
    for other in others:
        if other is not None and (
            (type(other) not in PLAIN_TYPES and not _standing_in(other))
            or other.dtype is not dtype
            or other.get_device() != device
        ):
            return False
    # what was made in inference mode may not be kept for a backward
    return not _grad_enabled() or compiling or not x.is_inference()


def takes_rows(x: Tensor, weight: Tensor) -> bool:
    """Whether a weight is one of the rows of ``x``, so that nothing broadcasts."""
    return weight.dim() == 1 and x.dim() > 0 and x.shape[-1] == weight.shape[0]


def _one_row(normalized_shape: Any, weight: Tensor) -> bool:
    """Whether a shape, as a sequence that torch takes, is that of a weight of one dimension."""
    if type(normalized_shape) not in _SHAPES or len(normalized_shape) != 1 or weight.dim() != 1:
        return False
    size = normalized_shape[0]
    return type(size) is int and size == weight.shape[0]


def _of(normalized_shape: Any, weight: Tensor) -> bool:
    """The same at one look, for most; the op knows how many dimensions a weight has. A mode for functions would be told
    of the look."""
    plain = type(normalized_shape) in _SHAPES and type(weight) in PLAIN_TYPES and not _function_modes()
    return plain and normalized_shape == weight.shape


_SHAPES = frozenset({tuple, list, torch.Size})
_NUMBERS = frozenset({int, float})


def is_bool(value: Any) -> bool:
    """Whether a value is a bool as torch takes one: no 1, no None, none of NumPy's."""
    return type(value) is bool


def is_zero_probability(probability: Any) -> bool:
    """Whether a probability is one that torch takes, and 0."""
    return type(probability) in _NUMBERS and not probability


def fusible(x: Tensor) -> bool:
    """Whether a compiler is at work that makes one kernel of this one and its neighbours."""
    return _is_compiling() and x.is_cuda and x.numel() < FUSIBLE


def prefers_torch(op: Op, *args: Any) -> bool:
    """Whether a call of the op would run torch's own function, so that what the user wrote may run in its place. Of
    tensors that are not plain, and for a compiler, the op itself sees to that."""
    if _is_compiling() or not is_plain(*(a for a in args if isinstance(a, Tensor))):
        return False
    return op.choice(args, None, op.inputs_requiring_grad(args) if _grad_enabled() else ()).native


# The op carries out a call like one before (``Op.call_planned``): all that is asked below was asked of that one, and
# Python's questions would be most of what a small call takes. A compiler follows them.


def linear(input: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """``F.linear``. Without a weight it is refused by torch's function."""
    if not _traced_by_dynamo():
        known: Tensor = LINEAR.call_planned(input, weight, bias)
        if known is not NotImplemented:
            return known
    if weight is not None and expressible(input, weight, bias) and weight.dim() == 2:
        try:
            output: Tensor = LINEAR.call(input, weight, bias)
            return output
        except CONTRACT_ERRORS:
            pass
    result: Tensor = _linear(input, weight, bias)
    return result


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``F.rms_norm``. Without ``eps`` torch takes the dtype's own; that is defined here for float32 only."""
    if eps is not None and weight is not None and not _traced_by_dynamo() and _of(normalized_shape, weight):
        known: Tensor = RMS_NORM.call_planned(input, weight, eps, None)
        if known is not NotImplemented:
            return known
    if weight is not None and expressible(input, weight) and _one_row(normalized_shape, weight):
        number = _FLOAT32_EPS if eps is None and input.dtype is torch.float32 else eps
        if number is not None:
            try:
                output: Tensor = RMS_NORM.call(input, weight, number, None)
                return output
            except CONTRACT_ERRORS:
                pass
    result: Tensor = _rms_norm(input, normalized_shape, weight, eps)
    return result


_FLOAT32_EPS = torch.finfo(torch.float32).eps


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``F.layer_norm``."""
    if weight is not None and not _traced_by_dynamo() and _of(normalized_shape, weight):
        known: Tensor = LAYER_NORM.call_planned(input, weight, bias, eps)
        if known is not NotImplemented:
            return known
    if (
        weight is not None
        and bias is not None
        and expressible(input, weight, bias)
        and _one_row(normalized_shape, weight)
    ):
        try:
            output: Tensor = LAYER_NORM.call(input, weight, bias, eps)
            return output
        except CONTRACT_ERRORS:
            pass
    if weight is not None and bias is not None and type(normalized_shape) in _SHAPES and len(normalized_shape) > 1:
        found = _layer_norm_of_blocks(input, normalized_shape, weight, bias, eps)
        if found is not None:
            return found
    result: Tensor = _layer_norm(input, normalized_shape, weight, bias, eps)
    return result


def _layer_norm_of_blocks(input: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor | None:
    """Of several dimensions at once, which are one long row; None where they are torch's to refuse, or lie apart."""
    given, last = (input, weight, bias), len(shape)
    if not expressible(*given) or weight.numel() < LONG or not all(t.is_contiguous() for t in given):
        return None
    if not tuple(shape) == weight.shape == bias.shape == input.shape[-last:]:
        return None
    try:
        output: Tensor = LAYER_NORM.call(input.flatten(-last), weight.flatten(), bias.flatten(), eps)
    except CONTRACT_ERRORS:
        return None
    return output.view(input.shape)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """``F.gelu``."""
    if not _traced_by_dynamo():
        known: Tensor = GELU.call_planned(input, approximate)
        if known is not NotImplemented:
            return known
    if approximate in ("none", "tanh") and expressible(input):
        try:
            output: Tensor = GELU.call(input, approximate)
            return output
        except CONTRACT_ERRORS:
            pass
    result: Tensor = _gelu(input, approximate=approximate)
    return result


def _gated(gate_of: Gate) -> Callable[..., Tensor]:
    """``F.silu(gate) * up`` and its like, by the op that says it in one."""
    op, torchs_own, names = gate_of.op, TORCH_FUNCTIONS[gate_of.name], tuple(gate_of.words)

    def gated(gate: Tensor, up: Any, *words: str) -> Tensor:
        if not isinstance(up, Tensor):  # a number, or whatever knows how to be multiplied
            product: Tensor = torchs_own(gate, **dict(zip(names, words, strict=True))) * up
            return product
        # for `up` alone torch keeps the activation, so that the gate may be overwritten; the op would read it again
        kept = _grad_enabled() and up.requires_grad and not gate.requires_grad
        if not kept and not _traced_by_dynamo():
            known: Tensor = op.call_planned(gate, up, *words)
            if known is not NotImplemented:
                return known
        if not kept and expressible(gate, up) and gate.shape == up.shape and not fusible(gate):
            try:
                output: Tensor = op.call(gate, up, *words)
                return output
            except CONTRACT_ERRORS:
                pass
        result: Tensor = torchs_own(gate, **dict(zip(names, words, strict=True))) * up
        return result

    return gated


# What stands in for a product with an activation, by the activation's name in torch.
GATED_FUNCTIONS = {name: _gated(gate) for name, gate in gates().items()}


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """``F.softmax``."""
    found = softmax_by_op(input, dim, dtype)
    return _softmax(input, dim, _stacklevel, dtype) if found is None else found


def softmax_by_op(input: Tensor, dim: int | None, dtype: torch.dtype | None) -> Tensor | None:
    """The op's softmax, or None if it is torch's to take or to refuse."""
    if dtype is None and dim is not None and not _traced_by_dynamo():
        known: Tensor = SOFTMAX.call_planned(input, dim)
        if known is not NotImplemented:
            return known
    if dim is not None and expressible(input) and (dtype is None or dtype is input.dtype):
        try:
            output: Tensor = SOFTMAX.call(input, dim)
            return output
        except CONTRACT_ERRORS:
            pass
    return None


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
        is_zero_probability(dropout_p)
        and is_bool(is_causal)
        and is_bool(enable_gqa)
        and (attn_mask is None or not is_causal)
    ):
        asked = query, key, value, "top_left" if is_causal else None, None, scale, attn_mask, False, None, None
        output = _attended(asked, enable_gqa)
        if output is not None:
            if not output.is_contiguous() and (attn_mask is None or not query.is_cuda):
                return output.contiguous() if _lies_plainly(query, key, value) else output
            return output
    result: Tensor = _attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return result


def _attended(asked: tuple[Any, ...], grouped: bool) -> Tensor | None:
    """The op's attention, or None if it is torch's to take or to refuse."""
    query, key, value, mask = *asked[:3], asked[6]
    if not _traced_by_dynamo() and (grouped or _as_many_heads(query, key)):
        known: Tensor = ATTENTION.call_planned(*asked)
        if known is not NotImplemented:
            return known
    if attends(query, key, value, mask, grouped=grouped):
        try:
            output: Tensor = ATTENTION.call(*asked)
            return output
        except CONTRACT_ERRORS:
            pass
    return None


def _as_many_heads(query: Any, key: Any) -> bool:
    """Of what torch takes without being told that heads are grouped."""
    if type(query) not in PLAIN_TYPES or type(key) not in PLAIN_TYPES or _function_modes():
        return False
    if not query.dim() == key.dim() == 4:
        return False
    same: bool = query.size(1) == key.size(1)
    return same


def _lies_plainly(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch's attention (on a GPU the one without a mask) returns a contiguous tensor, which callers may view:
    its quick kernel's lies as the queries do, and its plain one, which takes elements that are apart, makes a new one.
    """
    apart = any(x.stride(-1) != 1 for x in (query, key, value))
    return apart or query.is_contiguous() or torch.empty_like(query).is_contiguous()


def attends(query: Tensor, key: Tensor | None, value: Tensor | None, mask: Tensor | None, *, grouped: bool) -> bool:
    """Whether the attention op takes these: [B, H, Lq, D] with [B, Hkv, Lk, D] twice, nothing broadcast, and a mask
    that is boolean, if any, and broadcasts to [B, H, Lq, Lk]."""
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
            (type(mask) not in PLAIN_TYPES and not _standing_in(mask))
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
        and not fusible(q)
        and not prefers_torch(ROPE, q, k, cos, sin, False)
    ):
        try:
            output: tuple[Tensor, Tensor] = ROPE.call(q, k, cos, sin, False)
            return output
        except CONTRACT_ERRORS:
            pass
    result: tuple[Tensor, Tensor] = otherwise(q, k, cos, sin, unsqueeze_dim)
    return result


def _stand_in(torch_signature: TorchSignature) -> Callable[..., Any]:
    """Torch's function by the op that its torch signature says is the same, asked as the functions above ask."""
    op, ours, torchs_own = torch_signature.op, torch_signature.ours, TORCH_FUNCTIONS[torch_signature.name]
    schema = torch._C.parse_schema(op.passes["forward"].schema)
    places = [i for i, a in enumerate(schema.arguments) if str(a.type) in ("Tensor", "Optional[Tensor]")]
    first, alone = places[0], len(places) == 1

    def swapped(*given: Any, **named: Any) -> Any:
        try:
            asked = (
                None
                if torch_signature.bools and torch_signature.non_bool_argument(given, named)
                else ours(*given, **named)
            )
            if asked.__class__ is tuple and not _traced_by_dynamo():
                known = op.call_planned(*asked)
                if known is not NotImplemented:
                    return known
            if asked.__class__ is tuple and (
                expressible(asked[first]) if alone else _expressible([asked[i] for i in places])
            ):
                return op.call(*asked, None, None)
        except CONTRACT_ERRORS:  # torch's to take, or to refuse in its own words
            pass
        return torchs_own(*given, **named)

    return functools.update_wrapper(swapped, ours, assigned=())


def twin_stand_in(name: str) -> Callable[..., Any]:
    """``torch.sigmoid`` by the op of ``F.sigmoid``; what that does not take (``out=``) is torch's."""
    ours, twin, signature = FUNCTIONS[name], TWINS[name], torch_signatures()[name]
    names = signature.name_set.difference(ONLY_FUNCTIONALS)
    alike = next((at for at, one in enumerate(signature.positional) if one in ONLY_FUNCTIONALS), len(names))

    def swapped(*given: Any, **named: Any) -> Any:
        taken = len(given) <= alike and named.keys() <= names
        return ours(*given, **named) if taken else twin(*given, **named)

    return functools.update_wrapper(swapped, twin, assigned=())


def _expressible(tensors: list[Any]) -> bool:
    """``expressible``, where some of the tensors may hold integers."""
    floating = [t for t in tensors if isinstance(t, Tensor) and t.dtype.is_floating_point]
    if not floating or not expressible(*floating):
        return False
    device = floating[0].get_device()
    others = [t for t in tensors if t is not None and not any(t is f for f in floating)]
    return all((type(t) in PLAIN_TYPES or _standing_in(t)) and t.get_device() == device for t in others)


# These stand in for torch's functions in a rebound forward, by their name there. Those above take their arguments apart
# as fast as they can or ask for more than the op's torch signature does; all others go by their torch signature.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: _stand_in(s) for name, s in torch_signatures().items() if not s.no_swap_reason
} | {
    f.__name__: f
    for f in (gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, softmax)
}  # fmt: skip
