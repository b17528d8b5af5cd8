"""The modules that a swap knows by what they compute, and the forwards that replace theirs.

A module is recognised by its forward function, not by its class's name: torch's own (``nn.Linear.forward`` and
subclasses that keep it), or one that is verified to compute the same formula (``identify.py``), such as the norm of
transformers' Llama and its many copies. The replacement is set on the instance, so hooks keep working.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import nn

from kernelworks.dispatch.signature import gates
from kernelworks.nn import experts
from kernelworks.nn.gates import learn_gate
from kernelworks.nn.identify import identify_forward, reason_not_identified
from kernelworks.nn.originals import TORCH_FUNCTIONS, forward_of
from kernelworks.nn.recurrent import KIND, calls_shipped_function, known_network
from kernelworks.nn.torch_modules import TORCH_MODULES

__all__ = ["KnownForward", "activations", "known_forward", "reason_left", "writes_into_its_input"]


@dataclass(frozen=True)
class KnownForward:
    """What a module is, the ops that serve it now, and the forward that calls them."""

    kind: str
    ops: tuple[str, ...]
    forward: Callable[..., Any]


def known_forward(module: nn.Module) -> KnownForward | None:
    """What ``module`` is, or None if its forward is none of those above."""
    forward = forward_of(module)
    for shipped, kind, op, ours in TORCH_MODULES:
        if forward is shipped:
            return KnownForward(kind, (op,), ours) if getattr(F, op) is TORCH_FUNCTIONS[op] else None
    network = known_network(module)
    if network is not None:
        torchs, ours = network
        return KnownForward(KIND, (torchs.op.name,), ours) if calls_shipped_function(torchs) else None
    if experts.uses_experts_registry(module):
        return KnownForward(experts.KIND, experts.USES, experts.swapped_forward)
    identified = identify_forward(module)
    return (
        KnownForward(identified.kind, identified.ops, identified.forward)
        if identified is not None and identified.ops
        else None
    )


def writes_into_its_input(module: nn.Module) -> bool:
    """Whether a module of torch's was made with ``inplace=True``, which only torch's function does."""
    return getattr(module, "inplace", False) is True and any(forward_of(module) is m[0] for m in TORCH_MODULES)


def activations(module: nn.Module) -> dict[str, str]:
    """The activations that a module holds directly, by name, with the op of the gate that may take them over."""
    return {name: op for name, child in module.named_children() if (op := learn_gate(child))}


_NOT_OURS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.Embedding, "torch already reads the table's rows at memory bandwidth"),
    (nn.Dropout, "no arithmetic in inference, random numbers in training"),
    (nn.Identity, "does nothing"),
    (nn.SiLU, "kernelworks fuses silu with the product that follows it; no product follows here"),
)


def reason_left(module: nn.Module) -> str:
    """Why a module without a known forward stays as it is."""
    if writes_into_its_input(module):
        return "it writes into its input"
    for shipped, _, op, _ in TORCH_MODULES:
        if forward_of(module) is shipped:
            return f"torch.nn.functional.{op} was replaced by somebody else"
    network = known_network(module)
    if network is not None:
        return f"torch.{network[0].name} was replaced by somebody else"
    if type(module).__module__ == "kernelworks.nn":
        return "a module of kernelworks' own"
    for cls, reason in _NOT_OURS:
        if isinstance(module, cls):
            return reason
    if reason_not_identified(module):
        return reason_not_identified(module)
    activation = getattr(module, "act_fn", None)
    if activation is not None and hasattr(module, "gate_proj"):
        return f"its gate is {type(activation).__name__}, and fused ops exist for {' and '.join(gates())}"
    return "its forward calls nothing that kernelworks has an op for"
