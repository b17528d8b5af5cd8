"""One rank of those that a verification of N processes starts (``verify/ranks.py``): what it is told to call, it calls.

The process has joined the default group, and the groups of the first ranks, before it answers for the first time. It
ends with its parent.
"""

from __future__ import annotations

import argparse
import importlib
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelworks.dispatch.op import OPS
from kernelworks.machine.parent_process import die_with_parent
from kernelworks.verify.guarded_buffers import arena
from kernelworks.verify.parity import misused_memory, poisoned_out
from kernelworks.verify.reference import flat_outputs

__all__ = ["Place", "call_after", "call_guarded", "call_often", "main", "remake_groups"]


JOIN_S = 600.0  # how long ranks may take to start


@dataclass
class Place:
    """Where a function runs: which rank of how many, and the groups of the first so many ranks, by their number."""

    rank: int
    ranks: int
    timeout_s: float
    groups: dict[int, str]
    round: int = 0  # of groups made


def _join(place: Place, folder: str) -> None:
    """Joins all groups. Until every rank has, each has time to come; then the groups have their own timeout."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks-{place.round}", rank=place.rank, world_size=place.ranks,
        timeout=timedelta(seconds=JOIN_S),
    )  # fmt: skip
    made = {count: dist.new_group(list(range(count))) for count in range(2, place.ranks)}
    made[place.ranks] = dist.group.WORLD
    dist.barrier()
    own = {count: group for count, group in made.items() if place.rank < count}
    for group in own.values():
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=place.timeout_s), group)
    place.groups = {count: group.group_name for count, group in own.items()}


# ---------------------------------------------------------------- what a rank may be told to call


def _positional(place: Place, op: str, call: Mapping[str, Any], count: int) -> list[Any]:
    named = {**call, "group": place.groups[count]}
    return [named[name] for name in OPS[op].passes["forward"].names]


def call_guarded(
    place: Place, op: str, kernel: str, call: Mapping[str, Any], count: int, layout: str, at_end: bool
) -> tuple[list[Tensor], str]:
    """The outputs of a call in guarded and poisoned memory, and what it did to memory that is not its own."""
    of, before = OPS[op], _positional(place, op, call, count)
    with arena(at_end=at_end) as memory, torch.no_grad():
        args = tuple(memory.place(a, layout) for a in before)
        out = poisoned_out(of, args, memory)
        result = [t.clone() for t in flat_outputs(of(*args, out=out, kernel=kernel))]
        wrong = misused_memory(memory, args, before)
        del args, out
    return result, wrong


def call_after(place: Place, op: str, kernel: str, call: Mapping[str, Any], count: int, seconds: float) -> list[Tensor]:
    """The outputs of a call that begins so many seconds late."""
    time.sleep(seconds)
    return list(flat_outputs(OPS[op](*_positional(place, op, call, count), kernel=kernel)))


def call_often(
    place: Place, op: str, kernel: str, call: Mapping[str, Any], count: int, times: int
) -> list[list[Tensor]]:
    """The results of many calls, each of other values than the one before: x, -x, x, ...; those that differ from the
    first of their kind are kept beside these two."""
    found: list[list[Tensor]] = []
    for i in range(times):
        turned = {n: -v if isinstance(v, Tensor) and i % 2 else v for n, v in call.items()}
        made = call_after(place, op, kernel, turned, count, 0.0)
        if i < 2 or not all(map(torch.equal, made, found[i % 2])):
            found.append(made)
    return found


def remake_groups(place: Place, folder: str) -> None:
    """Destroys all groups, and makes them again."""
    dist.destroy_process_group()
    place.round += 1
    _join(place, folder)


# ---------------------------------------------------------------- the process


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("descriptor", type=int, help="of the connection to the parent")
    parser.add_argument("folder", help="where the ranks find each other")
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("timeout", type=float, help="seconds, of the groups")
    args = parser.parse_args()
    die_with_parent()
    torch.set_num_threads(1)
    place = Place(args.rank, args.ranks, args.timeout, {})
    with Connection(args.descriptor) as parent:
        _join(place, args.folder)
        parent.send_bytes(pickle.dumps(("value", None)))
        while True:
            try:
                module, name, arguments = pickle.loads(parent.recv_bytes())
            except EOFError:
                return
            function: Callable[..., Any] = getattr(importlib.import_module(module), name)
            try:
                answer = ("value", function(place, *arguments))
            except Exception as error:
                answer = ("raised", (type(error).__name__, str(error)))
            parent.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    main()
