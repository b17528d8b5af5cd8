"""Settle what the program calls, swap in what won, predict the gain, prove the outputs, measure in alternation, and
give everything back.

The same on every device; ``forecast`` surveys and foretells the swapped program there.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kernelworks.ceilings.quiet import Sifted, far_apart, sift
from kernelworks.diagnose.agree import Agreement, compare
from kernelworks.diagnose.forecast import Forecaster
from kernelworks.diagnose.predict import Forecast
from kernelworks.diagnose.roots import Roots, Swapped, find
from kernelworks.observe.budget import Budget, Over
from kernelworks.observe.places import fold
from kernelworks.observe.program import Program
from kernelworks.records import Fix
from kernelworks.settle import settle

__all__ = ["alternate", "apply_fix", "lines", "noise_of"]

Say = Callable[[str], None]
LEAST_ROUNDS = 2
LEAST_NOISE = 0.02  # of the wall clock: two runs of one program are seldom nearer
MOST_SHARE = 2.0  # of the original's time: what is predicted beyond it is a disturbance, of no known size
NOTHING = "nothing to be had here"
SETTLING = 1.0  # of the budget, for races of the calls that are not known of this machine yet
JUDGING = 40  # runs of the program, for comparing its modules: in float64, and with roundings added, a run is slower
TURNS = 6  # how often the modules are swapped after the first time, at the least


def noise_of(walls: Sequence[float]) -> float:
    """Seconds within which two wall clocks of one program are the same: the middle distance from the median, and 2% at
    the least."""
    middle = statistics.median(walls)
    return max(LEAST_NOISE * middle, statistics.median(abs(wall - middle) for wall in walls))


def _range(walls: Sequence[float]) -> str:
    return f"runs of the program as it is took {_ms(min(walls))} to {_ms(max(walls))}"


def apply_fix(program: Program, walls: Sequence[float], forecaster: Forecaster, *, budget_s: float, say: Say) -> Fix:
    """Everything that ``--fix`` does; afterwards every module is as it was.

    The calls that no timing speaks of yet are raced first, and what is swapped in is what won, op by op. What the
    swapped program will take is predicted before it is ever timed, as a share of what the original takes in the same
    minute. A swap that is predicted to bring nothing beyond the noise is not applied. One that is measured to lose more
    than the noise, or whose outputs are worse, is refused. What would take longer than the budget, beside the program's
    own runs, is not begun or not ended, and the fix is refused. ``walls`` are the original's, plain.
    Raises nothing but what ends a process: what goes wrong is why the fix is refused.
    """
    doing = "starting"

    def step(what: str) -> None:
        nonlocal doing
        doing = what
        say(what)

    try:
        return _applied(program, walls, forecaster, budget_s=budget_s, say=step)
    except Over as over:
        refused = f"it was not carried out: {over}"
    except Exception as error:  # the program's, swapped or run once too often, or ours: the diagnosis stands
        text = str(error).strip().splitlines()
        said = f"{type(error).__name__}{f': {text[0][:300]}' if text else ''}"
        refused = f"it could not be carried out: {doing}: {said}"
    wall, note = statistics.median(walls), "every module is as it was, and the rest of the diagnosis holds"
    return _fix(wall, wall, notes=(note,), agrees=False, refused=refused)


def _fix(was: float, now: float, **found: Any) -> Fix:
    """The record of a fix; by default of one that was not applied."""
    applied: dict[str, Any] = {
        "replaced": (), "left": (), "predicted_gain_s": 0.0, "error_before": 0.0, "error_after": 0.0, "agrees": True,
        "rounds": 0, "against": "",
    }  # fmt: skip
    return Fix(before_s=was, after_s=now, gain_s=was - now, **applied | found)


def _applied(program: Program, walls: Sequence[float], forecaster: Forecaster, *, budget_s: float, say: Say) -> Fix:
    wall = statistics.median(walls)
    budget = Budget(budget_s, wall)
    program = dataclasses.replace(program, run=budget.counted(program.run))
    say("finding the modules that the program calls")
    roots = find(program.run, budget)
    if not roots.modules:
        return _fix(wall, wall, notes=("the program calls no torch.nn.Module: nothing to swap",))
    whole = forecaster.whole(program)
    with budget.apart():  # it has a budget of its own
        settled = _settled(whole, roots, SETTLING * budget_s, say)
        forecaster.before(whole)
    say("building the rows that the swapped program needs")
    with Swapped(roots, most_s=budget_s) as swapped:
        with budget.apart():  # so have compilers
            whole.run()
        replaced = lines((r.path, r.type, ", ".join(r.ops)) for s in swapped.swaps for r in s.replaced)
        left = lines((item.path, item.type, item.reason) for s in swapped.swaps for item in s.left)
        if not replaced:
            said = (f"{NOTHING}: of the program's calls there is none that a row of ours does quicker", *settled)
            return _fix(wall, wall, left=left, notes=said)
        budget.ask("predicting what a swap brings", forecaster.needs() + TURNS * swapped.taking)
        say("surveying the swapped program")
        surveyed = forecaster.survey(whole)
    say("timing our ops one by one, to predict the gain")
    forecast = forecaster.forecast(whole, roots, surveyed)
    notes = [*forecaster.notes(), *settled]
    if forecast.unknown:
        notes.append(f"{forecast.unknown} calls of ours could not be timed by themselves: predicted from their bound")
    forecast = forecast._replace(share=min(forecast.share, MOST_SHARE))
    gain, noise, known = wall * (1 - forecast.share), noise_of(walls), not far_apart(walls)
    if not known:
        notes.insert(0, f"{_range(walls)}, so nothing is predicted")
    elif gain <= noise:
        notes.insert(0, f"{NOTHING}: {_expected(gain, noise, wall)}")
        notes.insert(1, "so it was not applied and nothing was measured")
        return _fix(wall, wall, replaced=replaced, left=left, predicted_gain_s=gain, notes=tuple(notes), noise_s=noise)
    say("comparing the answers")
    agreement = compare(roots.samples, budget_s, budget_s + JUDGING * wall)
    if roots.alike:
        notes.append(f"{roots.alike} modules were not compared: others of their kind were")
    found = alternate(whole, roots, wall, budget_s, say, most=forecaster.most_rounds)
    return _measured(forecast if known else None, agreement, found, replaced, left, notes)


def _settled(program: Program, roots: Roots, budget_s: float, say: Say) -> tuple[str, ...]:
    """Races what the program's modules call, with every op in place; one line on what was found."""
    say("settling what the program's calls take")
    with Swapped(roots, every=True, most_s=budget_s):
        found = settle(program.run, progress=say, budget_s=budget_s)
    return (*found.notes, str(found).splitlines()[-1])


