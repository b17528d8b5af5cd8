"""What a tensor of a graph is sure to hold."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from compiled_graphs import graphs
from torch import Tensor

from kernelworks.compile.constants import constant, possible_values

X = torch.linspace(-1, 1, 8)


def test_only_what_every_call_makes_alike_is_a_constant() -> None:
    def program(x: Tensor) -> list[Tensor]:
        place = torch.arange(8)
        return [
            (place[:, None] >= place) & True,
            torch.full((8, 8), -math.inf).triu(1),
            torch.rand(8) > 0.5,
            F.dropout(torch.ones(8), 0.5),
            torch.bernoulli(torch.full((8,), 0.5)) > 0,
            x > 0,
            torch.zeros(8).add_(x),
        ]

    ((graph, _),) = graphs(program, X)
    made = [constant(node) for node in graph.graph.output_node().args[0]]
    assert [value is not None for value in made] == [True, True, *[False] * 5]
    assert made[0] is not None and bool((made[0] == torch.ones(8, 8, dtype=torch.bool).tril()).all())


def test_the_numbers_that_a_tensor_may_hold() -> None:
    low = torch.finfo(torch.float32).min

    def program(x: Tensor) -> list[Tensor]:
        seen = x > 0
        written = torch.zeros(8)
        written[2:] = x[2:]
        return [
            torch.where(seen, 0.0, low),
            (1.0 - seen.float()) * low,
            torch.zeros(8).masked_fill(seen, -math.inf).to(torch.bfloat16)[None],
            torch.full((8,), low).bfloat16(),  # as that rounds it
            torch.where(seen, 0.0, low) + torch.where(x > 0.5, 0.0, low),  # twice the lowest is less than it
            (1.0 - x) * low,
            seen.float() * -math.inf,  # zero times infinity
            written,
        ]

    ((graph, _),) = graphs(program, X)
    found = [possible_values(node) for node in graph.graph.output_node().args[0]]
    assert found[:3] == [{0.0, low}, {0.0, low}, {0.0, -math.inf}]
    assert found[3:5] == [{-math.inf}, {0.0, low, -math.inf}]
    assert found[5:] == [None] * 3
