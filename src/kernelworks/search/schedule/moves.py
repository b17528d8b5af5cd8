"""Moves from one schedule to another. Each says when it is legal, what it costs and what it is tried for; ``apply``
refuses what is not. A move names the passes that it changes by a stage in them, so a list of moves can be replayed on
another schedule of the same kernel."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelworks.search.schedule import joins, loops
from kernelworks.search.schedule.nest import Kernel
from kernelworks.search.schedule.places import Args
from kernelworks.search.schedule.plan import MOST_BLOCK, Illegal, Plan, Schedule, make_plan

__all__ = ["MOVES", "Move", "Step", "apply", "draw_args", "replay_steps"]

Step = tuple[str, Args]  # a move's name and what it is applied to, as JSON has it


@dataclass(frozen=True)
class Move:
    name: str
    legal: str  # when it is
    costs: str
    bottlenecks: tuple[str, ...]  # what it may help a kernel that is bound by
    draw: Callable[[Plan, random.Random], Args | None]
    edit: Callable[..., Schedule]


def apply(kernel: Kernel, schedule: Schedule, name: str, args: Mapping[str, Any]) -> Schedule:
    """The schedule after a move. Raises Illegal if the move is not legal there."""
    move = MOVES.get(name)
    if move is None:
        raise Illegal(f"no move {name!r}; there are {', '.join(MOVES)}")
    plan = make_plan(kernel, schedule)
    try:
        made = move.edit(plan, **args)
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise Illegal(f"{name} of {dict(args)}: {type(error).__name__}: {error}") from None
    make_plan(kernel, made)
    return made


def replay_steps(kernel: Kernel, schedule: Schedule, steps: Sequence[Step]) -> tuple[Schedule, list[Step]]:
    """A schedule after those of the steps that are legal where they come, and which these are."""
    done = []
    for name, args in steps:
        try:
            schedule = apply(kernel, schedule, name, args)
        except Illegal:
            continue
        done.append((name, dict(args)))
    return schedule, done


def draw_args(plan: Plan, name: str, draw: random.Random) -> Args | None:
    """Where a move might be made; None where there is no such place."""
    return MOVES[name].draw(plan, draw)


COMPUTE, MEMORY, OVERHEAD, LATENCY = "compute", "memory", "overhead", "latency"
MOVES = {
    move.name: move
    for move in (
        Move("tile", "the sizes divide the dimensions", "nothing by itself: other moves use the loops",
             (MEMORY,), loops.draw_tile, loops.tile),
        Move("reorder", "loops over what is reduced stay innermost", "another walk through memory",
             (MEMORY,), loops.draw_reorder, loops.reorder),
        Move("vectorise", "what is written along the loop lies side by side", "a rest that is no whole vector; "
             "operands that lie apart are gathered", (COMPUTE, LATENCY), loops.draw_vectorise, loops.vectorise),
        Move("unroll", f"up to {MOST_BLOCK} copies along a loop of the pass's own", "registers, code",
             (COMPUTE, LATENCY), loops.draw_unroll, loops.unroll),
        Move("partials", "they share out the copies along a reduction", "registers; another order of a sum",
             (COMPUTE, LATENCY), loops.draw_partial, loops.partial),
        Move("register_block", "a reduction whose result lies along a vector", "registers; a packed operand is copied "
             "at every call", (COMPUTE, LATENCY), loops.draw_register_block, loops.register_block),
        Move("pack", "the operand is float32, and the order has its dimensions", "a copy at every call",
             (MEMORY, COMPUTE), loops.draw_pack, loops.pack),
        Move("parallel", "loops over what is written, without a rest", "waking threads, some microseconds",
             (LATENCY, OVERHEAD, MEMORY, COMPUTE), loops.draw_parallel, loops.parallel),
        Move("stream", "aligned vectors of an answer that nobody reads again", "an answer that is not in the caches",
             (MEMORY,), loops.draw_stream, loops.stream),
        Move("fuse", "what is read lies where the common loops stand", "less to vectorise inside",
             (MEMORY, OVERHEAD, LATENCY), joins.draw_fuse, joins.fuse),
        Move("part_ways", "always", "what lies between goes through memory", (COMPUTE,), joins.draw_part_ways,
             joins.part_ways),
        Move("join", "both passes have the same loops, and the second reads what the first computes there",
             "registers", (MEMORY, LATENCY, OVERHEAD), joins.draw_join, joins.join),
        Move("finish", "the stage has the loops of what it reads, which is reduced there", "registers",
             (MEMORY, OVERHEAD, LATENCY), joins.draw_finish, joins.finish),
        Move("inline", "a stage without a reduction that is no answer", "computed as often as it is read",
             (MEMORY, OVERHEAD, LATENCY), joins.draw_inline, joins.inline),
        Move("factor", "a reduction over two dimensions or more", "what the parts come to goes through memory; another "
             "order of a sum", (LATENCY, COMPUTE), joins.draw_factor, joins.factor),
    )
}  # fmt: skip
