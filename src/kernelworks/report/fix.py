"""A fix as its reader sees it: what it gained, and every optimization, applied, rejected or not tried, and why."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelworks.records import Diagnosis
from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED, Fix, TriedOptimization
from kernelworks.records.wall_clocks import CONTENTION
from kernelworks.report import quantity
from kernelworks.report.hotspots import NOTABLE_CONTENTION
from kernelworks.report.next_steps import needs_allowing
from kernelworks.report.table import Table
from kernelworks.report.text_lines import Cell, cells, fold_items, folded_by_reason, paragraph, section

__all__ = [
    "contended_gain", "cost_text", "count_outcomes", "error_text", "error_verdict", "fix", "gain_verdict",
    "is_candidate", "optimizations", "plain_text", "reason_text", "result_lines", "speedup_text", "verdict_text",
]  # fmt: skip


BUDGET_OVER = "the budget was over"  # how a search ended
NO_WORSE_FACTOR = 3.0  # times the error of before: between two orders of one sum, that is luck
WIDE_COLUMNS = 100  # from so many columns on predicted and got have columns of their own
MOST_COLUMNS = 140
NAME_CELLS, PREDICTED_CELLS, GOT_CELLS = 46, -12, -20
OUTCOMES = (APPLIED, REJECTED)
STYLES = {APPLIED: "green", REJECTED: "yellow"}


# ---------------------------------------------------------------- the result


def result_lines(record: Fix, *, rough: bool = False) -> list[str]:
    """What came of the fix, a sentence each: the gain beside its prediction, the counts, the errors. With ``rough`` it
    was said before that others used the machine."""
    if record.ambiguous and not (rough and record.rough):
        word = "Rough figures" if record.rough else "Ambiguous"
        return [f"{word}: the fix was measured while {record.ambiguous}.", *_outcome_lines(record)]
    return _outcome_lines(record)


def _outcome_lines(record: Fix) -> list[str]:
    counts = count_outcomes(record)
    if record.refused:
        return [f"The fix is refused: {record.refused}.", counts]
    took = _time_text(record)
    if not record.rounds:
        why = f"No optimization applied: {_ended(record)}." if record.ended else "No optimization applied:"
        said = counts if record.ended else f"{counts[0].lower()}{counts[1:]}"
        if record.ended and not record.optimizations:  # none was looked for yet
            return [why, *took]
        return [f"{why} {said}", *took]
    predicted = record.told_prediction_s
    unit = quantity.unit_of(record.before_s, record.after_s)
    said = "" if predicted is None else f"{quantity.seconds(predicted, unit)} predicted, "
    times = f"{quantity.seconds(record.before_s, unit)} -> {quantity.seconds(record.after_s, unit)}"
    return [
        f"{times} per run: {speedup_text(record)}.",
        f"Gain: {said}{quantity.with_interval(record.gain_s, record.noise_s, unit)} got ({gain_verdict(record)}).",
        *([counts] if record.optimizations else []),
        _errors(record),
        *_plan_by_itself(record, unit),
        *took,
    ]


def _plan_by_itself(record: Fix, unit: tuple[float, str]) -> list[str]:
    """What a process said that only applied the plan, as the user's will. A record of before has nothing of it."""
    if record.plan_run_s:
        run, ready = quantity.seconds(record.plan_run_s, unit), quantity.seconds(record.plan_ready_s)
        return [f"In a new process that only applies the plan: {run} per run, after {ready} to put it in place."]
    return [f"The plan was not run in a new process: {record.plan_not_run}."] * bool(record.plan_not_run)


def _ended(record: Fix) -> str:
    """Why the search ended. If some of the budget was left, it was too small for what was to come."""
    left = record.ended == BUDGET_OVER and 0 < record.search_s < record.budget_s
    return "what was left of the budget was too short for the next one" if left else record.ended


def _time_text(record: Fix) -> list[str]:
    """How long it took, beside what it might take."""
    if not record.search_s:
        return []
    beside = record.compilers_beside
    many = f"{beside} compilers" if beside > 1 else "a compiler"
    worked = f"; {many} worked beside, halted while anything was timed" if beside else ""
    return [
        f"The search took {record.search_s:.0f} s (budget {record.budget_s:.0f} s), after a diagnosis of "
        f"{record.diagnosis_s:.0f} s{worked}."
    ]


