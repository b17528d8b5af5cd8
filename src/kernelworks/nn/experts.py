"""Mixtures of experts: the tokens' rows sorted by expert, their products, and the way back to the order of the tokens.

``moe_mlp`` is composed of ``grouped_linear``, a gate and ``combine``: the rows that the tokens send to an expert lie
one behind the other, and each expert's weight is read once. ``experts_forward`` is the same for transformers' experts,
in the registry of their functions (``set_experts_implementation``) and in a swap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.contract import need_dtype, need_tensor
from kernelworks.contract.offsets_argument import INDICES
from kernelworks.nn import functional as calls
from kernelworks.nn.originals import forward_of
from kernelworks.ops.activation.gelu_mul import gelu_mul
from kernelworks.ops.activation.silu_mul import silu_mul
from kernelworks.ops.routing.combine import combine
from kernelworks.ops.routing.grouped_linear import grouped_linear

__all__ = [
    "ACTIVATIONS", "IMPLEMENTATION", "KIND", "USES", "ExpertRows", "experts_forward", "moe_mlp", "register",
    "sort_by_expert", "uses_experts_registry",
]  # fmt: skip

IMPLEMENTATION = "kernelworks"
KIND = "experts"
USES = ("grouped_linear",)
MEAN_THE_SAME = frozenset({None, "eager", "grouped_mm", "batched_mm", IMPLEMENTATION})  # of transformers' registry

ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": silu_mul,
    "gelu": lambda gate, up: gelu_mul(gate, up, approximate="none"),
    "gelu_tanh": lambda gate, up: gelu_mul(gate, up, approximate="tanh"),
    "relu": lambda gate, up: F.relu(gate) * up,
}


# ---------------------------------------------------------------- rows by expert


class ExpertRows(NamedTuple):
    """The rows that tokens send to experts, sorted by expert. ``order`` [T k]: which of the flattened choices each row
    is; ``places`` [T, k]: the row of each choice, -1 of one that is dropped; ``offsets`` [E]: where each expert's rows
    end. Behind the last come the choices that are dropped."""

    order: Tensor
    places: Tensor
    offsets: Tensor


def sort_by_expert(indices: Tensor, num_experts: int) -> ExpertRows:
    """The choices [T, k] sorted by expert, those of one expert in the tokens' order. A choice outside
    [0, num_experts) is of no expert: it is dropped, and adds nothing to its token. Nothing waits for a GPU."""
    flat = indices.reshape(-1).long()
    expert = torch.where((flat < 0) | (flat >= num_experts), num_experts, flat)
    of_row, order = torch.sort(expert, stable=True)
    row = torch.arange(order.shape[0], device=order.device)
    places = torch.empty_like(order).scatter_(0, order, torch.where(of_row < num_experts, row, -1))
    ends = torch.searchsorted(of_row, torch.arange(num_experts, device=order.device), right=True)
    return ExpertRows(order, places.view(indices.shape), ends)


def _sum_by_token(rows: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """The weighted sum of each token's rows, of weights of any dtype."""
    own = weights if weights.dtype in (rows.dtype, torch.float32) else weights.float()
    return combine(rows, own, places)


# ---------------------------------------------------------------- the experts


