"""How an op goes on where an earlier call of it stopped: a state comes out of one call and goes into the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Continuation"]


@dataclass(frozen=True)
class Continuation:
    """``state`` names the arguments that hold the state, and the output that each comes from (of an op in place, the
    argument itself). ``along`` names the arguments and outputs that run over the sequence, and the dimension: calls on
    the parts of a sequence, each on the state of the one before, are then one call on all of it, and are held to its
    bounds. Without it every call is compared with the definition of what it was given."""

    state: Mapping[str, str]
    along: Mapping[str, int] = field(default_factory=dict)
