"""A climb on the terminal: a line for each rung as it finishes, and all of them in a table."""

from __future__ import annotations

from rich.text import Text

from kernelworks.records.climb import Climb, RungResult, RungTime
from kernelworks.report import quantity
from kernelworks.report.climb import words
from kernelworks.report.climb.words import totals
from kernelworks.report.table import Table
from kernelworks.report.terminal import style_of

__all__ = ["line", "table", "totals"]

VERDICTS = {"as predicted": "green", "more than predicted": "cyan", "less than predicted": "yellow"}


def line(rung: RungResult, unit: str = "GFLOP/s") -> Text:
    """One rung in one line, as it finishes."""
    text = Text(f"{rung.number:>2}  {rung.title:<26} ")
    timed = words.judged_time(rung)
    if timed is None:
        text.append(f"{rung.status}: {rung.reason}", style="red" if rung.status == "wrong" else "yellow")
        return text
    shown = words.unit_for(unit, timed.rate)
    if timed.rough:
        text.append(
            f"{words.rate_range(shown, timed)} {shown.name} rough{words.thread_suffix(timed.threads)}", style="yellow"
        )
        return text
    text.append(f"{shown(timed.rate):>13}{words.thread_suffix(timed.threads)}  ")
    text.append(f"{quantity.percent(timed.rate / timed.peak)} of the peak")
    name, best = words.best_baseline(timed)
    if name:
        text.append(f", {quantity.ratio(timed.rate / best)} {name}")
    if rung.gain is not None and rung.predicted is not None:
        text.append(f"  {quantity.ratio(rung.gain)} the rung before", style="bold")
        text.append(f" (predicted {quantity.ratio(rung.predicted)})", style=VERDICTS[words.verdict(rung)])
    return text


def table(record: Climb) -> Table:
    """All rungs at their thread counts and sizes."""
    unit, names = words.unit_of(record), words.baseline_names(record.rungs)
    found = Table(title=words.heading(record), title_justify="left", title_style="bold")
    found.add_column("rung")
    titles = (unit.name, "spread", "of peak", *(f"of {name}" for name in names), "predicted", "got")
    several = any(t.threads > 1 for r in record.rungs for t in r.times)
    for title in (*(("threads",) if several else ()), *titles):
        found.add_column(title, justify="right")
    found.add_column("bound by")
    for rung in record.rungs:
        name = f"{rung.number} {rung.title}"
        if not rung.times:
            text = Text(f"{name}\n  {rung.status}: {rung.reason}", style="red" if rung.status == "wrong" else "yellow")
            found.add_row(text)
        for index, timed in enumerate(rung.times):
            label = _label(record, rung, timed, name if not index else "")
            figures: list[str | Text] = [
                words.rate(record, timed),
                Text(words.spread(timed), style="yellow" if words.is_imprecise(timed) else ""),
                quantity.percent(timed.rate / timed.peak),
                *(words.share_of_baseline(timed, n) for n in names),
            ]
            threads = [str(timed.threads)] if several else []
            found.add_row(label, *threads, *figures, *_ending(rung, timed))
    return found


def _label(record: Climb, rung: RungResult, timed: RungTime, name: str) -> Text:
    """The rung's name, and in the line below it what it was timed on if that is not all."""
    text = Text(name)
    if timed in words.times_at_further_sizes(rung):
        text.append(f"  at {words.sizes(timed.size)}", style="dim")
    elif name and words.timed_part(record, timed):
        text.append(f"\n  timed on {words.timed_part(record, timed)}", style="dim")
    return text


def _ending(rung: RungResult, timed: RungTime) -> list[str | Text]:
    """Prediction, outcome and regime beside the figure that they are about."""
    if timed is not words.judged_time(rung):
        return ["", "", ""]
    got = Text(quantity.ratio(rung.gain), style=VERDICTS.get(words.verdict(rung), ""))
    return [quantity.ratio(rung.predicted), got, Text(words.bottleneck_name(rung), style=style_of(rung.bottleneck))]
