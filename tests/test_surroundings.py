"""What a diagnosis says that a program changed in its process."""

from __future__ import annotations

import sys

import torch

from kernelworks.observe.surroundings import Surroundings, _settings


def test_what_a_remedy_sets_is_not_said_of_the_program() -> None:
    """A compiler sets the limit of recursion, and a remedy the number of threads: put back, and no finding."""
    before = _settings()
    with Surroundings() as around:
        torch.use_deterministic_algorithms(True)
        around.mark()
        sys.setrecursionlimit(5000)
        said = around.look()
    assert _settings() == before
    assert [line.partition(" from ")[0] for line in said] == ["the program set deterministic algorithms"]
