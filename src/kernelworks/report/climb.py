"""A climb in the terminal and as a worklog: made from the record alone, with the rungs' sources for the code."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from kernelworks.records import GpuCeilings
from kernelworks.report import quantity
from kernelworks.report.terminal import style_of
from kernelworks.rungs import Climb, RungResult, RungTime

__all__ = ["changed", "heading", "line", "machine", "outcome", "rungs", "table", "totals", "waits", "worklog"]


def heading(record: Climb) -> str:
    return f"{record.ladder}: {record.title}, {_size(record.size)}"


def _size(size: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in size.items())


def machine(record: Climb) -> str:
    """The machine's name and how much of it there is."""
    here = record.ceilings
    if isinstance(here, GpuCeilings):
        return f"{here.name}, {here.multiprocessors} multiprocessors"
    return f"{here.name}, {here.cores} cores"


def _threads(count: int) -> str:
    if not count:
        return "GPU"
    return f"{count} thread{'s' if count > 1 else ''}"


def best_peer(timed: RungTime) -> tuple[str, float]:
    """Name and GFLOP/s of the best tuned peer: any but the first, which is the default."""
    tuned = dict(list(timed.peers.items())[1:]) or timed.peers
    return max(tuned.items(), key=lambda item: item[1], default=("", 0.0))


def rated(rate: float, unit: str) -> str:
    return quantity.gbs(rate) if unit == "GB/s" else quantity.gflops(rate)


def line(rung: RungResult, unit: str = "GFLOP/s") -> Text:
    """One rung in one line, as it finishes."""
    text = Text(f"{rung.number:>2}  {rung.title:<24}")
    if rung.status != "proved":
        text.append(f"{rung.status}: {rung.reason}", style="red" if rung.status == "wrong" else "yellow")
        return text
    timed = rung.times[-1]
    text.append(f"{rated(timed.rate, unit):>14}  {_threads(timed.threads)}  ")
    text.append(f"{quantity.percent(timed.rate / timed.ceiling)} of the ceiling")
    if rung.gain is not None and rung.predicted is not None:
        text.append(f"  {quantity.ratio(rung.gain)} (predicted {quantity.ratio(rung.predicted)})", style="bold")
    return text


def table(record: Climb) -> Table:
    """All rungs at their thread counts."""
    found = Table(title=heading(record), title_justify="left", title_style="bold")
    found.add_column("rung")
    names = list(dict.fromkeys(name for r in record.rungs for t in r.times for name in t.peers))
    for title in ("threads", record.unit, "of ceiling", *(f"over {name}" for name in names), "predicted", "got"):
        found.add_column(title, justify="right")
    found.add_column("waits on")
    for rung in record.rungs:
        if not rung.times:
            found.add_row(f"{rung.number} {rung.title}", "", rung.status, style="red")
        for index, timed in enumerate(rung.times):
            last = index == len(rung.times) - 1
            found.add_row(
                f"{rung.number} {rung.title}" if not index else "",
                str(timed.threads),
                quantity.figures(timed.rate),
                quantity.percent(timed.rate / timed.ceiling),
                *(quantity.ratio(timed.rate / timed.peers[n]) if n in timed.peers else "-" for n in names),
                quantity.ratio(rung.predicted) if last else "",
                quantity.ratio(rung.gain) if last else "",
                Text(rung.regime, style=style_of(rung.regime)) if last else "",
            )
    return found


def totals(record: Climb) -> list[str]:
    """What the last rung reached, a sentence for each thread count."""
    last = next((r for r in reversed(record.rungs) if r.times), None)
    if last is None:
        return ["No rung has a figure."]
    sentences = []
    for timed in last.times:
        share = quantity.percent(timed.rate / timed.ceiling)
        text = f"Rung {last.number} at {_threads(timed.threads)}: {rated(timed.rate, record.unit)}, {share} of the "
        text += f"measured multiply-add ceiling ({quantity.figures(timed.ceiling)})"
        if timed.peers:
            default, rate = next(iter(timed.peers.items()))
            name, best = best_peer(timed)
            text += f", {quantity.ratio(timed.rate / rate)} {default}'s default"
            if name != default:
                text += f", {quantity.ratio(timed.rate / best)} the best tuned peer ({name})"
        sentences.append(text + ".")
    return sentences


def outcome(rung: RungResult, unit: str = "GFLOP/s") -> str:
    """Prediction against outcome in one sentence, honest where it missed."""
    if rung.status != "proved":
        return f"**{rung.status}**: {rung.reason}. It has no figure."
    rate = f"{rated(rung.times[-1].rate, unit)} at {_threads(rung.times[-1].threads)}"
    if rung.gain is None or rung.predicted is None:
        return f"Got {rate}; there is nothing to compare it with."
    off = rung.gain / rung.predicted
    verdict = "as predicted" if 0.9 <= off <= 1.1 else f"{'more' if off > 1 else 'less'} than predicted"
    return (
        f"Predicted {quantity.ratio(rung.predicted)} the rung before, got {quantity.ratio(rung.gain)} "
        f"({verdict}): {rate}."
    )


def waits(rung: RungResult) -> str:
    """The evidence: what each ceiling explains of the time."""
    parts = ", ".join(f"{name} {quantity.percent(share)}" for name, share in rung.shares.items())
    if rung.regime == "latency":
        return f"Of its time the ceilings explain: {parts}. None is enough: it waits on latency, not on a rate."
    return f"Of its time the ceilings explain: {parts}. It waits on {rung.regime}."