def moe_mlp(
    x: Tensor, weights: Tensor, indices: Tensor, gate_up: Tensor, down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """The gated MLPs of a mixture of experts: ``output[t] = sum_j weights[t, j] mlp_e(x[t])``, e = indices[t, j], with
    ``mlp_e(x) = down[e] @ (activation(gate) * up)`` and ``gate, up = gate_up[e] @ x``.

    Args:
        x: [T, H].
        weights, indices: [T, k], what each of a token's experts weighs, and which they are (``router_topk``). An index
            outside [0, E) is of no expert here: it is dropped, and adds nothing.
        gate_up: [E, 2 I, H] of x's dtype, the gate's rows before the others', as transformers stores them.
        down: [E, H, I] of x's dtype.
        activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"relu"``.

    Returns:
        [T, H] of x's dtype, differentiable in x, weights, gate_up and down. The same bits every time: no sum depends on
        the order in which threads come to it. The weighted sum is in float32.

    Cost: 6 T k H I flop; the weights of the experts that have tokens are read once.
    Raises: TypeError, ValueError naming the argument.
    Source: Shazeer et al. 2017, arXiv:1701.06538; Jiang et al., Mixtral of Experts, 2024, arXiv:2401.04088.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got {activation!r}")
    _check(x, weights, indices, gate_up, down)
    rows = sort_by_expert(indices, gate_up.shape[0])
    sent = x.index_select(0, torch.div(rows.order, indices.shape[1], rounding_mode="floor"))
    gate, up = grouped_linear(sent, gate_up, rows.offsets).chunk(2, -1)
    made: Tensor = grouped_linear(ACTIVATIONS[activation](gate, up), down, rows.offsets)
    return _sum_by_token(made, weights, rows.places)


def _check(x: Tensor, weights: Tensor, indices: Tensor, gate_up: Tensor, down: Tensor) -> None:
    for name, value in {"x": x, "weights": weights, "indices": indices, "gate_up": gate_up, "down": down}.items():
        need_tensor(name, value)
    need_dtype("indices", indices, INDICES)
    if x.dim() != 2:
        raise ValueError(f"x must have shape [T, H], got {list(x.shape)}")
    if weights.dim() != 2 or weights.shape[0] != x.shape[0] or not weights.shape[1]:
        raise ValueError(f"weights must have shape [{x.shape[0]}, k] with k >= 1, got {list(weights.shape)}")
    if indices.shape != weights.shape:
        raise ValueError(f"indices must have weights' shape {list(weights.shape)}, got {list(indices.shape)}")
    if gate_up.dim() != 3 or gate_up.shape[1] % 2 or gate_up.shape[2] != x.shape[1]:
        raise ValueError(f"gate_up must have shape [E, 2 I, {x.shape[1]}], got {list(gate_up.shape)}")
    wanted = [gate_up.shape[0], x.shape[1], gate_up.shape[1] // 2]
    if list(down.shape) != wanted:
        raise ValueError(f"down must have shape {wanted}, got {list(down.shape)}")


# ---------------------------------------------------------------- transformers' experts


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers' registry calls with an experts module: it says how its weights lie, and applies its gate."""
    if not _served(self, hidden_states):
        found: Tensor = forward_of(self).__wrapped__(self, hidden_states, top_k_index, top_k_weights)
        return found
    matrices, biases = _parts(self)
    if self.is_transposed:
        matrices = tuple(matrix.mT for matrix in matrices)
    rows = sort_by_expert(top_k_index, self.num_experts)
    sent = hidden_states.index_select(0, torch.div(rows.order, top_k_index.shape[1], rounding_mode="floor"))
    inner = grouped_linear(sent, matrices[0], rows.offsets, biases[0])
    inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    made: Tensor = grouped_linear(inner, matrices[1], rows.offsets, biases[1])
    if getattr(self, "has_post_expert_norm", False):  # transformers 5.17 has none
        made = self.post_expert_norm(made)
    return _sum_by_token(made, top_k_weights, rows.places)


def _parts(experts: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """The weights of both products, and their biases."""
    names = ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj")
    biases = (getattr(experts, f"{name}_bias") if experts.has_bias else None for name in names)
    return tuple(getattr(experts, name) for name in names), tuple(biases)


def _served(experts: Any, hidden_states: Tensor) -> bool:
    """Whether the op takes these: one dtype for all, no autocast and nothing that means something by a call."""
    matrices, _ = _parts(experts)
    return hidden_states.dtype is matrices[0].dtype and calls.expressible(hidden_states, *matrices)


def swapped_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """An experts module's forward while it is swapped. What the op does not serve is transformers', and so is another
    implementation that somebody names since."""
    if getattr(self.config, "_experts_implementation", None) in MEAN_THE_SAME and _served(self, hidden_states):
        return experts_forward(self, hidden_states, top_k_index, top_k_weights)
    found: Tensor = type(self).forward(self, hidden_states, top_k_index, top_k_weights)
    return found


def uses_experts_registry(module: nn.Module) -> bool:
    """Whether a module is experts of transformers' whose forward takes its function from transformers' registry, and
    the one that its configuration names means what the others mean."""
    if "transformers.integrations.moe" not in sys.modules:
        return False
    from transformers.integrations import moe

    forward = forward_of(module)
    if getattr(forward, "__globals__", None) is not vars(moe) or not hasattr(forward, "__wrapped__"):
        return False
    held = dict(zip(forward.__code__.co_freevars, forward.__closure__ or (), strict=False))
    registry = held.get("experts_interface")
    return (
        registry is not None
        and registry.cell_contents is moe.ALL_EXPERTS_FUNCTIONS
        and getattr(getattr(module, "config", None), "_experts_implementation", "") in MEAN_THE_SAME
    )


def register() -> None:
    """Adds the name to transformers' registry of experts' functions: ``model.set_experts_implementation(
    "kernelworks")`` then takes ours. Changes no model."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