def _expected(gain: float, noise: float, wall: float) -> str:
    """Why a swap is not applied."""
    if gain <= wall * (1 - MOST_SHARE):
        return f"the swapped program is predicted to take {MOST_SHARE:.0f} times as long, or more"
    if gain < -noise:
        return f"the swap is predicted to lose {_ms(-gain)}, with noise of {_ms(noise)}"
    return (
        f"the swap is predicted to {'lose' if gain < 0 else 'bring'} {_ms(abs(gain))}, within the noise of {_ms(noise)}"
    )


def _measured(
    forecast: Forecast | None,
    agreement: Agreement,
    found: Sifted[tuple[float, float]],
    replaced: tuple[str, ...],
    left: tuple[str, ...],
    notes: Sequence[str],
) -> Fix:
    """The record of a fix that was measured: its verdict follows from the figures. Without a forecast nothing was
    predicted."""
    before, after = ([pair[arm] for pair in found.samples] for arm in (0, 1))
    if forecast is not None and far_apart(before):
        forecast, notes = None, (f"{_range(before)}, so nothing is predicted", *notes)
    was, now = statistics.median(before), statistics.median(after)
    noise = max(noise_of(before), noise_of(after))
    refused = ""
    if not agreement.agrees:
        refused = "its outputs are worse than the original's" if agreement.against else "its outputs were not compared"
    elif now - was > noise and not found.loud:
        refused = f"swapped, the program is slower: {_ms(now)} after {_ms(was)}"
    return _fix(
        was,
        now,
        replaced=replaced,
        left=left,
        predicted_gain_s=None if forecast is None else was * (1 - forecast.share),
        error_before=agreement.before,
        error_after=agreement.after,
        agrees=agreement.agrees,
        rounds=len(before),
        notes=tuple(note for note in (agreement.note, *notes) if note),
        noise_s=noise,
        refused=refused,
        ambiguous=str(found.noise) if found.loud else "",
        against=agreement.against,
    )


def alternate(
    program: Program, roots: Roots, wall: float, budget_s: float, say: Say, *, most: int
) -> Sifted[tuple[float, float]]:
    """Wall clocks as it was and swapped, in turns; the order within a turn changes too. One swapped run before the
    first turn is not counted. Noise that lasts hits both alike; turns in which it was too much are thrown away."""
    rounds = max(LEAST_ROUNDS, min(most, int(0.6 * budget_s / max(2 * wall, 1e-9))))
    turns = itertools.count()
    with Swapped(roots):
        program.run()

    def turn() -> tuple[float, float]:
        times = {}
        for arm in ("before", "after") if next(turns) % 2 == 0 else ("after", "before"):
            if arm == "before":
                times[arm] = _seconds(program)
            else:
                with Swapped(roots) as swapped:
                    times[arm] = _seconds(program) - swapped.spent
        return times["before"], times["after"]

    return sift(
        turn, rounds, tries=2 * rounds, deadline_s=budget_s,
        say=lambda number: say(f"measuring in alternation, {number} of {rounds}"),
    )  # fmt: skip


def _seconds(program: Program) -> float:
    start = time.perf_counter()
    program.run()
    return time.perf_counter() - start


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def lines(items: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """One line for all modules of one type whose paths differ in indices only: how many, where, and the text."""
    found: dict[tuple[str, str, str], int] = {}
    for path, kind, text in items:
        key = (fold(path), kind, text)
        found[key] = found.get(key, 0) + 1
    return tuple(
        f"{count} x {kind} {path}: {text}" if count > 1 else f"{kind} {path}: {text}"
        for (path, kind, text), count in found.items()
    )
