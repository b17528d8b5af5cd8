"""Arguments that ops of attention share, and calls that they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract import Request, describe
from kernelworks.contract.arguments import Arguments, Error, Number, Word, need_int
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong

__all__ = [
    "CAUSAL", "INDICES", "MAX_DIM", "SCALE", "SidedWindow", "Window", "WindowSize", "decline_wide_float32", "heads_of",
    "wrong_calls",
]  # fmt: skip

MAX_DIM = 256
INDICES = (torch.int32, torch.int64)
SCALE = Number(least=None, finite=True, optional=True)  # of scores
CAUSAL = Word("top_left", "bottom_right", optional=True)
SidedWindow = tuple[int, int] | list[int]


def heads_of(queries: str = "B H Lq D", keys: str = "B Hkv Lk D") -> Arguments:
    """Queries, keys and values by torch's names, of these sizes. Fewer heads of keys than of queries must be said."""
    grouped = ("divides(Hkv, H)", "Hkv == H or enable_gqa")
    return {
        "query": T(queries, where=(f"1 <= D <= {MAX_DIM}",)), "key": T(keys, like="query", where=grouped),
        "value": T(keys, like="query"),
    }  # fmt: skip


@dataclass(frozen=True)
class Window:
    """How many keys up to its own position a query sees, at least that one; None for all. Needs a ``causal`` order."""

    schema = "int?"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None:
            return
        need_int(name, value, " or None")
        if value < 1:
            raise ValueError(f"{name} must be at least 1 (the query's own position), got {value}")
        if given["causal"] is None:
            raise ValueError(f"{name} needs causal='top_left' or 'bottom_right': without it no key is a query's own")

    def right(self, given: GivenArguments) -> Any:
        return None

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} of 0", 0, ValueError, f"{name} must be at least 1"
        yield f"{name} as a float", 2.0, TypeError, f"{name} must be an int"
        yield f"{name} without causal", 4, ValueError, f"{name} needs causal"

    def __str__(self) -> str:
        return "a number of keys of at least 1, or None"


@dataclass(frozen=True)
class WindowSize:
    """How many keys a query sees to the left and to the right of its own position, two ints; -1 for all."""

    schema = "int[]"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        two = isinstance(value, (list, tuple)) and len(value) == 2
        if not two or any(isinstance(side, bool) or not isinstance(side, int) for side in value):
            raise TypeError(f"{name} must be two ints (left, right), got {describe(value)}")
        if min(value) < -1:
            raise ValueError(f"{name} must be at least -1 (no limit) on either side, got {describe(value)}")

    def right(self, given: GivenArguments) -> Any:
        return (-1, -1)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} of one number", 4, TypeError, f"{name} must be two ints"
        yield f"{name} of three", (1, 1, 1), TypeError, f"{name} must be two ints"
        yield f"{name} of truths", (True, False), TypeError, f"{name} must be two ints"
        yield f"{name} below -1", (-2, 0), ValueError, f"{name} must be at least -1"

    def __str__(self) -> str:
        return "two ints of at least -1 (no limit), left and right"


def wrong_calls(
    right: Callable[[], dict[str, Any]], *calls: tuple[str, dict[str, Any], type[Exception], str]
) -> tuple[Error, ...]:
    """A contract's ``errors``: what is wrong with a call, by what it differs from one that is right, what it raises and
    in which words."""

    def made(changed: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        return lambda: right() | changed

    return tuple((what, made(changed), kind, text) for what, changed, kind, text in calls)


def decline_wide_float32(request: Request) -> str | None:
    """Why Triton's kernels decline a call, if they do."""
    query = next(iter(request.args.values()))
    if query.dtype == torch.float32 and query.shape[-1] > 128:
        return "float32 tiles of more than 128 numbers a row do not fit the registers"
    return None
