"""A user's function as torch's own graph of operators, traced once for arguments of these dtypes and shapes.

Numbers stay symbols of torch's: what the function makes of them (``1 - p``) is in the graph. A number on which the
function's way hangs (``if p > 0``) is told by the guard that torch notes, and stands for its value alone then.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["FuseError", "Trace", "recorded_results", "trace_backward", "trace_forward"]

# Operators that are taken apart into those that have a rule.
DECOMPOSED_OPS = """
    _softmax _log_softmax native_layer_norm _fused_rms_norm rms_norm addcmul addcdiv lerp rsub hardswish_backward
    celu selu frac square mse_loss l1_loss huber_loss smooth_l1_loss
    _softmax_backward_data _log_softmax_backward_data native_layer_norm_backward _fused_rms_norm_backward
    elu_backward hardsigmoid_backward sigmoid_backward tanh_backward select_backward
    logaddexp xlogy special_xlog1py rad2deg deg2rad sinc logit norm linalg_vector_norm
    binary_cross_entropy_with_logits glu_backward glu
"""
PACKAGE = str(Path(__file__).resolve().parent.parent)
TORCH = str(Path(torch.__file__).resolve().parent)


READS = frozenset(
    (
        Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__,
        Tensor.__complex__,
    )
)  # fmt: skip


class FuseError(ValueError):
    """A function cannot be fused. The text names the operator, the line of the function, and what is accepted."""


@dataclass(frozen=True)
class Trace:
    """``graph`` with a placeholder for each leaf of the arguments. ``specialized``: the places of numbers that stand
    for their values. ``structure`` is that of the results."""

    graph: torch.fx.Graph
    specialized: frozenset[int]
    structure: Any


class _Lines(TorchFunctionMode):
    """Notes with each operator the line of the user's function that asked for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        line = _user_line()
        if func in READS:
            raise FuseError(f"fuse: {func.__name__} reads a value out of a tensor, which a kernel cannot\n  {line}")
        fx_traceback.set_stack_trace([line])
        return func(*args, **(kwargs or {}))


def _user_line() -> str:
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((PACKAGE, TORCH, "<")):
            text = linecache.getline(name, frame.f_lineno).strip()
            return f"{name}:{frame.f_lineno}: {text}"
        frame = frame.f_back
    return ""


def _decompositions() -> Any:
    from torch._decomp import get_decompositions

    names = (getattr(torch.ops.aten, name, None) for name in DECOMPOSED_OPS.split())
    packets: list[Any] = [packet for packet in names if packet is not None]
    return get_decompositions(packets)


class _Symbols:
    """Tensors without contents and numbers without values, for a trace."""

    def __init__(self, leaves: Sequence[Any], static: frozenset[int]) -> None:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

        self.shapes = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.shapes)
        self.places: dict[Any, int] = {}
        self.leaves: list[Any] = []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                wide = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
                fake = self.mode.from_tensor(wide, static_shapes=True)
                self.leaves.append(fake.requires_grad_() if leaf.requires_grad else fake)
            elif type(leaf) in (int, float) and place not in static:
                source = ConstantSource(f"number{place}")
                symbol = self.shapes.create_unspecified_symbol(leaf, source, DimDynamic.DYNAMIC)
                if type(leaf) is int:
                    made: Any = self.shapes.create_symintnode(symbol, hint=leaf, source=source)
                else:
                    made = self.shapes.create_symfloatnode(symbol, hint=leaf, source=source)
                self.places[symbol] = place
                self.leaves.append(made)
            else:
                self.leaves.append(leaf)

    def guarded_places(self) -> frozenset[int]:
        symbols = {symbol for guard in self.shapes.guards for symbol in guard.expr.free_symbols}
        return frozenset(self.places[symbol] for symbol in symbols if symbol in self.places)


@contextmanager
def _tracing() -> Iterator[None]:
    with fx_traceback.preserve_node_meta(), _Lines():
        yield


def trace_forward(
    function: Callable[..., Any], leaves: Sequence[Any], tree: Any, static: frozenset[int] = frozenset()
) -> Trace:
    """The graph of a call with these leaves of its arguments. Raises FuseError."""

    def run(*flat: Any) -> tuple[list[Any], Any]:
        args, kwargs = pytree.tree_unflatten(flat, tree)
        return pytree.tree_flatten(function(*args, **kwargs))

    return _traced(function, run, leaves, static, needs=False)


def recorded_results(function: Callable[..., Any], leaves: Sequence[Any], tree: Any) -> tuple[bool, ...]:
    """Of each result whether torch records its gradient: not of what the function detaches."""
    symbols = _Symbols(leaves, frozenset())
    with torch.enable_grad(), symbols.mode:
        args, kwargs = pytree.tree_unflatten(symbols.leaves, tree)
        found = pytree.tree_leaves(function(*args, **kwargs))
    return tuple(isinstance(t, Tensor) and t.requires_grad for t in found)


def trace_backward(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    tree: Any,
    grads: Sequence[Tensor | None],
    static: frozenset[int],
) -> Trace:
    """The graph of the gradients of all leaves that require one: the leaves, then a placeholder for each gradient that
    flows in. Gradients that do not exist are None. Raises FuseError."""
    count = len(leaves)

    def run(*flat: Any) -> tuple[list[Any], Any]:
        args, kwargs = pytree.tree_unflatten(flat[:count], tree)
        found = pytree.tree_leaves(function(*args, **kwargs))
        outputs = [(o, g) for o, g in zip(found, flat[count:], strict=True) if g is not None and o.requires_grad]
        wanted = [leaf for leaf in flat[:count] if isinstance(leaf, Tensor) and leaf.requires_grad]
        made = torch.autograd.grad([o for o, _ in outputs], wanted, [g for _, g in outputs], allow_unused=True)
        return pytree.tree_flatten(list(made))

    return _traced(function, run, [*leaves, *grads], static, needs=True)


def _traced(
    function: Callable[..., Any], run: Callable[..., Any], leaves: Sequence[Any], static: frozenset[int], *, needs: bool
) -> Trace:
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    structure: list[Any] = []

    def listed(*flat: Any) -> Any:
        found, spec = run(*flat)
        structure[:] = [spec]
        return found

    symbols = _Symbols(leaves, static)
    traced = listed if needs else functionalize(listed, remove="mutations")
    try:
        with torch.set_grad_enabled(needs), symbols.mode, _tracing():
            make: Any = make_fx
            module = make(traced, _decompositions())(*symbols.leaves)
    except FuseError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        name = getattr(function, "__name__", type(function).__name__)
        raise FuseError(f"fuse cannot trace {name}: {type(error).__name__}: {said[0] if said else ''}") from error
    module.graph.eliminate_dead_code()
    return Trace(module.graph, symbols.guarded_places(), structure[0])
