"""A kernel that was just made, held against its function in float64, within the bound of the expression.

The inputs are drawn: normal values, values of every magnitude, extremes, infinities and NaN, in each argument's dtype;
rows with ragged tails; contiguous and with strides. Sizes are small ones if the function has the same kernel for them.
Where the function itself can be run on float64, the graph that it was traced to is held against it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.contract.philox import keep_mask
from kernelworks.fuse.analysis import bounds_of
from kernelworks.fuse.lowering import LoweredGraph, Result
from kernelworks.fuse.reference import Reference

__all__ = ["Case", "CheckResult", "drawn_leaves", "hold_against", "smaller_sizes"]

SEED = 20
KINDS = ("normal", "every magnitude", "extremes")
LARGEST_DRAW = 1 << 22  # elements: a function whose sizes cannot be made smaller is checked up to here


@dataclass(frozen=True)
class CheckResult:
    """``worst``: the largest error as a share of its bound. ``fault``: what was wrong, "" where nothing was."""

    worst: float
    cases: int
    fault: str = ""


@dataclass(frozen=True)
class Case:
    """Leaves of a call with the graph and the expression for their sizes."""

    name: str
    leaves: tuple[Any, ...]
    graph: torch.fx.Graph
    lowered: LoweredGraph


def smaller_sizes(leaves: Sequence[Any], last: int, others: Sequence[int]) -> list[Any]:
    """Tensors without contents in which each size stands for one of the call: ``last`` for that of the last
    dimension."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
    ends = [leaf.shape[-1] for leaf in tensors if leaf.shape[-1] > 1]
    sizes = {max(ends, default=1): last}
    left = iter(others)
    for leaf in tensors:
        for n in leaf.shape:
            if n > 1 and n not in sizes:
                sizes[n] = next(left, n)
    return [
        torch.empty([sizes.get(n, n) for n in leaf.shape], dtype=leaf.dtype, device="meta").requires_grad_(
            leaf.requires_grad
        )
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    ]


def drawn_leaves(leaves: Sequence[Any], kind: str, *, strided: bool) -> tuple[Any, ...]:
    """Contents for each tensor, on the CPU."""
    g = torch.Generator().manual_seed(SEED + KINDS.index(kind))
    return tuple(_drawn(leaf, kind, g, strided) if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _drawn(like: Tensor, kind: str, g: torch.Generator, strided: bool) -> Tensor:
    shape = tuple(like.shape)
    if like.dtype is torch.bool:
        made = torch.rand(shape, generator=g) < 0.5
    else:
        made = torch.randn(shape, generator=g)
        if kind != "normal":
            info = torch.finfo(like.dtype)
            reach = 12.0 if kind == "every magnitude" else 0.96 * torch.log(torch.tensor(info.max)).item()
            made = made.sign() * torch.exp((2.0 * torch.rand(shape, generator=g) - 1.0) * reach)
        if kind == "extremes":
            special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, info.tiny / 3, info.max, 1.0])
            which = torch.randint(0, 16 * len(special), shape, generator=g)
            made = torch.where(which < len(special), special[which.clamp(max=len(special) - 1)], made)
        made = made.to(like.dtype)
    if strided and made.dim():
        wide = made.new_empty((*shape[:-1], 2 * shape[-1])) if shape[-1] > 1 else made.new_empty(shape)
        held = wide[..., ::2] if shape[-1] > 1 else wide
        made = held.copy_(made)
    return made


def hold_against(
    function: Callable[[Sequence[Any]], Sequence[Tensor | None] | None], case: Case,
    run: Callable[[LoweredGraph, Sequence[Any]], Sequence[Any]], *, device: str,
) -> CheckResult:  # fmt: skip
    """``run`` launches the kernel; ``function`` is the user's, or its gradients, of leaves in float64 (None where it
    cannot be run on them)."""
    reference = Reference(case.graph)
    worst, count = 0.0, 0
    for kind in KINDS:
        strided = kind != "normal"
        leaves = drawn_leaves(case.leaves, kind, strided=strided)
        exact = reference(leaves)
        bounds = _bounds(case.lowered, leaves)
        made = run(case.lowered, tuple(_moved(v, device) if isinstance(v, Tensor) else v for v in leaves))
        label = f"{case.name}, {kind}{', with strides' if strided else ''}"
        count += 1
        for at, found in enumerate(made):
            wanted, bound = exact[at], bounds[at]
            if wanted is None or bound is None or found is None:
                continue
            share, fault = _compared(found.detach().cpu(), wanted, bound)
            worst = max(worst, share)
            if fault:
                return CheckResult(worst, count, f"result {at} ({label}): {fault}")
        if kind == "normal" and not reference.rounds and not reference.draws:
            fault = _graph_fault(function, leaves, exact, bounds)
            if fault:
                return CheckResult(worst, count, f"{label}: {fault}")
    return CheckResult(worst, count)


