"""torch's recurrent networks (``nn.LSTM``) by the ops of one layer in one direction.

What is recognised is a module: torch's own forward runs as it stands, with all that it checks, permutes and returns,
and the one function in it that computes (``torch.lstm``, which it calls ``_VF.lstm``) is ours. That takes a network
apart into its layers and directions. Weights are those that the module holds at each call. torch's function runs,
whole, where the op says less (a packed sequence, a projection, dropout that is on), where gradients are wanted, which
only torch's has kernels for, where a compiler looks on, and where the dispatcher would take torch's kernel for the
first layer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.dispatch.torch_network import Network, TorchNetwork, torch_networks
from kernelworks.nn.functional import CONTRACT_ERRORS, expressible, prefers_torch
from kernelworks.nn.originals import forward_of, shipped_forward

__all__ = ["KIND", "calls_shipped_function", "known_network", "network_function"]

KIND = "recurrent network"


def network_function(torchs: TorchNetwork) -> Callable[..., Any]:
    """torch's function of a whole network, by the op of one of its layers."""

    def swapped(*given: Any, **named: Any) -> Any:
        try:
            network = torchs.read(*given, **named)
            if isinstance(network, Network) and _is_served(torchs, network):
                return torchs.run(network)
        except CONTRACT_ERRORS:  # torch's to take, or to refuse in its own words
            pass
        return torchs.function(*given, **named)

    return swapped


def _is_served(torchs: TorchNetwork, network: Network) -> bool:
    tensors: list[Tensor] = [network.x, *network.states, *network.weights]
    if torch.compiler.is_compiling() or not expressible(*tensors) or not network.x.numel():
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return not prefers_torch(torchs.op, *torchs.arguments(network, network.x, 0))


def calls_shipped_function(torchs: TorchNetwork) -> bool:
    """Whether what the forward of torch's module calls is what torch ships, not what a user has put there."""
    home: Any = vars(sys.modules[torchs.module.__module__]).get("_VF")
    return getattr(home, torchs.name, None) is torchs.function


def _with_ours(torchs: TorchNetwork, shipped: Any) -> Any:
    """The module's forward with our function in the place of torch's."""
    ours = network_function(torchs)
    scope = shipped.__globals__ | {"_VF": SimpleNamespace(**{torchs.name: ours})}
    own = FunctionType(shipped.__code__, scope, shipped.__name__, shipped.__defaults__)

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if type(self).forward is not shipped or not calls_shipped_function(torchs):
            return type(self).forward(self, *given, **named)
        return own(self, *given, **named)

    # errors, signatures and sources tell of the module's own
    return functools.update_wrapper(forward, shipped)


def _modules() -> Iterator[tuple[Any, TorchNetwork, Any]]:
    for torchs in torch_networks().values():
        shipped = shipped_forward(torchs.module)
        if isinstance(shipped, FunctionType):
            yield shipped, torchs, _with_ours(torchs, shipped)


# torch's forward, the network that it computes, and the forward that takes its place
_NETWORK_MODULES: tuple[tuple[Any, TorchNetwork, Any], ...] = tuple(_modules())


def known_network(module: nn.Module) -> tuple[TorchNetwork, Any] | None:
    """The network that a module's forward computes, and the forward by our op; None of any other module."""
    forward = forward_of(module)
    for shipped, torchs, ours in _NETWORK_MODULES:
        if forward is shipped and getattr(module, "mode", "") == torchs.name.upper():
            return torchs, ours
    return None
