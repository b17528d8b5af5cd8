"""One call signature, benchmarked: every way to run it with kernels of ours against torch's own function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.dispatch.op import Op
from kernelworks.measure.autotune.live import Training, detach_args, kernelworks_call, torch_call, waiter
from kernelworks.measure.clock.duel import FAR_RATIO, Duel, check_time, duel, fastest_variant

__all__ = ["CallRace", "failure_reason", "race_forward", "race_training"]

Call = Callable[[], Any]


@dataclass(frozen=True)
class CallRace:
    """The quickest way of ours against torch: the forward, or forward and backward ``whole`` and the ``backward``
    alone; for a kernel that makes the gradients with its forward, that is the whole again. ``lost`` says why a way
    could not be benchmarked."""

    way: str
    whole: Duel | None  # None if no way could be benchmarked
    backward: Duel | None
    lost: dict[str, str]


def race_forward(op: Op, args: tuple[Any, ...], ways: Iterable[str], until: float = math.inf) -> CallRace:
    """Raises what torch's own function raises: then the call itself would; and OverTime, if nothing is known
    ``until`` then (``duel.clock``)."""
    mine = detach_args(op, args)
    wait = waiter(mine)
    torchs = torch_call(op, mine)
    _run(torchs, wait)
    able, lost = _able(((way, kernelworks_call(op, mine, way)) for way in ways), wait, until)
    if not able:
        return CallRace("", None, None, lost)
    way = fastest_variant(list(able.items()), wait, until)
    return CallRace(way, duel(able[way], torchs, wait, alike=_alike(wait), until=until), None, lost)


def race_training(op: Op, args: tuple[Any, ...], ways: Sequence[str], until: float = math.inf) -> CallRace:
    """A way is a kernel that makes the gradients with its forward, or a kernel for each with a ``+`` between.

    Raises what torch's own function raises, and OverTime; not between the two races, if the first found ours far
    ahead: what it took, the second takes no more of.
    """
    with torch.enable_grad():
        training = Training(op, args)
        wait = waiter(args)
        torchs = training.forward_backward(None)
        _run(torchs, wait)
        made: dict[str, Call] = {}
        lost: dict[str, str] = {}
        for way in ways:
            try:
                made[way] = training.forward_backward(way)
            except Exception as error:
                lost[way] = failure_reason(error)
        able, unable = _able(made.items(), wait, until)
        lost |= unable
        if not able:
            return CallRace("", None, None, lost)
        way = fastest_variant(list(able.items()), wait, until)
        whole = duel(able[way], torchs, wait, alike=_alike(wait), until=until)
        del made, able, torchs  # and what flows in with them
        backward = whole
        if "+" in way:  # else it has none of its own: of a graph that is kept it would make everything once more
            until = math.inf if whole.ours and whole.result.ratio > FAR_RATIO else until
            backward = duel(training.backward(way), training.backward(None), wait, alike=_alike(wait), until=until)
    return CallRace(way, whole, backward, lost)


def _able(
    variants: Iterable[tuple[str, Call]], wait: Call | None, until: float
) -> tuple[dict[str, Call], dict[str, str]]:  # fmt: skip
    """The variants that run through once, and for the others why not: a kernel that cannot be built, no memory left."""
    able: dict[str, Call] = {}
    lost: dict[str, str] = {}
    for name, variant in variants:
        check_time(until)
        try:
            _run(variant, wait)
        except Exception as error:
            lost[name] = failure_reason(error)
        else:
            able[name] = variant
    return able, lost


def _alike(wait: Call | None) -> bool:
    """Whether a busy neighbour slows both sides alike: if nothing of a call waits for another thread of the CPU."""
    return wait is not None or torch.get_num_threads() == 1


def _run(variant: Call, wait: Call | None) -> None:
    variant()
    if wait is not None:
        wait()


def failure_reason(error: BaseException) -> str:
    """Why a race could not be run, as a line."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error):
        return "there is not enough memory for a race beside the program"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
