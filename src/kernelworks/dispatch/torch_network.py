"""torch's way to write a network of layers, each of which is calls of one op: ``torch.lstm(input, hx, params, ...)``.

No call of such a function is one call of the op: it has layers, directions, and a list of weights. ``TorchNetwork``
says once, with the op, how it is taken apart. By it a swap recognises torch's module (``nn.LSTM``), and diagnose the
function's calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernelworks.dispatch.op import OPS

__all__ = ["Network", "TorchNetwork", "network_of", "torch_networks"]


class Network(NamedTuple):
    """A call, taken apart: the input [T, B, I], each state [layers, B, H], and weights and biases layer by layer."""

    x: Tensor
    states: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    each: int  # tensors of a layer in one direction
    directions: int
    batch_first: bool

    @property
    def calls(self) -> int:
        """How many calls of the op it is: layers times directions."""
        return len(self.weights) // self.each


class TorchNetwork:
    """``function`` is torch's, which ``module``'s forward calls. The op's arguments are x, both weights, both biases,
    the states, and whether it runs from the end."""

    def __init__(self, op: Any, function: Callable[..., Any], module: type[nn.Module]) -> None:
        self.op, self.function, self.module = op, function, module
        self.name = function.__name__
        op.torch_network = self

    def read(
        self, input: Any, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any, train: Any,
        bidirectional: Any, batch_first: Any,
    ) -> Network | str:  # fmt: skip
        """The call taken apart, or why only torch's function serves it."""
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        if not isinstance(params, (list, tuple)) or not isinstance(input, Tensor) or input.dim() != 3:
            return "it is a packed sequence"
        if train and dropout and num_layers > 1:
            return "dropout is on"
        directions, each = 1 + bool(bidirectional), 4 if has_biases else 2
        if len(params) != num_layers * directions * each:
            return "its outputs are projected"
        sizes = {s.shape[0] if s.dim() == 3 else -1 for s in states}
        if len(states) != len(self.op.contract.outputs) - 1 or sizes != {num_layers * directions}:
            return "states are missing"
        x = input.transpose(0, 1) if batch_first else input
        return Network(x, states, tuple(params), each, directions, bool(batch_first))

    @staticmethod
    def arguments(network: Network, x: Tensor, index: int) -> tuple[Any, ...]:
        """The op's arguments of one layer in one direction, whose input is x."""
        weights = network.weights[index * network.each : (index + 1) * network.each]
        biases = weights[2:] or (None, None)
        states = (s[index] for s in network.states)
        return (x, *weights[:2], *biases, *states, index % network.directions == 1)

    def run(self, network: Network) -> tuple[Tensor, ...]:
        """What torch's function returns, by calls of the op."""
        x, last = network.x, []
        for index in range(0, network.calls, network.directions):
            made = [self.op.call(*self.arguments(network, x, index + d), None, None) for d in range(network.directions)]
            last += [each[1:] for each in made]
            x = made[0][0] if len(made) == 1 else torch.cat([each[0] for each in made], -1)
        states = (torch.stack(every) for every in zip(*last, strict=True))
        return (x.transpose(0, 1) if network.batch_first else x, *states)


def torch_networks() -> dict[str, TorchNetwork]:
    """The networks of all ops that torch has a function for, by its name."""
    return {n.name: n for op in OPS.values() if (n := getattr(op, "torch_network", None)) is not None}


def network_of(operator: str) -> TorchNetwork | None:
    """The network that an aten operator of this name computes; None where none does."""
    return torch_networks().get(operator.removeprefix("aten::"))