def _moved(tensor: Tensor, device: str) -> Tensor:
    """The same on a device, with the same strides."""
    if tensor.device == torch.device(device):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


def _bounds(lowered: LoweredGraph, leaves: Sequence[Any]) -> list[Tensor | None]:
    """Of each result by how much a kernel may miss it."""
    from kernelworks.fuse.launch import numbers_of, stream_texts

    inputs = [view.of(leaves[view.place]) for view in lowered.arguments]
    keeps = [keep_mask(lowered.expression.shape, p, seed, offset) for seed, offset, p in stream_texts(lowered, leaves)]
    found = bounds_of(lowered.expression, inputs, numbers_of(lowered, leaves), keeps)
    made: list[Tensor | None] = []
    for result in lowered.results:
        if not isinstance(result, Result):
            made.append(None)
            continue
        _, bound = found[result.output]
        if result.total is not None:
            size = bound.sum_to_size(result.total)
            value = found[result.output][0].abs().sum_to_size(result.total)
            eps = torch.finfo(result.dtype).eps
            bound = size + (eps + 2.0**-24 * 64) * value
        made.append(bound.reshape(result.shape))
    return made


def _compared(found: Tensor, wanted: Tensor, bound: Tensor) -> tuple[float, str]:
    """The largest error as a share of the bound, and what is wrong."""
    wanted = wanted.expand(found.shape)
    if found.dtype is torch.bool:
        wrong = (found != wanted.bool()) & (bound == 0.0)
        return 0.0, f"{int(wrong.sum())} truth values are others" if bool(wrong.any()) else ""
    rounded = wanted.to(found.dtype)
    free = bound.isinf() | bound.isnan()
    alike = (found == rounded) | (found.isnan() & wanted.isnan()) | free
    error = (found.double() - wanted).abs()
    held = torch.where(alike, torch.zeros_like(error), error / bound.clamp(min=2.0**-160))
    held = torch.where(held.isnan(), torch.full_like(held, torch.inf), held)
    worst = float(held.max()) if held.numel() else 0.0
    if worst <= 1.0:
        return worst, ""
    at = int(held.argmax())
    pair = f"{float(found.reshape(-1)[at]):.9g}, float64 gives {float(wanted.reshape(-1)[at]):.9g}"
    return worst, f"{pair}; {worst:.3g} times the bound"


class _Casts(TorchDispatchMode):
    """Whether something is cast to fewer digits than float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrow = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten._to_copy:
            self.narrow |= made.dtype.is_floating_point and made.dtype is not torch.float64
        return made


def _graph_fault(
    function: Callable[[Sequence[Any]], Sequence[Tensor | None] | None], leaves: Sequence[Any],
    exact: Sequence[Tensor | None], bounds: Sequence[Tensor | None],
) -> str:  # fmt: skip
    wide = [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in leaves]
    casts = _Casts()
    try:
        with casts:
            found = function(wide)
    except Exception:
        return ""  # a function of some dtypes alone: its graph is the definition
    if casts.narrow or found is None:
        return ""
    for at, (result, wanted, bound) in enumerate(zip(found, exact, bounds, strict=True)):
        if result is None or wanted is None or bound is None or result.dtype is torch.bool:
            continue
        off = (result.detach() - wanted.expand(result.shape)).abs() > bound + 2.0**-40 * wanted.abs()
        if bool(off.any()):
            return f"result {at}: the function in float64 gives another value than what it was traced to"
    return ""


def differing_sizes() -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Sizes that kernels are checked at: the name, the last dimension's, the others'."""
    yield "rows of 67", 67, (5, 7, 11, 13, 17, 19, 23)
    yield "rows of 1031", 1031, (3, 5, 7, 2, 11, 13)
