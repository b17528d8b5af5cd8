"""A whole decoder layer of transformers' Llama family in one forward: the same ops, without a module call for each.

Decoding one token calls some 400 small modules, and their bookkeeping is time in which no weight is read. The forward
here does what the layer's own does, in the same order, with the residual addition fused into the norm that follows.
It runs only while nothing could tell the difference: no compiler, no hook on any part, every part and its forward
still the one that was there when the model was swapped. Otherwise the layer's own forward runs.

In inference each op is bound to the kernel that the dispatcher chooses for the shapes of the step (``BoundCalls``), so
that a call costs its launch and nothing else; in decoding even the places of intermediate results stay the same. In
training autograd records the ops, by the tuning records of training.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import Tensor, nn

from kernelworks.contract import FLOATS
from kernelworks.contract.tensors import PLAIN_TYPES, is_observed, is_plain, is_transform_active
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.plans import KERNEL, NATIVE, generation
from kernelworks.nn import attention, functional
from kernelworks.nn.decode_graph import Branches, branches, capturing, fixed_layer, write
from kernelworks.nn.decoder_weights import HEAD_NORM_PATHS, LINEAR_PATHS, NORM_PATHS, Epsilons, LayerWeights
from kernelworks.nn.gates import learn_gate
from kernelworks.nn.identify import identify_forward
from kernelworks.nn.originals import FORWARDS, TORCH_FUNCTIONS, forward_of, is_from_package, unwrap_decorators
from kernelworks.nn.rebind import same_code
from kernelworks.nn.rotary import known_rotary, rotary_globals
from kernelworks.ops.activation.silu_mul import OP as SILU_MUL
from kernelworks.ops.linear.linear import OP as LINEAR
from kernelworks.ops.norm.rms_norm import OP as RMS_NORM
from kernelworks.ops.position.rope import OP as ROPE

__all__ = ["SHOWN_OPS", "USES", "BoundCalls", "Parts", "decoder_layer", "parts_of"]

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_get_threads = torch.get_num_threads
_get_ident = threading.get_ident
_inference_mode = torch.is_inference_mode_enabled
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks, torch_module._global_backward_pre_hooks,
)  # fmt: skip
_LINEAR_OF, _SILU_OF, _ATTENTION_OF = (
    TORCH_FUNCTIONS["linear"],
    TORCH_FUNCTIONS["silu"],
    TORCH_FUNCTIONS["scaled_dot_product_attention"],
)
_HARMLESS = frozenset({"num_items_in_batch"})  # what layers are handed and do not read

MOST_SHAPES = 64  # A layer stays bound for at most so many shapes.

Call = Callable[..., Any]
_is = operator.is_


_CALLS = {
    "before": RMS_NORM, "q": LINEAR, "k": LINEAR, "v": LINEAR, "q_norm": RMS_NORM, "k_norm": RMS_NORM, "rope": ROPE,
    "o": LINEAR, "after_attention": RMS_NORM, "gate": LINEAR, "up": LINEAR, "silu_mul": SILU_MUL, "down": LINEAR,
}  # fmt: skip

SHOWN_OPS = (RMS_NORM.name,)  # what a layer in one piece is told by: its parts are told by themselves
USES = tuple(sorted({op.name for op in _CALLS.values()} | {*attention.USES}))


class BoundCalls:
    """The calls of one layer, each bound at its first use to the kernel that serves calls like it, past all checks.

    Right for the shapes, dtypes, strides and device of that first use only; who keeps one answers for that. With
    ``steady`` the calls also write where they wrote before, which saves an allocation each: right for one thread on one
    stream, and for results that nobody keeps.
    """

    __slots__ = (*_CALLS, "branches", "decoding", "pair", "steady", "value_kernel")
    branches: Branches | None  # of a step of one token that is captured
    before: Call
    q: Call
    k: Call
    v: Call
    q_norm: Call
    k_norm: Call
    rope: Call
    o: Call
    after_attention: Call
    gate: Call
    up: Call
    silu_mul: Call
    down: Call
    decoding: dict[Any, Call | None] | None  # bits of the number of keys, and their traits -> attention of one query
    value_kernel: tuple[Call | None, torch.Size]
    pair: Tensor | None  # [2, B, heads, 1, D]: the key and the value of a token side by side, to be kept by one copy

    def __init__(self, bind: Callable[[BoundCalls, str, Op], Call], *, steady: bool = False) -> None:
        for name, op in _CALLS.items():
            setattr(self, name, bind(self, name, op))
        self.decoding = {} if bind is _at_first_use else None
        self.pair, self.value_kernel, self.steady, self.branches = None, (None, torch.Size()), steady, None

    def decoding_kernel(self, query: Tensor, key: Tensor, value: Tensor) -> Call | None:
        """The kernel of attention from single queries to every key. Each token brings a new number of keys, so kernels
        are chosen anew only if its binary logarithm changes."""
        if self.decoding is None:
            return None
        # a cache of another kind may hand back other keys than the one before
        bits = (
            key.shape[2].bit_length(), key.shape[:2], key.shape[3], key.shape == value.shape, key.dtype, value.dtype,
            key.__class__, value.__class__, key.is_neg() or value.is_neg(),
        )  # fmt: skip
        try:
            return self.decoding[bits]
        except KeyError:
            kernel = attention.decoding_kernel(query, key, value) if is_plain(key, value) else None
            if kernel is not None and self.steady and kernel is not attention.attend_all_keys:
                kernel = functools.partial(kernel, out=torch.empty(query.shape, dtype=query.dtype, device=query.device))
            self.decoding[bits] = kernel
            return kernel


def _at_first_use(bound: BoundCalls, name: str, op: Op) -> Call:
    def call(*args: Any) -> Any:
        plan = op.make_plan("forward", args)
        kernel: Call = plan.call if plan.kind == NATIVE else plan.run
        result = kernel(*args)
        if bound.steady and plan.kind == KERNEL:
            kernel = _writing(bound, name, kernel, result)
        setattr(bound, name, kernel)
        return result

    return call


def _writing(bound: BoundCalls, name: str, kernel: Call, result: Any) -> Call:
    """The kernel, which writes where it wrote now from its next call on. A cache may keep the key and the value of a
    token, so they have a place of their own, and only if they can share it."""
    if name == "v":
        bound.value_kernel = kernel, result.shape
        return kernel
    if name != "rope":
        return functools.partial(kernel, out=result)
    query, key = result
    value_kernel, value_shape = bound.value_kernel
    if value_kernel is None or key.numel() != value_shape.numel():
        return kernel
    pair = key.new_empty((2, *key.shape))
    bound.v = functools.partial(value_kernel, out=pair[1].view(value_shape))
    bound.pair = pair
    return functools.partial(kernel, out=(query.contiguous(), pair[0]))


# What autograd, modes and profilers see: the ops themselves.
_OPEN = BoundCalls(lambda bound, name, op: lambda *args: op.call(*args))  # looked up: the way in may change


@dataclass
class Parts:
    """The parts of one layer as they were found, and where to look whether they still are."""

    links: tuple[tuple[Mapping[str, Any], str], ...]  # where a part, or a number or function that counts, is found
    parts: tuple[Any, ...]
    attributes: tuple[Mapping[str, Any], ...]  # of each part, and its forward
    forwards: tuple[Any, ...]
    hooks: tuple[Mapping[Any, Any], ...]
    slots: tuple[tuple[Mapping[str, Any], str], ...]  # where each of ``LayerWeights`` is found, in its order
    shapes: tuple[torch.Size | None, ...]
    epsilons: Epsilons
    layer: weakref.ref[nn.Module]
    attention: Any
    modules: tuple[nn.Module, ...]  # the parts that are modules
    classes: tuple[Any, ...]  # theirs, and the layer's last, and what those make of a call
    of_classes: tuple[Any, ...]
    config: Any
    settings: Mapping[str, Any]  # the attributes of config, which looks them up slowly
    bound: dict[Any, tuple[BoundCalls, LayerWeights, list[Any]]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parts:
        return self  # of a copy of the layer these are not the parts, and ``layer`` says so

    def weights(self, hidden_states: Tensor, cos: Tensor, sin: Tensor) -> LayerWeights | None:
        """The parameters, or None if the layer's own forward must run."""
        if hidden_states.is_nested or any(self.hooks) or any(_GLOBAL_HOOKS):
            return None
        if not self.turned_by(hidden_states, cos, sin) or not functional.expressible(hidden_states, cos, sin):
            return None
        if not all(map(_is, [modules.get(name) for modules, name in self.links], self.parts)):
            return None
        if not all(map(_is, [own.get("forward") for own in self.attributes], self.forwards)):
            return None
        classes = self.classes
        if not all(map(_is, map(type, self.modules), classes)):  # a parametrization gives a module another
            return None
        if not all(map(_is, [cls.forward for cls in classes], self.of_classes)):
            return None
        if F.linear is not _LINEAR_OF or F.silu is not _SILU_OF or F.scaled_dot_product_attention is not _ATTENTION_OF:
            return None
        weights: list[Any] = [parameters.get(name) for parameters, name in self.slots]
        dtype, device = hidden_states.dtype, hidden_states.get_device()
        for weight, shape in zip(weights, self.shapes, strict=True):
            if weight is None:
                if shape is not None:
                    return None
            elif (
                weight.dtype is not dtype
                or weight.shape != shape
                or type(weight) not in PLAIN_TYPES
                or weight.get_device() != device
            ):
                return None
        return LayerWeights(*weights)

    def turned_by(self, hidden_states: Tensor, cos: Tensor, sin: Tensor) -> bool:
        """Whether there is an angle for each position and each element of a head, for all sequences or for each:
        torch's arithmetic broadcasts other tables too, and kernels of ours do not."""
        return (
            hidden_states.dim() == cos.dim() == 3
            and cos.shape == sin.shape
            and cos.shape[1] == hidden_states.shape[1]
            and cos.shape[2] == self.attention.head_dim
            and cos.shape[0] in (1, hidden_states.shape[0])
            and not (cos.requires_grad or sin.requires_grad)  # learned angles
        )

    def calls_for(self, hidden_states: Tensor, weights: LayerWeights, cos: Tensor, sin: Tensor) -> BoundCalls:
        """The ops as this step calls them."""
        gradients = _grad_enabled()
        if gradients or is_transform_active() or is_observed() or not is_plain(hidden_states, cos, sin):
            return _OPEN
        device, one = hidden_states.get_device(), hidden_states.shape[1] == 1
        captured = one and capturing(device)
        steady = one and not captured  # what a graph writes lies in its own memory: it may outlive what is bound here
        key: tuple[Any, ...] = (
            hidden_states.shape, hidden_states.stride(), hidden_states.dtype, device, cos.shape, cos.stride(),
            sin.stride(), _get_threads(), generation(),
        )  # fmt: skip
        if steady:
            key = (*key, _get_ident(), _inference_mode(), _stream(device) if device >= 0 else 0)
        elif captured:
            key = (*key, "captured")
        known = self.bound.get(key)
        # the same parameter may have been given other memory: `parameter.data = ...`
        lies = [None if w is None else (w.stride(), w.is_neg()) for w in weights]
        if known is not None and all(map(_is, known[1], weights)) and known[2] == lies:
            return known[0]
        if not is_plain(*weights):
            return _OPEN
        if len(self.bound) >= MOST_SHAPES:
            self.bound.clear()
        bound = BoundCalls(_at_first_use, steady=steady)
        bound.branches = branches(device) if captured else None
        self.bound[key] = bound, weights, lies
        return bound


