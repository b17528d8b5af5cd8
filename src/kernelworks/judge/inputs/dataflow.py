"""What of a reference's work its answer does not need: ops whose results nothing reads, ops that change nothing, and
the same op on the same tensors twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Flow"]

WEIGHS = 0.01  # of the elements that a run reads and writes: less is not spoken of,
FEW = 20  # but among so few ops, where each is a launch that counts
MOVES = {"clone", "_to_copy", "to", "contiguous", "copy", "reshape", "_unsafe_view", "lift_fresh", "detach", "expand"}


# Ops that may pass over much of what they are given, or hand it to one that does: nothing of it must be read.
PARTS = MOVES | {
    "where", "masked_fill", "masked_select", "masked_scatter", "index", "index_select", "index_put", "gather", "take",
    "scatter", "tril", "triu", "cat", "stack", "slice_scatter", "select_scatter", "native_dropout",
}  # fmt: skip
# How their names begin -> where their window and its step stand among their arguments, (0, 0) where any step is wide.
WINDOWS = {
    "convolution": (1, 3), "max_pool": (1, 2), "avg_pool": (1, 2), "upsample": (0, 0), "_upsample": (0, 0),
    "embed": (0, 0), "_embed": (0, 0), "grid_sampler": (0, 0),
}  # fmt: skip


@dataclass
class _Step:
    label: str
    reads: frozenset[int]
    writes: frozenset[int]
    elements: int
    unchanged: bool
    key: Any
    needs: dict[int, int]  # storage -> bytes of it that cannot be passed over


def _at(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


class Flow(TorchDispatchMode):
    """Every op of a run, by the storages that it reads and writes. Tensors are kept, so that a storage is one thing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        versions = tuple((_at(t), t.storage_offset(), t.shape, t.stride(), t._version) for t in given)
        plain = [repr(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if not isinstance(leaf, Tensor)]
        result = func(*args, **kwargs)
        made = _tensors(result)
        self._kept += [*given, *made]
        read = frozenset(map(_at, given))
        new = [t for t in made if _at(t) not in read]
        mutable = [
            _at(t)
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for t in _tensors(value)
        ]
        mutable += [_at(t) for t in _tensors(kwargs.get("out"))]
        if not new and not mutable:
            return result
        name = func.overloadpacket.__name__
        elements = sum(t.numel() for t in (*given, *new))
        random = torch.Tag.nondeterministic_seeded in func.tags
        self.steps.append(
            _Step(
                f"{name}{list(made[0].shape) if made else ''}", read, frozenset((*map(_at, new), *mutable)), elements,
                not mutable and name not in MOVES and _unchanged(given, new),
                None if mutable or random or not given else (str(func), versions, tuple(plain)),
                _needs(name, args, given),
            )
        )  # fmt: skip
        return result

    def dead_ops(self, outputs: Sequence[Tensor], state: Iterable[Tensor] = ()) -> list[str]:
        """Ops whose results reach neither the outputs nor the module's state."""
        needed = {_at(t) for t in (*outputs, *state)}
        found = []
        for step in reversed(self.steps):
            if step.writes & needed:
                needed |= step.reads
            elif self._weighs(step):
                found.append(step.label)
        return _counted(reversed(found))

    def needed_bytes(self, outputs: Sequence[Tensor], inputs: Iterable[Tensor]) -> int:
        """Bytes of the inputs that any implementation must read: what an op reads whole whose result reaches an
        output. Of several ops on one input the largest counts, since they may read the same part of it."""
        live, most = {_at(t) for t in outputs}, dict[int, int]()
        for step in reversed(self.steps):
            if step.writes & live:
                live |= step.reads
                for at, size in step.needs.items():
                    most[at] = max(size, most.get(at, 0))
        return sum(most.get(at, 0) for at in {_at(t) for t in inputs})

    def unchanged_ops(self) -> list[str]:
        """Ops that gave back what they were given."""
        return _counted(step.label for step in self.steps if step.unchanged and self._weighs(step))

    def repeated_ops(self) -> list[str]:
        """Ops on the same tensors as once before."""
        seen: set[Any] = set()
        found = []
        for step in self.steps:
            if step.key is not None and step.key in seen and self._weighs(step):
                found.append(step.label)
            seen.add(step.key)
        return _counted(found)

    def _weighs(self, step: _Step) -> bool:
        of_all = sum(other.elements for other in self.steps)
        return step.elements >= WEIGHS * of_all or (len(self.steps) <= FEW and step.elements > FEW)


def _needs(name: str, args: Sequence[Any], given: list[Tensor]) -> dict[int, int]:
    if name in PARTS or _passes_over(name, args):
        return {}
    found: dict[int, int] = {}
    for t in given:
        size = min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
        found[_at(t)] = max(size, found.get(_at(t), 0))
    return found


def _passes_over(name: str, args: Sequence[Any]) -> bool:
    """Whether its windows lie apart: a step that is wider than a window."""
    for word, (window, step) in WINDOWS.items():
        if name.startswith(word):
            if len(args) <= step or window == step:
                return True
            sizes = args[window].shape[2:] if isinstance(args[window], Tensor) else args[window]
            return any(s > k for s, k in zip(args[step], sizes, strict=False))
    return False


def _unchanged(given: list[Tensor], new: list[Tensor]) -> bool:
    if len(new) != 1 or not new[0].is_floating_point() or new[0].numel() < 2:
        return False
    made = new[0].reshape(-1)
    return any(t.dtype is made.dtype and t.numel() == made.numel() and torch.equal(t.reshape(-1), made) for t in given)


def _counted(labels: Iterable[str]) -> list[str]:
    return [label if count == 1 else f"{label} ({count} times)" for label, count in Counter(labels).items()]
