"""Checkpoints of torch's older kind (``use_reentrant=True``) in a comparison: made as those of the newer kind, which
compute the same numbers again.

The older ones refuse ``torch.autograd.grad``, by which the gradients of a module run alone are taken, and what they
compute again in a backward is out of reach of a mode that the program is run under.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint

__all__ = ["newer_checkpoints"]

OLDER = "CheckpointFunction"  # what torch makes one of, by its name in ``torch.utils.checkpoint``


class _Newer:
    """Stands in the place of ``CheckpointFunction``."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if not any(isinstance(one, Tensor) and one.requires_grad for one in args):
            with torch.no_grad():  # as the older kind has it: no gradient goes into such a checkpoint
                return function(*args)
        return checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state,
            determinism_check="none",  # the older kind makes none
        )  # fmt: skip


@contextlib.contextmanager
def newer_checkpoints() -> Iterator[None]:
    older = getattr(checkpoint, OLDER, None)
    if older is None or isinstance(older, _Newer):
        yield
        return
    setattr(checkpoint, OLDER, _Newer())
    try:
        yield
    finally:
        setattr(checkpoint, OLDER, older)