def decoder_layer(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> Tensor:
    """The forward that a swap gives to layers that ``parts_of`` recognises."""
    weights = None
    if not _is_compiling() and position_embeddings is not None and kwargs.keys() <= _HARMLESS:
        parts: Any = self.__dict__.get("_kernelworks_parts")
        if (
            parts is not None
            and parts.layer() is self
            and type(self) is parts.classes[-1]
            and parts.attention.config is parts.config
            and parts.settings.get(attention.INTERNAL) == attention.IMPLEMENTATION
        ):
            weights = parts.weights(hidden_states, *position_embeddings)
    if weights is None:
        output: Tensor = type(self).forward(
            self, hidden_states, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache, position_embeddings=position_embeddings, **kwargs,
        )  # fmt: skip
        return output
    return _in_one_piece(parts, weights, hidden_states, attention_mask, past_key_values, position_embeddings)


def _in_one_piece(
    parts: Parts, weights: LayerWeights, hidden_states: Tensor, attention_mask: Tensor | None, past: Any, turns: Any,
) -> Tensor:  # fmt: skip
    cos, sin = turns
    module, eps = parts.attention, parts.epsilons
    call = parts.calls_for(hidden_states, weights, cos, sin)
    batch, length, _ = hidden_states.shape
    # of a single token, [B, L, heads, D] and [B, heads, L, D] are the same bytes
    heads = (batch, -1, 1, module.head_dim) if length == 1 else (batch, length, -1, module.head_dim)

    x = call.before(hidden_states, weights.input_norm, eps.input_norm, None)
    fixed = fixed_layer(past, module.layer_idx) if length == 1 and call is not _OPEN else None
    if fixed is not None:
        query, key, value = _with_fixed_cache(call, parts, weights, x, heads, cos, sin, fixed)
    else:
        query, key, value = _with_cache(call, parts, weights, x, heads, cos, sin, past)
    dropout = module.attention_dropout if module.training else 0.0
    kernel = call.decoding_kernel(query, key, value) if length == 1 and attention_mask is None and not dropout else None
    if kernel is not None:
        attended = kernel(query, key, value, None, None, module.scaling, None, False, None, None)
    else:
        attended, _ = attention.attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=module.scaling
        )
    attended = call.o(attended.reshape(batch, length, -1), weights.o, weights.o_bias)

    x, residual = call.after_attention(attended, weights.post_attention_norm, eps.post_attention_norm, hidden_states)
    x = _gated(call, weights, x, fixed)
    output: Tensor = residual + call.down(x, weights.down, weights.down_bias)
    return output


