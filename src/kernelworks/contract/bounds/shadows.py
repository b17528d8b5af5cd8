"""What stands beside each tensor of a run: its float64 value and its error.

They are kept by storage, laid out as the storage is, so that a view of a tensor is the same view of what stands beside
it, and what is written into a view is written into both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from kernelworks.contract.bounds.error import Error

__all__ = ["Shadows", "flat"]

PARTS = ("worst", "common", "spread")


class _Shadow:
    """Of one storage: flat tensors with an element for each of its own."""

    def __init__(self, storage: Any, value: Tensor | None, dtype: torch.dtype) -> None:
        self.alive = StorageWeakRef(storage)
        self.value, self.dtype = value, dtype
        self.parts: dict[str, Tensor] = {}
        self.shares: dict[str, float] = {}
        self.unsure: Tensor | None = None
        self.terms = 0


def flat(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor as one dimension."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def _as(shadow: Tensor, tensor: Tensor) -> Tensor:
    return shadow.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Shadows:
    """By the storage that they stand beside; forgotten with it."""

    def __init__(self) -> None:
        self._all: dict[int, _Shadow] = {}
        self._limit = 256

    def _of(self, tensor: Tensor) -> _Shadow:
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self._all.get(key)
        if found is None or found.alive.expired():
            wide = flat(tensor).to(torch.float64) if tensor.dtype.is_floating_point else None
            found = self._all[key] = _Shadow(storage, wide, tensor.dtype)
            if len(self._all) > self._limit:
                self._all = {k: s for k, s in self._all.items() if not s.alive.expired()}
                self._limit = max(256, 2 * len(self._all))
        elif found.dtype != tensor.dtype:
            raise TypeError(f"bits of {found.dtype} read as {tensor.dtype}")
        return found

    def has_shadow(self, tensor: Tensor) -> bool:
        found = self._all.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.alive.expired()

    def value(self, tensor: Tensor) -> Tensor:
        """In float64; of integers and truth values themselves."""
        wide = self._of(tensor).value
        return tensor if wide is None else _as(wide, tensor)

    def error(self, tensor: Tensor) -> Error | None:
        """None where the tensor is exact."""
        shadow = self._of(tensor)
        if not shadow.parts:
            return None
        worst, common, spread = (_as(shadow.parts[part], tensor) for part in PARTS)
        found = Error(worst, common, spread, shadow.shares)
        handed_on = any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        return found.alike() if handed_on else found

    def unsure(self, tensor: Tensor) -> Tensor | None:
        """Where the integers or truth values hang on rounding."""
        mask = self._of(tensor).unsure
        return None if mask is None else _as(mask, tensor)

    def terms(self, tensor: Tensor) -> int:
        """Of how many products each element is the sum; 0 where it is none, or was written to since."""
        return self._of(tensor).terms

    def put_terms(self, tensor: Tensor, terms: int) -> None:
        self._of(tensor).terms = terms

    def put(
        self, tensor: Tensor, value: Tensor | None, error: Error | None, unsure: Tensor | None = None
    ) -> None:  # fmt: skip
        """What a tensor holds from now on. ``value`` is None for integers and for what is as exact as it stands."""
        shadow = self._of(tensor)
        shadow.terms = 0
        if shadow.value is not None:
            _as(shadow.value, tensor).copy_(tensor if value is None else value)
        if error is not None or shadow.parts:
            like = flat(tensor)
            for part in PARTS:
                if part not in shadow.parts:
                    shadow.parts[part] = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
                there = _as(shadow.parts[part], tensor)
                there.zero_() if error is None else there.copy_(getattr(error, part))
        if error is not None:
            covers = tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
            shadow.shares = dict(error.shares) if covers or not shadow.shares else _mixed(shadow.shares, error.shares)
        if unsure is not None or shadow.unsure is not None:
            if shadow.unsure is None:
                shadow.unsure = torch.zeros(flat(tensor).shape, dtype=torch.bool, device=tensor.device)
            there = _as(shadow.unsure, tensor)
            there.zero_() if unsure is None else there.copy_(unsure)


def _mixed(a: Any, b: Any) -> dict[str, float]:
    return {label: (a.get(label, 0.0) + b.get(label, 0.0)) / 2 for label in {*a, *b}}