def changed(code: str, before: str | None) -> list[tuple[str, bool]]:
    """The lines of a rung, each with whether it is not in the rung before (the indentation aside)."""
    lines = code.splitlines()
    if before is None:
        return [(text, False) for text in lines]
    old = [text.strip() for text in before.splitlines()]
    matched = set[int]()
    for block in difflib.SequenceMatcher(
        None, old, [text.strip() for text in lines], autojunk=False
    ).get_matching_blocks():
        matched |= set(range(block.b, block.b + block.size))
    return [(text, index not in matched and bool(text.strip())) for index, text in enumerate(lines)]


def rungs(record: Climb, sources: Mapping[str, str]) -> list[tuple[RungResult, list[tuple[str, bool]]]]:
    """Every rung with its lines; ``sources`` is the code of each file without its header."""
    found, before = [], None
    for rung in record.rungs:
        code = sources.get(rung.file, "")
        found.append((rung, changed(code, before)))
        before = code
    return found


def _figures(rung: RungResult, unit: str) -> list[str]:
    names = list(dict.fromkeys(name for t in rung.times for name in t.peers))
    rows = [f"| threads | {unit} | of the ceiling | " + "".join(f"over {name} | " for name in names) + "spread |"]
    rows.append("|" + "---|" * (4 + len(names)))
    for t in rung.times:
        over = "".join(f"{quantity.ratio(t.rate / t.peers[n])} | " if n in t.peers else "- | " for n in names)
        spread = f"{quantity.seconds(t.low_s)} to {quantity.seconds(t.high_s)}, {t.samples} samples"
        share = quantity.percent(t.rate / t.ceiling, 1)
        rows.append(f"| {t.threads} | {quantity.figures(t.rate)} | {share} | {over}{spread} |")
    return rows


def _hunks(lines: list[tuple[str, bool]]) -> list[str]:
    """What changed, with two lines around it, as a diff; a rung of which nothing is marked is shown whole."""
    if not any(mark for _, mark in lines):
        return ["```cpp", *(text for text, _ in lines), "```"]
    near = {i + d for i, (_, mark) in enumerate(lines) if mark for d in (-2, -1, 0, 1, 2)}
    shown, last = ["```diff"], -1
    for index, (text, mark) in enumerate(lines):
        if index in near:
            if index > last + 1:
                shown.append("@@")
            shown.append(f"{'+' if mark else ' '}{text}")
            last = index
    return [*shown, "```"]


def worklog(record: Climb, sources: Mapping[str, str]) -> str:
    """The climb as a document to learn from."""
    parts = [f"# {record.ladder}", "", f"{record.title}, {_size(record.size)}.", ""]
    parts += [f"*{machine(record)}; {', '.join(f'{n} {v}' for n, v in record.versions.items())}; "
              f"{record.date}. Made by `kernelworks climb {record.ladder}`, from `results.json`.*", ""]  # fmt: skip
    parts += [*totals(record), ""]
    parts += _wrapped(
        f"{_limit(record)} Every rung below says first what it expects and then what came; all were proved against "
        "float64 before they were timed, and timed in alternation with the rung before, the peers and the multipliers "
        "alone."
    )
    for rung, lines in rungs(record, sources):
        parts += [
            "",
            f"## {rung.number}. {rung.title}",
            "",
            f"[{rung.file}]({rung.file}), compiled for {rung.target}.",
            "",
        ]
        parts += _wrapped(f"**Hypothesis.** {rung.hypothesis}")
        if rung.predicted is not None:
            parts += ["", f"**Predicted** {quantity.ratio(rung.predicted)} the rate of the rung before."]
        parts += ["", *_hunks(lines), "", *_wrapped(f"**Outcome.** {outcome(rung, record.unit)}")]
        if rung.times:
            parts += ["", *_figures(rung, record.unit), "", *_wrapped(f"**Evidence.** {waits(rung)} {_proof(rung)}")]
            few = rung.times[-1].size
            if few != record.size:
                parts += ["", *_wrapped(f"Timed at {_size(few)}: a row of the result takes what every other takes.")]
        if rung.assembly:
            parts += ["", f"The inner loop, {len(rung.assembly)} instructions:", "", "```asm", *rung.assembly, "```"]
        parts += ["", *_wrapped(f"**What it waits on next.** {rung.next}")]
    if record.lessons:
        parts += ["", "## Where the ideas went", "", f"The library's own rows use them: `{record.lessons}`."]
    if record.notes:
        parts += ["", "## Notes", "", *(f"- {note}" for note in record.notes)]
    return "\n".join(parts) + "\n"


def _limit(record: Climb) -> str:
    """What one call needs at least, and which of memory and multipliers that asks more of, on all threads."""
    intensity, here = record.flop / record.bytes, record.ceilings
    text = (
        f"One call is {quantity.figures(record.flop / 1e9)} GFLOP over {quantity.figures(record.bytes / 1e6)} MB that "
        f"must move at least once: {quantity.figures(intensity)} flop for each byte."
    )
    if isinstance(here, GpuCeilings):
        return text
    rates = [r.gflops for r in here.flops if (r.dtype, r.threads) == ("float32", here.cores)]
    reads = [b.gbs for b in here.bandwidth if (b.level, b.kind, b.threads) == ("DRAM", "read", here.cores)]
    if not rates or not reads:
        return text
    ridge = max(rates) / reads[0]
    limit = "the multipliers are" if intensity > ridge else "memory is"
    return (
        f"{text} This machine's memory meets its multipliers at {quantity.figures(ridge)} flop for each byte, so "
        f"{limit} what can limit it at best."
    )


def _proof(rung: RungResult) -> str:
    return "" if rung.worst is None else f"Largest error: {quantity.percent(rung.worst, 1)} of the derived bound."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