def contended_gain(record: Diagnosis) -> str:
    """Which clock a gain and its prediction are of, if that is not the one of what is recoverable."""
    taken, fix = record.time_breakdown.get(CONTENTION, 0.0), record.fix
    if fix is None or not (fix.ambiguous or any(one.rough for one in fix.optimizations)):
        return ""
    if record.ambiguous or taken <= NOTABLE_CONTENTION * record.wall_s:
        return ""
    own = quantity.seconds(record.wall_s - taken)
    return (
        "Gains, predicted and got, are of wall clocks with CPU contention in them, as it was while the fix was "
        f"measured; what is recoverable is of the program's own {own} in the diagnosis."
    )


def speedup_text(record: Fix) -> str:
    """The speedup over the program as it was, and whether it is rough."""
    speedup = quantity.ratio(record.before_s / record.after_s if record.after_s > 0 else None)
    return f"{speedup}, rough" if record.ambiguous else speedup


def count_outcomes(record: Fix) -> str:
    """How many optimizations were applied, rejected and not tried; advice is none of these."""
    found = [one.outcome for one in record.optimizations if is_candidate(one)]
    words = [f"{found.count(outcome)} {outcome}" for outcome in (APPLIED, REJECTED, NOT_TRIED) if outcome in found]
    budget = f" (budget {record.budget_s:.0f} s)" if record.needs_s and record.budget_s else ""
    return f"{', '.join(words)}{budget}." if words else "none applies to this program."


def is_candidate(one: TriedOptimization) -> bool:
    """Whether a fix could apply it, here or in another program."""
    return not one.advice


def _errors(record: Fix) -> str:
    if not record.against:
        return "NOT COMPARED: not verified."
    if not record.error_before and not record.error_after:
        return f"Outputs as before (compared with {record.against})."
    figures = f"relative error {record.error_before:.1e} -> {record.error_after:.1e}"
    return f"Outputs compared with {record.against}: {figures}, {error_verdict(record)}."


def error_verdict(record: Fix) -> str:
    """What the errors before and after say, in words."""
    if not record.agrees:
        return "WORSE: not to be kept"
    if record.error_after <= NO_WORSE_FACTOR * record.error_before or not record.error_after:
        return "no worse"
    allowed = [one.changes for one in record.optimizations if one.applied and one.changes]
    return f"more, as {', '.join(allowed)} allows" if allowed else "more, and no more than rounding explains"


def gain_verdict(record: Fix) -> str:
    """How the prediction compares with what was got, in words."""
    if record.gain_s <= record.noise_s:
        return "slower" if record.gain_s < -record.noise_s else "not significant"
    predicted = record.told_prediction_s
    if predicted is None:
        return "nothing was predicted"
    if predicted <= 0:
        return "no gain was predicted"
    return f"{quantity.percent(record.gain_s / predicted)} of the prediction"


# ---------------------------------------------------------------- the optimizations


def optimizations(record: Fix, width: int, *, verbose: bool = False) -> Iterable[Text]:
    """The section: what was applied and what was rejected, a line or two each, and what was not tried in one."""
    width = min(width, MOST_COLUMNS)
    tried = [one for outcome in OUTCOMES for one in record.optimizations if one.outcome == outcome and not one.advice]
    wide = width >= WIDE_COLUMNS and bool(tried)
    heads = [("", NAME_CELLS + 2), ("predicted", PREDICTED_CELLS), ("got", GOT_CELLS), ("  verdict", 12)]
    yield section("optimizations", heads if wide else ())
    for one in _without_figures_once(tried):
        yield from _tried_wide(one, width) if wide else _tried(one, width)
    if verbose:
        for one in record.optimizations:
            if one not in tried:
                yield from paragraph(f"{_name(one)}: {one.advice or one.why}", width, 13, f"  {verdict_text(one)}")
    else:
        left = _not_tried(record)
        yield from fold_items(left, width, 13, "  not tried", between="; ") if left else ()
        for one in record.optimizations:
            if one.advice:
                yield from paragraph(f"{_name(one)}: {one.advice}", width, 13, "  advice")
    for line in itertools.chain(folded_by_reason(record.left), record.notes) if verbose else ():
        yield from paragraph(line, width, 13, "  note", style="dim")
    yield from _steps(record, width) if verbose else ()
    if record.code and record.rounds and (verbose or not record.plan):
        yield Text("  to keep it without a plan:" if record.plan else "  to keep it:", style="dim")
        yield from (Text(f"    {line}", no_wrap=True, overflow="fold") for line in record.code.splitlines())


