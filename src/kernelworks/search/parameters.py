"""Parameter search: other points of the spaces that candidates declare, chosen by Optuna's tree of Parzen estimators.

Spaces are those of ``space``. Every text that declares one is a family with all others that differ from it in those
constants alone, whoever wrote it; each family has a study of its own, made anew from the verdicts of the store, so a
search that goes on knows what it knew. What is wrong or does not load counts as worst there. Every other point is a
neighbour of the best so far, in one constant: what somebody has tuned by hand is seldom far from a better one, and a
space of many constants is mostly wrong or slow.

What is pruned, by the model of time: a family that has come within a twentieth of the least time of a call (what the
bytes and the arithmetic take at this machine's rates) has nothing left to be found; a point whose ``THREADS`` are so
few that even the least time on them is more than the best call so far is not tried. What a tile or an unrolling costs
no model of ours can say, so nothing else is pruned.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelworks.judge.problem import Misread, Problem
from kernelworks.search.proposer import Draft, Setting, StoredCandidate, UnfitProposer
from kernelworks.search.space import Point, Space, Value, space_in

__all__ = ["Parameters"]

NEAR_LEAST_SHARE = 0.95  # of what the machine can do at best, from which on nothing is left to be found
STARTS = 8  # points of a family that are drawn before the estimators are asked
TRIES = 24  # that a sampler may spend on points that are known
MOST_LISTED = 1 << 14  # points of a space that are listed, to take those that are left
THREADS = "THREADS"


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UnfitProposer(
            "it needs Optuna, which is not installed: pip install 'kernelworks[search]' (or pip install optuna)"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@dataclass
class _Family:
    """A space with what was tried of it."""

    space: Space
    study: Any
    known: set[tuple[Value, ...]] = field(default_factory=set)
    told: set[str] = field(default_factory=set)  # ids of candidates
    best: StoredCandidate | None = None
    language: str = ""
    asked: int = 0
    over: bool = False  # no point is left that can be come upon

    def key(self, point: Point) -> tuple[Value, ...]:
        return tuple(point[name] for name in self.space.choices)


class Parameters:
    """The proposer. Raises UnfitProposer without Optuna."""

    name = "parameters"

    def __init__(self, setting: Setting) -> None:
        self.setting, self.optuna = setting, _optuna()
        self.families: dict[str, _Family] = {}
        self.remark = ""  # why it proposes nothing
        self._looked = 0  # candidates of the store that were looked at
        self._draw = random.Random(setting.seed)
        self._waiting: dict[str, tuple[StoredCandidate, Space]] = {}  # looked at before they were judged

    # ------------------------------------------------------------ what is known

    def propose(self, problem: Problem, seen: Sequence[StoredCandidate], most: int) -> list[Draft]:
        self._look(seen)
        found: list[Draft] = []
        while len(found) < most:
            family = self._turn()
            if family is None:
                break
            point = self._next(family)
            if point is None:
                continue
            family.asked += 1
            found.append(self._draft(family, point))
        return found

    def observe_verdict(self, seen: StoredCandidate) -> None:
        space = self._space(seen)
        if space is not None:
            self._take(seen, space)

    def _look(self, seen: Sequence[StoredCandidate]) -> None:
        """At what came since the last time, whoever it is from."""
        for one in seen[self._looked :]:
            space = self._space(one)
            if space is not None:
                self._waiting[one.id] = (one, space)
        self._looked = len(seen)
        for id, (one, space) in list(self._waiting.items()):
            now = one if one.judgement is not None else seen[one.number - 1]
            self._take(now, space)
            if now.judgement is not None:
                del self._waiting[id]

    def _space(self, seen: StoredCandidate) -> Space | None:
        try:
            return space_in(seen.draft.code)
        except Misread as error:
            self.remark = f"candidate {seen.number}: {error}"
            return None

    def _take(self, seen: StoredCandidate, space: Space) -> None:
        """What a candidate says of its family."""
        family = self.families.get(space.family)
        if family is None:
            sampler = self.optuna.samplers.TPESampler(
                seed=self.setting.seed, n_startup_trials=STARTS, multivariate=True
            )
            family = _Family(space, self.optuna.create_study(sampler=sampler), language=seen.draft.language)
            self.families[space.family] = family
        point = dict(space.at)
        inside = all(value in family.space.choices[name] for name, value in point.items())
        if inside:
            family.known.add(family.key(point))
        if seen.judgement is None or seen.id in family.told:
            return
        family.told.add(seen.id)
        if inside:
            family.study.add_trial(self._trial(family, point, seen))
        if self._cost(seen) < self._cost(family.best):
            family.best = seen

    def _cost(self, seen: StoredCandidate | None) -> float:
        """What is to become less: the time as a share of the baseline's on the same inputs, which a busy machine hits
        as much; of its interval the end that is surely reached, so that luck is no merit."""
        found = seen.judgement if seen is not None and seen.right else None
        low = next((s.low for s in found.speeds if s.over == self.setting.over), 0.0) if found is not None else 0.0
        return 1 / low if low > 0 else math.inf

    def _trial(self, family: _Family, point: Point, seen: StoredCandidate) -> Any:
        """A finished trial of the study's: the logarithm of its cost, or none where it has none."""
        cost = self._cost(seen)
        right = math.isfinite(cost)
        states = self.optuna.trial.TrialState
        return self.optuna.trial.create_trial(
            state=states.COMPLETE if right else states.PRUNED,
            params={name: self._coded(family.space.choices[name], value) for name, value in point.items()},
            distributions=self._distributions(family.space),
            value=math.log(cost) if right else None,
        )

    # ------------------------------------------------------------ numbers keep their order, words have none

    def _distributions(self, space: Space) -> dict[str, Any]:
        kinds = self.optuna.distributions
        return {
            name: kinds.IntDistribution(0, len(of) - 1) if _ordered(of) else kinds.CategoricalDistribution(of)
            for name, of in space.choices.items()
        }

    def _coded(self, values: tuple[Value, ...], value: Value) -> Value:
        return values.index(value) if _ordered(values) else value

    def _decoded(self, space: Space, params: dict[str, Any]) -> Point:
        return {n: values[params[n]] if _ordered(values) else params[n] for n, values in space.choices.items()}

    # ------------------------------------------------------------ what is proposed

    def _turn(self) -> _Family | None:
        """The family that is asked next: by turns the quickest, and the one that was asked least."""
        open = [family for family in self.families.values() if self._open(family)]
        if not open:
            why = dict.fromkeys(self._closed(f) for f in self.families.values())
            self.remark = "; ".join(why) or self.remark or "no candidate declares a SPACE"
            return None
        least = min(open, key=lambda f: f.asked)
        if sum(f.asked for f in open) % 2:
            return least
        return min(open, key=lambda f: self._cost(f.best))

    def _open(self, family: _Family) -> bool:
        return not self._closed(family)

    def _closed(self, family: _Family) -> str:
        """Why nothing of a family is proposed any more."""
        if family.over or len(family.known) >= family.space.size:
            return "every point was tried"
        least = self.setting.least_s(self.setting.threads) if self.setting.least_s else 0.0
        seconds = family.best.seconds if family.best is not None else None
        if seconds and NEAR_LEAST_SHARE * seconds <= least and self._believed(seconds):
            return f"its best is within {1 - NEAR_LEAST_SHARE:.0%} of the least time of a call"
        return ""

    def _next(self, family: _Family) -> Point | None:
        """A point that was not tried; each that is taken up or left out counts as known."""
        beside = self._beside(family) if family.asked % 2 == 0 else None
        point = beside or self._sampled(family) or self._left(family)
        if point is None:
            family.over = True
            return None
        family.known.add(family.key(point))
        return None if self._hopeless(family, point) else point

    def _beside(self, family: _Family) -> Point | None:
        """The best with one constant at the value before or behind it, of words at any other one."""
        space = space_in(family.best.draft.code) if family.best is not None else None
        if space is None:
            return None
        found = []
        for name, values in family.space.choices.items():
            at = values.index(space.at[name]) if space.at[name] in values else -1
            near = values[max(0, at - 1) : at] + values[at + 1 : at + 2] if _ordered(values) and at >= 0 else values
            found += [dict(space.at) | {name: value} for value in near]
        fresh = [point for point in found if family.key(point) not in family.known]
        return self._draw.choice(fresh) if fresh else None

    def _sampled(self, family: _Family) -> Point | None:
        distributions = self._distributions(family.space)
        for _ in range(TRIES):
            trial = family.study.ask(distributions)
            family.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)  # its verdict comes as a trial of its own
            point = self._decoded(family.space, trial.params)
            if family.key(point) not in family.known:
                return point
        return None

    def _left(self, family: _Family) -> Point | None:
        """One of those that the sampler does not come upon."""
        if family.space.size > MOST_LISTED:
            for _ in range(TRIES * TRIES):
                point = {name: self._draw.choice(values) for name, values in family.space.choices.items()}
                if family.key(point) not in family.known:
                    return point
            return None
        left = [point for point in family.space.points() if family.key(point) not in family.known]
        return self._draw.choice(left) if left else None

    def _hopeless(self, family: _Family, point: Point) -> bool:
        """Whether the least time on so few threads is more than the best call so far took."""
        threads, least_s = point.get(THREADS), self.setting.least_s
        if type(threads) is not int or threads < 1 or least_s is None or family.best is None:
            return False
        most = family.best.seconds or math.inf
        return least_s(min(threads, self.setting.threads)) > most and self._believed(most)

    def _believed(self, seconds: float) -> bool:
        """Whether the least time is one: what is surely quicker than it says that the machine was measured wrongly."""
        least_s = self.setting.least_s
        return least_s is not None and least_s(self.setting.threads) <= seconds / NEAR_LEAST_SHARE

    def _draft(self, family: _Family, point: Point) -> Draft:
        parents = (family.best.id,) if family.best is not None else ()
        before = space_in(family.best.draft.code) if family.best is not None else None
        was: Mapping[str, Value] = before.at if before is not None else {}
        changed = [f"{name} {was.get(name, '')} -> {value}" for name, value in point.items() if was.get(name) != value]
        return Draft(
            family.space.text_at(point), family.language, self.name, parents,
            note=", ".join(changed), detail={"family": family.space.family, "point": point},
        )  # fmt: skip


def _ordered(values: tuple[Value, ...]) -> bool:
    """Whether neighbours in a list are alike: numbers, each larger than the one before."""
    if not all(type(value) in (int, float) for value in values):
        return False
    return all(float(a) < float(b) for a, b in itertools.pairwise(values))
