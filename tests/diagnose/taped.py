"""A recorder for machines without a GPU: what torch computes while something is recorded is put on a tape, and played
again on the same tensors. Numbers that the host had read by then stay what they were, and a host that waits for the
device meanwhile gets what CUDA has for it: an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.diagnose.graphs.recorder import WARM, Recorder

WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


class _Tape(TorchDispatchMode):
    sees_kernelworks = True

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error, self.calls = error, list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in WAITS:
            raise RuntimeError(self.error)
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made


class Taped(Recorder):
    replays: ClassVar[int] = 0
    failed: ClassVar[int] = 0
    spoilt: ClassVar[list[Any]] = []  # pools of captures that failed
    inside: ClassVar[bool] = False  # a capture

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def record(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        if any(self.pool is pool for pool in Taped.spoilt):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.tape = _Tape("CUDA error: operation not permitted when stream is capturing\nand so on")
        Taped.inside = True
        try:
            with _asked(), self.tape:
                return run()
        except BaseException:
            Taped.failed += 1
            Taped.spoilt.append(self.pool)
            raise
        finally:
            Taped.inside = False

    def replay(self) -> None:
        Taped.replays += 1
        with torch.no_grad():
            for func, args, kwargs, made in self.tape.calls:
                writes = [a.alias_info.is_write for a in func._schema.arguments if a.alias_info is not None]
                again = func(*args, **kwargs)
                if any(writes):
                    continue
                given = {_memory(each) for each in pytree.tree_leaves((args, kwargs))} - {None}
                for old, now in zip(pytree.tree_leaves(made), pytree.tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and _memory(old) not in given:  # else a view
                        old.data.copy_(now)

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        return True

    @staticmethod
    def pools() -> Any:
        return object()

    @staticmethod
    def busy() -> bool:
        return Taped.inside

    @staticmethod
    def warm(run: Callable[[], Any], times: int = WARM) -> None:
        for _ in range(times):
            run()

    @staticmethod
    @contextlib.contextmanager
    def rehearsal() -> Iterator[None]:
        with _asked(), _Tape("called a synchronizing CUDA operation"):
            yield


def _memory(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    """Who asks whether a graph is captured is told so."""
    of_torch: Any = torch.cuda
    before = of_torch.is_current_stream_capturing
    of_torch.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        of_torch.is_current_stream_capturing = before