def _steps(record: Fix, width: int) -> Iterable[Text]:
    """Where the budget went: what the search began to do, and when."""
    for step in record.steps:
        said = f"(beside) {step.what}" if step.beside else step.what
        yield from paragraph(said, width, 13, f"{step.at_s:9.1f} s", style="dim")


def _without_figures_once(tried: Iterable[TriedOptimization]) -> list[TriedOptimization]:
    """What was tried, but those of one optimization that have no figure, and one reason for that, as one."""
    found: dict[Any, list[TriedOptimization]] = {}
    for number, one in enumerate(tried):
        told = one.predicted_gain_s is not None or one.gain_s is not None
        found.setdefault(number if told else (one.optimization, one.outcome, one.why), []).append(one)
    return [
        some[0] if len(some) == 1 else dataclasses.replace(some[0], says=f"in {len(some)} ways")
        for some in found.values()
    ]


def _tried(one: TriedOptimization, width: int) -> Iterable[Text]:
    """On a narrow terminal: what it does, and below it the figures that decided."""
    yield from paragraph(_name(one), width, 13, Text(f"  {one.outcome}", style=STYLES[one.outcome]))
    yield from paragraph(f"{_predicted(one)} predicted, {_got(one)} got: {_with_mark(one)}", width, 13, style="dim")


def _tried_wide(one: TriedOptimization, width: int) -> Iterable[Text]:
    start = NAME_CELLS + 2 - PREDICTED_CELLS - GOT_CELLS + 2
    what = paragraph(_name(one), NAME_CELLS, 4, "  ")
    verdict = paragraph(f"{verdict_text(one)}: {reason_text(one)}".removesuffix(": "), width - start)
    verdict[0].stylize(STYLES[one.outcome], 0, len(one.outcome))
    first: list[tuple[Cell, int]] = [
        (what[0], NAME_CELLS + 2),
        (_predicted(one), PREDICTED_CELLS),
        (_got(one), GOT_CELLS),
        ("  ", 2),
        (verdict[0], 1),
    ]
    yield cells(first)
    for name, reason in itertools.zip_longest(what[1:], verdict[1:], fillvalue=Text()):
        yield cells([(name, start), (reason, 1)])


def _with_mark(one: TriedOptimization) -> str:
    return f"rough, {reason_text(one)}" if one.rough else reason_text(one)


def reason_text(one: TriedOptimization) -> str:
    """Why it was applied or rejected, if the figures do not say so."""
    measured = one.outcome == REJECTED and one.noise_s is not None and one.gain_s is not None
    if measured and abs(one.gain_s or 0.0) <= (one.noise_s or 0.0):
        return "not significant"
    return one.why


def _name(one: TriedOptimization) -> str:
    return f"{one.optimization}: {one.says}" if one.says else one.optimization


def verdict_text(one: TriedOptimization) -> str:
    """What came of it; "applied, rough" if others used the machine while it was measured."""
    return "advice" if one.advice else f"{one.outcome}, rough" if one.rough else one.outcome


def _predicted(one: TriedOptimization) -> str:
    return "-" if one.predicted_gain_s is None else quantity.seconds(one.predicted_gain_s)


def _got(one: TriedOptimization) -> str:
    if one.gain_s is None:
        return "-"
    return quantity.seconds(one.gain_s) if one.noise_s is None else quantity.with_interval(one.gain_s, one.noise_s)