def _with_cache(
    call: BoundCalls, parts: Parts, weights: LayerWeights, x: Tensor, heads: tuple[int, ...], cos: Tensor, sin: Tensor,
    past: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, and the keys and values that they see: with those of a cache ahead, where there is one."""
    module, eps = parts.attention, parts.epsilons
    pair = call.pair  # before the calls below may set it for the next token
    query = call.q(x, weights.q, weights.q_bias).view(heads)
    key = call.k(x, weights.k, weights.k_bias).view(heads)
    value = call.v(x, weights.v, weights.v_bias).view(heads)
    if weights.q_norm is not None:
        query = call.q_norm(query, weights.q_norm, eps.q_norm, None)
        key = call.k_norm(key, weights.k_norm, eps.k_norm, None)
    if x.shape[1] != 1:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    query, key = call.rope(query, key, cos, sin, False)
    if past is not None:
        key, value = attention.extend_cache(past, key, value, module.layer_idx, pair)
    return query, key, value


def _with_fixed_cache(
    call: BoundCalls, parts: Parts, weights: LayerWeights, x: Tensor, heads: tuple[int, ...], cos: Tensor, sin: Tensor,
    layer: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same of one token, for a cache of fixed size: its new length is written by ``_gated``."""
    eps, fork = parts.epsilons, call.branches

    def make_query() -> Tensor:
        query: Tensor = call.q(x, weights.q, weights.q_bias).view(heads)
        return query if weights.q_norm is None else call.q_norm(query, weights.q_norm, eps.q_norm, None)

    def make_key() -> Tensor:
        key: Tensor = call.k(x, weights.k, weights.k_bias).view(heads)
        return key if weights.k_norm is None else call.k_norm(key, weights.k_norm, eps.k_norm, None)

    def write_values() -> None:
        write(layer.values, layer, call.v(x, weights.v, weights.v_bias).view(heads))

    if fork is None:
        key = make_key()
        write_values()
        query = make_query()
    else:
        fork.fork()
        with fork.stream_context(0):
            key = make_key()
        with fork.stream_context(1):
            write_values()
        query = make_query()
        fork.join()
    query, key = call.rope(query, key, cos, sin, False)
    write(layer.keys, layer, key)
    return query, layer.keys, layer.values


def _gated(call: BoundCalls, weights: LayerWeights, x: Tensor, fixed: Any) -> Tensor:
    """What the MLP's last product takes; and one token more in a layer of fixed size."""
    fork = call.branches
    if fork is not None:
        fork.fork()
        with fork.stream_context(0):
            up = call.up(x, weights.up, weights.up_bias)
        with fork.stream_context(1):
            if fixed is not None:
                fixed.cumulative_length.add_(1)
        gate = call.gate(x, weights.gate, weights.gate_bias)
        fork.join()
    else:
        if fixed is not None:
            fixed.cumulative_length.add_(1)
        gate, up = call.gate(x, weights.gate, weights.gate_bias), call.up(x, weights.up, weights.up_bias)
    product: Tensor = call.silu_mul(gate, up)
    return product


# ---------------------------------------------------------------- recognising


@functools.cache
def _known() -> tuple[Any, tuple[Any, ...], Any]:
    """The forwards of the layer, of attention (with and without norms of heads) and of the MLP, as transformers ships
    them; None for one in whose place somebody has put another."""
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral.modeling_mistral import MistralAttention
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    attentions = (llama.LlamaAttention, Qwen2Attention, Qwen3Attention, MistralAttention)
    layer, mlp = unwrap_decorators(llama.LlamaDecoderLayer.forward, "transformers"), llama.LlamaMLP.forward
    return layer, tuple(shipped_or_none(a.forward) for a in attentions), shipped_or_none(mlp)


def shipped_or_none(function: Any) -> Any:
    return function if is_from_package("transformers", function) else None


def parts_of(layer: nn.Module) -> Parts | None:
    """The parts of a decoder layer that a swap has been through, or None if it is not one that is known."""
    if "transformers" not in sys.modules or not {"self_attn", "mlp", *NORM_PATHS} <= set(layer._modules.keys()):
        return None
    known_layer, known_attentions, known_mlp = _known()
    module, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    if not same_code(unwrap_decorators(forward_of(layer), "transformers"), known_layer) or "forward" in layer.__dict__:
        return None
    if not any(same_code(forward_of(module), a) for a in known_attentions):
        return None
    rotary = type(module).forward.__globals__.get("apply_rotary_pos_emb")
    if not isinstance(rotary, FunctionType) or known_rotary(rotary) is None:
        return None
    if not same_code(forward_of(mlp), known_mlp):
        return None
    norms = [*NORM_PATHS, *(HEAD_NORM_PATHS if {"q_norm", "k_norm"} <= set(module._modules.keys()) else ())]
    parts: dict[str, Any] = {
        path: layer.get_submodule(path) for path in ("self_attn", "mlp", "mlp.act_fn", *LINEAR_PATHS, *norms)
    }
    identified_norms = [identified for path in norms if (identified := identify_forward(parts[path])) is not None]
    if len(identified_norms) < len(norms) or any(
        p.kind != "rms norm" or len(p.dtypes) < len(FLOATS) for p in identified_norms
    ):
        return None
    if learn_gate(parts["mlp.act_fn"]) != SILU_MUL.name:
        return None
    if any(forward_of(parts[path]) is not FORWARDS[nn.Linear] for path in LINEAR_PATHS):
        return None
    wanted = [(path, name) for path in LINEAR_PATHS for name in ("weight", "bias")]  # in LayerWeights' order
    wanted += [(path, "weight") for path in norms]
    if any(name not in parts[path]._parameters for path, name in wanted):
        return None
    read = [
        (parts[path].__dict__, *item) for path, p in zip(norms, identified_norms, strict=True) for item in p.numbers
    ]
    names = [*read, (type(module).forward.__globals__, rotary.__name__, rotary), *rotary_globals(rotary)]
    links = [(layer.get_submodule(path.rpartition(".")[0])._modules, path.rpartition(".")[2]) for path in parts]
    classes: tuple[Any, ...] = tuple(map(type, (*parts.values(), layer)))
    held = [parts[path]._parameters[name] for path, name in wanted]
    shapes = tuple(None if p is None else p.shape for p in held)
    widths = {path: parts[path].weight.shape[0] for path in (*LINEAR_PATHS, *norms)}
    for (path, name), p in zip(wanted, held, strict=True):
        matrix = name == "weight" and path in LINEAR_PATHS
        if p is not None and (p.dim() != (2 if matrix else 1) or p.shape[0] != widths[path]):
            return None  # it broadcasts, or is nothing that torch takes
    return Parts(
        links=(*links, *((space, name) for space, name, _ in names)),
        parts=(*parts.values(), *(value for _, _, value in names)),
        attributes=tuple(part.__dict__ for part in parts.values()),
        forwards=tuple(part.__dict__.get("forward") for part in parts.values()),
        hooks=tuple(getattr(part, hooks) for part in parts.values() for hooks in _HOOKS),
        slots=tuple((parts[path]._parameters, name) for path, name in wanted),
        shapes=shapes,
        epsilons=Epsilons(*(p.number for p in identified_norms)),
        layer=weakref.ref(layer),
        attention=module,
        modules=tuple(parts.values()),
        classes=classes,
        of_classes=tuple(cls.forward for cls in classes),
        config=module.config,
        settings=object.__getattribute__(module.config, "__dict__"),
    )  # fmt: skip
