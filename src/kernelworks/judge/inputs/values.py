"""Values on their way between processes: what holds tensors and what stands beside them, as JSON and a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "ForeignValue",
    "given_leaves",
    "gradients",
    "is_differentiable",
    "leaves",
    "leaves_by_path",
    "pack_value",
    "unpack_value",
]

PLAIN_TYPES = (bool, int, float, str, type(None))
MOST_DEPTH = 16


class ForeignValue(TypeError):
    """A value that is neither a tensor nor plain; the text says what."""


def pack_value(value: Any, held: list[Tensor], depth: int = 0) -> Any:
    """The value as JSON, its tensors by their numbers in ``held``. Raises Foreign."""
    if isinstance(value, Tensor):
        held.append(value)
        return {"tensor": len(held) - 1}
    if isinstance(value, PLAIN_TYPES):
        return {"plain": value}
    if depth > MOST_DEPTH:
        raise ForeignValue("values nested too deep")
    if isinstance(value, Mapping):
        return {"mapping": [[str(k), pack_value(v, held, depth + 1)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {
            type(value).__name__ if type(value) is list else "tuple": [pack_value(v, held, depth + 1) for v in value]
        }
    raise ForeignValue(f"a {type(value).__name__}, which is neither a tensor nor plain")


def unpack_value(said: Any, tensor: Callable[[int], Tensor]) -> Any:
    (kind, inner), *_ = said.items()
    if kind == "tensor":
        return tensor(inner)
    if kind == "plain":
        return inner
    if kind == "mapping":
        return {k: unpack_value(v, tensor) for k, v in inner}
    values = [unpack_value(v, tensor) for v in inner]
    return values if kind == "list" else tuple(values)


def leaves(value: Any, depth: int = 0) -> list[Any]:
    """What a call gave back, flat, in order: tensors and plain values. Raises Foreign."""
    if isinstance(value, (Tensor, *PLAIN_TYPES)):
        return [value]
    if depth > MOST_DEPTH:
        raise ForeignValue("values nested too deep")
    items: Sequence[Any]
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, (list, tuple)):
        items = value
    else:
        raise ForeignValue(f"a {type(value).__name__}, which is neither a tensor nor plain")
    return [leaf for item in items for leaf in leaves(item, depth + 1)]


def leaves_by_path(value: Any, path: str = "", depth: int = 0) -> dict[str, Any]:
    """What a call gave back, each by where it stands in it: "" for itself, "[0]" in a sequence, "['name']" in a
    mapping. Raises ForeignValue."""
    if isinstance(value, (Tensor, *PLAIN_TYPES)):
        return {path: value}
    if depth > MOST_DEPTH:
        raise ForeignValue("values nested too deep")
    if isinstance(value, Mapping):
        items: Sequence[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        raise ForeignValue(f"a {type(value).__name__}, which is neither a tensor nor plain")
    return {k: v for key, one in items for k, v in leaves_by_path(one, f"{path}[{key!r}]", depth + 1).items()}


def is_differentiable(value: Any) -> bool:
    """Whether it is an argument that gradients are asked of."""
    return isinstance(value, Tensor) and value.is_floating_point()


def given_leaves(args: Sequence[Any]) -> list[Any]:
    """The arguments, those that are floating with gradients of their own."""
    return [a.detach().requires_grad_() if is_differentiable(a) else a for a in args]


def gradients(
    run: Callable[..., Any], args: Sequence[Any], flows: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Of every floating argument, then of the weights, where ``flows`` go into the answers that have a graph. Raises
    LookupError where none has."""
    with torch.enable_grad():
        given = given_leaves(args)
        answers = [o for o in leaves(run(*given)) if isinstance(o, Tensor) and o.requires_grad]
        if len(answers) != len(flows):
            raise LookupError(f"{len(answers)} of its answers have a graph, of the reference {len(flows)}")
        wanted = [*(a for a in given if is_differentiable(a)), *weights]
        found: tuple[Tensor | None, ...] = torch.autograd.grad(answers, wanted, list(flows), allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]
