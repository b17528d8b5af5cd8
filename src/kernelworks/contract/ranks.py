"""What an op promises that several processes compute together: each rank of a group calls it, and has its own result.

A case of such an op says what one rank gives; on N ranks each draws its own. The process alone is a group too, as MPI's
COMM_SELF: ``group="self"``. Calls on it are what everything that runs in one process tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import ABSENT, Contract
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["SELF_GROUP", "CollectiveContract", "Group", "Ranks", "count_ranks", "group_of", "name_of", "ranks_of"]

SELF_GROUP = "self"  # the group of the process that calls

Calls = Sequence[Mapping[str, Any]]  # what each rank calls the op with
PerRank = Sequence[tuple[Tensor, ...]]  # of each rank its outputs


@dataclass(frozen=True)
class Ranks:
    """``counts``: on how many processes each case is tried. ``reference(calls)`` gives each rank's outputs in float64,
    of all ranks' arguments. ``bound(calls, outputs, dtype)`` says how far a right kernel may be off, for each of these.
    What all ranks hold alike has the relation ``EqualAcrossRanks`` among the contract's results."""

    counts: tuple[int, ...]
    reference: Callable[[Calls], PerRank]
    bound: Callable[[Calls, PerRank, torch.dtype], PerRank]


@dataclass(frozen=True, kw_only=True)
class CollectiveContract(Contract):
    """A contract with ``ranks``: ``reference`` and ``bound`` are of the process alone, and a verification asks for each
    case on N processes too. The mutants of such an op take the arguments of all ranks, each tensor as a list, and give
    a list of outputs."""

    ranks: Ranks


def ranks_of(contract: Contract) -> Ranks | None:
    """What several processes compute together; None of an op of one."""
    return contract.ranks if isinstance(contract, CollectiveContract) else None


# ---------------------------------------------------------------- process groups


def group_of(name: str | None) -> Any:
    """The process group of a name; None is torch's default group. Raises ValueError where there is none."""
    import torch.distributed as dist

    if not dist.is_available():
        raise ValueError(f"this torch has no torch.distributed: group must be {SELF_GROUP!r}")
    if name is None:
        if not dist.is_initialized():
            raise ValueError(
                f"there is no default process group: call init_process_group, or give group={SELF_GROUP!r}"
            )
        return dist.distributed_c10d._get_default_group()
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    try:
        return resolve(name)
    except (RuntimeError, ValueError, KeyError):
        raise ValueError(f"group must be {SELF_GROUP!r} or a process group that there is, got {name!r}") from None


def name_of(group: Any) -> Any:
    """The name of a process group; what is none comes back as it is."""
    return getattr(group, "group_name", group)


def count_ranks(group: str | None) -> int:
    """How many processes a group has. Raises ValueError where there is no such group."""
    return 1 if group == SELF_GROUP else int(group_of(group).size())


@dataclass(frozen=True)
class Group:
    """A process group by its name: None is the default one, ``"self"`` the process alone."""

    schema = "str?"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is ABSENT:
            raise TypeError(f"{name} is missing")
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} must be a process group or its name, got {type(value).__name__}")
        if value != SELF_GROUP:
            group_of(value)

    def right(self, given: GivenArguments) -> Any:
        return SELF_GROUP

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a number", 1, TypeError, f"{name} must be a process group"
        yield f"{name} that there is not", "unheard of", ValueError, f"{name} must be {SELF_GROUP!r} or a process group"

    def __str__(self) -> str:
        return f"a process group or its name, {SELF_GROUP!r} for the process alone, None for the default one"
