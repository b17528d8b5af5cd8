"""Generators of random numbers that a program holds itself, beside those of the process: torch's, Python's, NumPy's."""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch

__all__ = ["copy_generator", "generator_state", "is_generator", "set_generator_state"]


def is_generator(value: Any) -> bool:
    return isinstance(value, (torch.Generator, random.Random)) or _of_numpy(value)


def _of_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def generator_state(generator: Any) -> Any:
    """What ``set_generator_state`` puts back."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    held = getattr(generator, "bit_generator", None)
    return copy.deepcopy(held.state) if held is not None else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif getattr(generator, "bit_generator", None) is not None:
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def copy_generator(generator: Any) -> Any:
    """Another one that goes on from the same state."""
    return generator.clone_state() if isinstance(generator, torch.Generator) else copy.deepcopy(generator)
