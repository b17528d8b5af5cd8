"""Finds the largest parts of a module for which something can be done: from the top down, one part of each kind tried
for all others of that kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from kernelworks.diagnose.sites.modules import kind_of

__all__ = ["called_within", "largest"]

MOST_TRIES = 24  # kinds of parts
FEWEST = 3  # modules that a part must call, itself among them: a graph of one product is as many launches


def called_within(run: Callable[[], Any]) -> set[int]:
    """The modules that a run calls, by ``id``."""
    found: set[int] = set()
    hook = register_module_forward_pre_hook(lambda module, args: found.add(id(module)))
    try:
        run()
    finally:
        hook.remove()
    return found


def largest(
    root: nn.Module, called: set[int], attempt: Callable[[Sequence[nn.Module]], Sequence[nn.Module]]
) -> list[nn.Module]:
    """The largest parts below ``root`` that ``attempt`` gives back of those it is given, none within another, in the
    order in which the module holds them."""
    found: list[nn.Module] = []
    level, left = list(_below(root, called)), MOST_TRIES
    while level and left > 0:
        kinds: dict[Any, list[nn.Module]] = {}
        for part in {id(each): each for each in level}.values():
            kinds.setdefault(kind_of(part), []).append(part)
        tried = [alike[0] for alike in kinds.values()][:left]
        left -= len(tried)
        taken = {id(part) for part in attempt(tried)}
        level = []
        for alike in list(kinds.values())[: len(tried)]:
            if id(alike[0]) in taken:
                found += alike
            else:
                level += [below for part in alike for below in _below(part, called)]
    inside = {id(below) for part in found for below in part.modules() if below is not part}
    wanted = {id(part) for part in found} - inside
    return [part for part in root.modules() if id(part) in wanted]


def _below(part: nn.Module, called: set[int]) -> Iterator[nn.Module]:
    """The nearest parts of it that are called and call enough themselves; through lists of modules, which nobody
    calls."""
    for child in part.children():
        if id(child) not in called:
            yield from _below(child, called)
        elif sum(id(each) in called for each in child.modules()) >= FEWEST:
            yield child
