"""The order in which what is kept is put in place. A plan has the same order.

A compiler and a graph hold what they were given: the memory of weights, the modules that were there, their dtypes. What
moves or replaces any of it comes first, and if something comes beneath them later, they are made anew on top of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelworks.diagnose.fix.attempt import Try

__all__ = ["SETTINGS", "tries_above", "tries_beneath", "first_asked", "in_order", "is_asked_last", "stage"]

SETTINGS, LAYOUT, WEIGHTS, DTYPE, OPS, COMPILERS, GRAPHS, INDEPENDENT = range(8)
CUDA_GRAPHS, TUNED = "reduce-overhead", "max-autotune"  # torch.compile's modes
STAGES = {
    "threads": SETTINGS,  # of the process: nothing that is compiled or captured holds them
    "allocator": SETTINGS,
    "channels_last": LAYOUT,  # moves weights
    "folded norms": WEIGHTS,  # replaces modules and their weights
    "merged projections": WEIGHTS,
    "unread maps": WEIGHTS,  # a compiler traces what is called then
    "weights cast once": DTYPE,
    "fewer bits": DTYPE,
    "swap": OPS,  # a compiler traces what the modules call by then
    "swap in functions": OPS,
    "torch.compile": COMPILERS,
    "static cache": COMPILERS,  # compiles the steps of a decoder
    "CUDA graph": GRAPHS,
}  # what is not named (optimizers, input) is beside: it neither moves parameters of modules nor is captured with them


def stage(one: Try) -> int:
    return STAGES.get(one.candidate.optimization, INDEPENDENT)


def in_order(tries: Sequence[Try]) -> list[Try]:
    return sorted(tries, key=stage)


def tries_beneath(one: Try, others: Sequence[Try]) -> list[Try]:
    """Those that are in place when it is put there, in their order: all but what comes on top of it."""
    mine = stage(one)
    return in_order([o for o in others if o is not one and not mine < stage(o) < INDEPENDENT])


def tries_above(one: Try, others: Sequence[Try]) -> list[Try]:
    """Those that hold what it moves or replaces, and must be made anew on top of it."""
    mine = stage(one)
    if mine == SETTINGS:
        return []
    return in_order([o for o in others if o is not one and mine < stage(o) and stage(o) in (COMPILERS, GRAPHS)])


def first_asked(tries: Sequence[Try], *, on_gpu: bool) -> list[Try]:
    """In the order in which they are predicted. On a GPU what a good engineer tries first, and what gains most often,
    is the whole compiled with CUDA graphs: a small budget must not be over before it."""
    return sorted(tries, key=lambda one: not (on_gpu and one.candidate.option("mode") == CUDA_GRAPHS))


def is_asked_last(one: Try, *, isolated: bool) -> bool:
    """Whether it is predicted once nothing else waits: what tunes every kernel may take minutes in silence and gains
    little beyond what was compiled before, and what may end the user's own process must not end it sooner."""
    return TUNED in str(one.candidate.option("mode", "")) or (one.candidate.risky and not isolated)
