"""References that were computed are kept: several kernels, mutants and the bounds are judged on the same cases.

In float64, with its gradients, a reference takes longer than the kernels that it judges. It follows from the inputs and
from what the contract says of one call (``Case`` and ``Contract``): the same case in another list of cases, or with
fewer dtypes, has the same.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from kernelworks.contract import Case
from kernelworks.dispatch.op import Op

__all__ = ["ReferenceCache"]

T = TypeVar("T")
MOST_BYTES = 192 << 20
LEAST_KEPT = 3  # one case on several kernels, however large


class ReferenceCache(Generic[T]):
    """What ``compute`` gives, the last ``LEAST_KEPT`` and before them as many as ``MOST_BYTES`` hold."""

    def __init__(self, compute: Callable[..., T]) -> None:
        functools.update_wrapper(self, compute)
        self._compute = compute
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(
        self, op: Op, case: Case, dtype: torch.dtype, seed: int = 0, device: str = "cpu", inner: str = "float32"
    ) -> T:
        said = op.contract
        of_call = (said.reference, said.bound, said.gradient_bound, tuple(said.differentiable))
        of_case = (case.name, case.make, case.gradients, case.flow, case.pieces)
        key = (op, of_call, of_case, dtype, seed, device, inner)
        with self._lock:
            held = self._kept.get(key)
            if held is not None:
                self._kept.move_to_end(key)
                return held[0]
        made = self._compute(op, case, dtype, seed, device, inner)
        with self._lock:
            self._keep(key, made)
        return made

    def _keep(self, key: Hashable, made: T) -> None:
        if key not in self._kept:  # another thread may have been quicker
            self._kept[key] = made, _bytes_of(made)
            self._bytes += self._kept[key][1]
        while len(self._kept) > LEAST_KEPT and self._bytes > MOST_BYTES:
            _, (_, size) = self._kept.popitem(last=False)
            self._bytes -= size

    def cache_clear(self) -> None:
        """Keeps none."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0


def _bytes_of(value: Any) -> int:
    """Of all tensors in it."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes_of, value))
    return sum(_bytes_of(getattr(value, f.name)) for f in fields(value)) if is_dataclass(value) else 0
