"""Calls that torch captures in CUDA graphs, and that may be given their own answers.

A graph writes its answers to the same memory at each call. A loop gives a call the answer of the one before
(``state = step(state)``; the keys and values of a cache that grows). Once torch only replays, it copies such an
argument to the graph's own memory first. Around its first calls, which warm up and capture, it gives the memory of the
last answers back instead, and raises when the loop reads them ("accessing tensor output of CUDAGraphs that has been
overwritten"). So whether a program worked depended on what its module was first called with. Here those calls are given
copies.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.diagnose.snapshot import map_tensors

__all__ = ["captures", "memory_given_back", "with_answers_copied"]

IsAnswer = Callable[[Tensor], bool]


def captures(mode: object) -> bool:
    """Whether torch captures what it compiles in this mode."""
    return mode in ("reduce-overhead", "max-autotune")


def memory_given_back() -> IsAnswer | None:
    """Which tensors lie in memory that torch's graphs give back when the next call begins; None if they give back
    none."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or not torch.cuda.is_initialized():
        return None
    with contextlib.suppress(Exception):  # torch's own and no interface: without it a program sees torch's error
        manager = trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
        if manager is not None and (manager.in_warmup or manager.in_recording):
            found: IsAnswer = manager._get_cuda_graph_recorded_tensor_checker()
            return found
    return None


def with_answers_copied(
    compiled: Callable[..., Any], given_back: Callable[[], IsAnswer | None] = memory_given_back
) -> Callable[..., Any]:
    """What calls it with copies of those arguments whose memory is ``given_back``. In lists, dicts and objects they
    take the place of what was there. Gradients need none: a graph that is to be run backwards gives nothing back."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_answer = None if torch.compiler.is_compiling() else given_back()
        if is_answer is not None:
            with contextlib.suppress(Exception):  # what a program's own objects raise: torch says what is wrong
                copied = functools.partial(_copied, is_answer=is_answer)
                args, kwargs = map_tensors((args, kwargs), copied, in_place=True)
        return compiled(*args, **kwargs)

    return call


def _copied(tensor: Tensor, is_answer: IsAnswer) -> Tensor:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.requires_grad
    return tensor.clone() if plain and is_answer(tensor) else tensor
