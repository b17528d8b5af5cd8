"""The table of proposers: a name, and what makes one for a search. A module is loaded when its proposer is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kernelworks.search.proposer import Proposer, Setting, UnfitProposer

__all__ = ["PROPOSERS", "make_proposers"]


def _parameters(setting: Setting) -> Proposer:
    from kernelworks.search.parameters import Parameters

    return Parameters(setting)


def _schedule(setting: Setting) -> Proposer:
    from kernelworks.search.schedule import ScheduleRewriting

    proposer = ScheduleRewriting(seed=setting.seed, over=setting.over)
    if proposer.unfit(setting.problem):
        raise UnfitProposer(proposer.unfit(setting.problem))
    return proposer


def _model(setting: Setting) -> Proposer:
    from kernelworks.search.model import make_model

    return make_model(setting)


# A factory raises UnfitProposer if its proposer has nothing to work with.
PROPOSERS: dict[str, Callable[[Setting], Proposer]] = {
    "parameters": _parameters,
    "model": _model,
    "schedule": _schedule,
}


def make_proposers(
    names: Sequence[str] | None, setting: Setting, options: Mapping[str, str]
) -> tuple[list[Proposer], list[str]]:
    """The proposers of these names, or all that can do something here, and a line for each that cannot.

    ``options`` are ``PROPOSER.NAME`` -> value. Raises ValueError for a name that there is not, UnfitProposer if one
    that was asked for can do nothing.
    """
    for name in names or ():
        if name not in PROPOSERS:
            raise ValueError(f"proposers takes {', '.join(PROPOSERS)}, got {name!r}")
    for word in options:
        if word.partition(".")[0] not in PROPOSERS or not word.partition(".")[2]:
            raise ValueError(f"options takes PROPOSER.NAME of {', '.join(PROPOSERS)}, got {word!r}")
    made, left = [], []
    for name in dict.fromkeys(names) if names is not None else PROPOSERS:
        its = {word.partition(".")[2]: value for word, value in options.items() if word.partition(".")[0] == name}
        try:
            made.append(PROPOSERS[name](replace(setting, options=its)))
        except UnfitProposer as error:
            if names is not None:
                raise UnfitProposer(f"{name}: {error}") from error
            left.append(f"{name}: {error}")
    return made, left
