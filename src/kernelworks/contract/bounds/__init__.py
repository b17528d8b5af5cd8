"""How far an honest implementation of a program may be from the reference: derived from the program, never chosen.

The reference is run once, in its own dtypes. Beside every tensor of that run stand its float64 value and the error that
an implementation may have made until there: any order of summation, fused or not, in the precision of the program or
better. So the bound is as wide as this program's arithmetic makes it on these inputs, element by element, and says of
which ops it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kernelworks.contract.bounds.call import NoBoundError
from kernelworks.contract.bounds.error import Error
from kernelworks.contract.bounds.propagation import ErrorPropagationMode, without_fused_kernels
from kernelworks.contract.leaves import leaves

__all__ = ["Bound", "NoBoundError", "bound_of", "shared_pairs"]

MOST_SAID = 6  # ops that a bound's reasons name


@dataclass(frozen=True)
class Bound:
    """Of each tensor and number in the reference's output, in order: its name, the reference (float64; integers as they
    are), by how much an honest implementation may miss it, and what the run itself gave. Of integers and truth values
    it may miss none, or any (infinity) where rounding decides. ``why`` says what the bounds are made of, ``unknown``
    which ops had no rule and were measured, ``ops`` how often each op ran, ``shared`` which pairs of outputs lie in one
    memory, ``lent`` which lie in that of an argument or of the module's own."""

    names: tuple[str, ...]
    reference: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    native: tuple[Tensor, ...]
    why: tuple[str, ...]
    unknown: tuple[str, ...]
    ops: dict[str, int]
    shared: tuple[tuple[int, int], ...] = ()
    lent: tuple[int, ...] = ()


def bound_of(run: Callable[..., Any], args: Sequence[Any]) -> Bound:
    """The reference of ``run(*args)`` and the bound on it, on the device of the arguments. ``run`` and ``args`` are the
    native ones: a module or function in its own dtypes. What it writes into its arguments is written into copies.

    Raises:
        NoBoundError: an op that cannot be followed: complex, sparse or quantised tensors, ops that are not torch's.
    """
    mode = ErrorPropagationMode()
    given = [arg.detach().clone() if isinstance(arg, Tensor) else arg for arg in args]
    own = [*run.parameters(), *run.buffers()] if isinstance(run, nn.Module) else []
    before = {t.untyped_storage()._cdata for t in (*tree_leaves(given), *own) if isinstance(t, Tensor)}
    with without_fused_kernels(), mode:
        result = run(*given)
    named = {f"output{path}": tensor for path, tensor in leaves(result).items()}
    references, bounds, why = [], [], []
    for name, tensor in named.items():
        tensor = tensor.detach()
        if tensor.is_complex():
            raise NoBoundError(f"{name} is complex")
        if not tensor.dtype.is_floating_point:
            unsure = mode.shadows.unsure(tensor)
            references.append(tensor.clone())
            none = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
            bounds.append(none if unsure is None else none.masked_fill(unsure, torch.inf))
            continue
        value = mode.shadows.value(tensor).clone()
        error = mode.shadows.error(tensor)
        references.append(value)
        bounds.append(torch.zeros_like(value) if error is None else error.bound)
        why.append(_said(name, value, error))
    return Bound(
        tuple(named), tuple(references), tuple(bounds), tuple(t.detach().clone() for t in named.values()), tuple(why),
        tuple(mode.unknown), dict(mode.ops), shared_pairs([*named.values()]),
        tuple(number for number, t in enumerate(named.values()) if t.untyped_storage()._cdata in before),
    )  # fmt: skip


def shared_pairs(outputs: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Pairs of outputs that are one tensor, or views of one."""
    held = [tensor.untyped_storage()._cdata for tensor in outputs]
    return tuple((a, b) for b in range(len(held)) for a in range(b) if held[a] == held[b])


def _said(name: str, value: Tensor, error: Error | None) -> str:
    if error is None:
        return f"{name}: exact"
    bound = error.bound
    finite = bound.isfinite() & value.isfinite()
    scale = float(value[finite].square().mean().sqrt()) if bool(finite.any()) else 0.0
    mean = float(bound[finite].mean()) if bool(finite.any()) else 0.0
    relative = f"{mean / scale:.1e} of its root mean square" if scale else "of zeros"
    parts = sorted(error.shares.items(), key=lambda item: -item[1])[:MOST_SAID]
    made = ", ".join(f"{label} {100 * share:.0f}%" for label, share in parts)
    return f"{name}: {mean:.2g}, {relative}: {made}"
