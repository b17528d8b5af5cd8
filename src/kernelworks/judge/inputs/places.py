"""Places of a large answer at which it is compared: drawn, and where tiles end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["places_of"]

EDGE_SHARE = 8  # one of so many places lies at the beginning or the end of a dimension
MOST_CORNERS = 8  # dimensions of which all corners are places: of more those of the last ones


def places_of(shape: Sequence[int], most: int, generator: torch.Generator) -> Tensor:
    """About ``most`` flat places of a tensor of that shape, which has more, in order: drawn from all of it, from the
    first and last slices of its dimensions, and its corners. What a kernel leaves out at an edge may be one element of
    millions."""
    count = math.prod(shape)
    at = [torch.randint(count, (most - most // EDGE_SHARE,), generator=generator)]
    edges = most // EDGE_SHARE
    coordinates = torch.stack([torch.randint(size, (edges,), generator=generator) for size in shape])
    which = torch.randint(len(shape), (edges,), generator=generator)
    ends = (torch.tensor(shape) - 1)[which] * torch.randint(2, (edges,), generator=generator)
    coordinates[which, torch.arange(edges)] = ends
    steps = torch.tensor([math.prod(shape[dim + 1 :]) for dim in range(len(shape))])
    at.append((coordinates * steps[:, None]).sum(0))
    sides = [(0,)] * max(0, len(shape) - MOST_CORNERS) + [(0, size - 1) for size in shape[-MOST_CORNERS:]]
    corners = torch.tensor([[*corner] for corner in itertools.product(*sides)])
    at += [(corners * steps).sum(1), torch.tensor([count - 1])]
    found: Tensor = torch.cat(at).unique()
    return found