def _not_tried(record: Fix) -> list[str]:
    """What was not tried, by what would have it tried."""
    left = [one for one in record.optimizations if one.outcome == NOT_TRIED and is_candidate(one)]
    budget = [one for one in left if one.needs_s]
    words = needs_allowing(record)
    allow = [one for one in left if one.changes in words]
    rest = [one for one in left if one not in budget and one not in allow]
    unpromising = [one for one in rest if one.predicted_gain_s is not None]
    other = [one for one in rest if one not in unpromising]
    said = [f"{_counted(budget)} (needs --budget {record.needs_s:.0f})"] if budget else []
    said += [f"{_counted(allow)} (needs --allow {','.join(words)})"] if allow else []
    known_elsewhere = {one.optimization for one in record.optimizations if one.applied or one in budget}
    said += [f"{_counted(unpromising, known_elsewhere)} (predicted not to gain)"] if unpromising else []
    return said + [f"{_counted(some)} ({why})" for why, some in _by_reason(other).items()]


def _by_reason(some: Iterable[TriedOptimization]) -> dict[str, list[TriedOptimization]]:
    found: dict[str, list[TriedOptimization]] = {}
    for one in some:
        found.setdefault(one.why, []).append(one)
    return found


def _counted(some: Sequence[TriedOptimization], known_elsewhere: Collection[str] = ()) -> str:
    """Their names. Of one that stands elsewhere too, applied or not, this is another way."""
    names = [one.optimization for one in some]

    def said(name: str) -> str:
        count = names.count(name)
        other = f"in {count} other ways" if count > 1 else "in another way"
        return f"{name} {other}" if name in known_elsewhere else name if count == 1 else f"{name} in {count} ways"

    return ", ".join(said(name) for name in dict.fromkeys(names))


# ---------------------------------------------------------------- on a page, in a notebook


def fix(record: Fix) -> RenderableType:
    """A fix by itself, without the diagnosis that it belongs to, for a page."""
    lines: list[RenderableType] = [Text(said, style="" if i else "bold") for i, said in enumerate(result_lines(record))]
    if record.optimizations:
        lines += [Text(), _optimization_table(record)]
    if record.code and record.rounds:
        lines += [Text("to keep it", style="bold"), Padding(Text(record.code), (0, 0, 0, 2))]
    for title, items in (("replaced", record.replaced), ("left as it was", record.left), ("notes", record.notes)):
        if items:
            lines += [Text(title, style="bold"), *(Padding(Text(f"- {item}"), (0, 0, 0, 2)) for item in items)]
    return Group(*lines)


def _optimization_table(record: Fix) -> Table:
    """Every optimization with its prediction, what it got, its cost and error, and why, in one table of a page."""
    table = Table(title="optimizations", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge = False
    table.add_column("", no_wrap=True)
    table.add_column("optimization, where", overflow="fold", ratio=2)
    for heading in ("predicted", "got", "cost", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=3)
    for one in sorted(record.optimizations, key=lambda one: not one.applied):
        what = Text.assemble((one.optimization, "bold"), f": {one.says}" if one.says else "")
        if one.place:
            what.append(f"\n{one.place}", style="dim")
        style = "yellow" if one.advice else STYLES.get(one.outcome, "dim")
        figures = (_predicted(one), _got(one), cost_text(one), error_text(one))
        table.add_row(Text(verdict_text(one), style=style), what, *figures, one.advice or one.why)
    return table


def cost_text(one: TriedOptimization) -> str:
    """Seconds until it is in place, and the memory that it keeps."""
    words = [quantity.seconds(one.cost_s)] if one.cost_s >= 0.1 else []
    if one.cost_bytes:
        words.append(f"{one.cost_bytes / 1e6:.3g} MB")
    return ", ".join(words) or "-"


def error_text(one: TriedOptimization) -> str:
    """After, as a share of what it was before; if that was nothing, as it is."""
    if not one.against:
        return "-"
    if one.error_before:
        return f"{one.error_after / one.error_before:.2f}x"
    return f"{one.error_after:.1e}" if one.error_after else "0"


def plain_text(record: Fix) -> str:
    """The same in lines of text."""
    lines = [
        f"  {verdict_text(one)}: {_name(one)}: {one.advice or one.why}"
        for one in sorted(record.optimizations, key=lambda one: not one.applied)
    ]
    return "\n".join([*result_lines(record), *lines])
