"""The definition of a fused function: torch's graph of it in float64, rounded only where the function casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from kernelworks.contract.philox import keep_mask

__all__ = ["Reference"]


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x * _share(x, approximate)


def _share(x: Tensor, approximate: str) -> Tensor:
    if approximate == "tanh":
        return torch.sigmoid(ROOT * (x + 0.044715 * x * x * x))
    tail: Tensor = torch.special.erfc(-x / math.sqrt(2.0))
    return 0.5 * tail


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        c = x.clamp(-40.0, 40.0)  # 0 or 1 long before
        change = _share(c, "tanh") * _share(-c, "tanh") * ROOT * (1.0 + 3.0 * 0.044715 * c * c)
    else:
        change = torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return grad * (_share(x, approximate) + x * change)


ROOT = 2.0 * math.sqrt(2.0 / math.pi)
# Torch's own float64 functions lose all digits where 1 + erf(x) is near 0.
EXACT_FUNCTIONS: dict[str, Callable[..., Any]] = {"gelu": _gelu, "gelu_backward": _gelu_backward}


class Reference(Interpreter):
    """``Reference(graph)(leaves)``: the results in float64. ``rounds``: whether the function casts to fewer digits. A
    cast that makes a result does not round it: a kernel rounds once, and what that may be off by is in its bound."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        super().__init__(torch.fx.GraphModule({}, graph))
        self.rounds = any(_rounding(node) is not None for node in graph.nodes)
        self.cast_values: dict[Node, Tensor] = {}
        self.draws = any(getattr(node.target, "namespace", "") == "kernelworks" for node in graph.nodes)

    def __call__(self, leaves: Sequence[Any]) -> list[Tensor | None]:
        wide = [leaf.double() if _is_float(leaf) else leaf for leaf in leaves]
        with torch.no_grad():
            found: list[Tensor | None] = list(self.run(*wide))
        return found

    def run_node(self, n: Node) -> Any:
        if n.op == "output":
            (results,) = n.args
            return [self.cast_values[r] if r in self.cast_values else self.env.get(r) for r in results]  # type: ignore
        if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.target.namespace == "kernelworks":
            x, p, seed, offset = args
            keep = keep_mask(x.shape, p, seed, offset)
            return torch.where(keep, x / (1.0 - p) if p < 1.0 else torch.zeros_like(x), torch.zeros_like(x))
        to = _rounding(n)
        if to is not None:
            self.cast_values[n] = args[0]
            return args[0].to(torch.float32).to(to).double() if to is not torch.float32 else args[0].float().double()
        if n.target.overloadpacket is torch.ops.aten._to_copy:
            return args[0].to(torch.bool) if kwargs.get("dtype") is torch.bool else args[0].double()
        wide = {k: _widened(v) for k, v in kwargs.items() if k != "device"}
        target: Callable[..., Any] = EXACT_FUNCTIONS.get(n.target.overloadpacket.__name__, n.target)
        return target(*(_widened(a) for a in args), **wide)


def _rounding(node: Node) -> torch.dtype | None:
    """The dtype that a cast rounds to; None where it rounds nothing."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.overloadpacket is not torch.ops.aten._to_copy:
        return None
    to, held = node.meta["val"].dtype, node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    return to if to in (torch.bfloat16, torch.float16) and to is not held and held.is_floating_point else None


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
