"""The worklog of a climb: a document to learn from, made from the record and the rungs' sources."""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from kernelworks.records import GpuPeaks
from kernelworks.records.climb import Climb, RungResult, RungTime
from kernelworks.report import quantity
from kernelworks.report.climb import evidence, words
from kernelworks.report.climb.code import Line, hunks, rewritten, rungs

__all__ = ["glossary", "link", "reading", "worklog"]

FENCES = {"cpp": "cpp", "cu": "cuda", "py": "python"}


def worklog(record: Climb, sources: Mapping[str, str], where: str = ".") -> str:
    """``sources`` is the code of each rung's file without its header, ``where`` the way from the document's folder to
    the ladder's."""
    parts = [f"# {record.ladder}", "", *_wrapped(f"What is computed: {record.title}; {words.sizes(record.size)}."), ""]
    headline, *more = words.totals(record)
    parts += [*_wrapped(f"**{headline}**"), "", *_bullets(more), *([""] if more else [])]
    parts += _wrapped(
        f"*{words.machine(record)}; {', '.join(f'{n} {v}' for n, v in record.versions.items())}; "
        f"{record.date[:10]}. Made by `kernelworks climb {record.ladder}` from `results.json`.*"
    )
    parts += ["", "## The climb", "", *_wrapped(words.limit(record)), "", *_table(record), ""]
    if words.predictions(record):
        parts += [*_wrapped(words.predictions(record)), ""]
    parts += ["## How to read this", "", *_bullets(f"**{name}**: {text}" for name, text in reading(record)), ""]
    found = glossary(record)
    if found:
        parts += ["| instruction | what it does |", "|---|---|", *(f"| `{n}` | {text} |" for n, text in found), ""]
    for rung, lines in rungs(record, sources):
        parts += [*_rung(record, rung, lines, where), ""]
    if record.lessons:
        place = f"[{record.lessons}]({link(where, '../..', record.lessons)})"
        parts += ["## Where the ideas went", "", f"The library's own rows use them: {place}.", ""]
    if record.notes:
        parts += ["## Notes", "", *_bullets(record.notes), ""]
    return "\n".join(parts)


def link(*steps: str) -> str:
    return posixpath.normpath(posixpath.join(*steps))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def _bullets(texts: Iterable[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        found += textwrap.wrap(
            text, 118, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    return found


# ---------------------------------------------------------------- how to read it


def reading(record: Climb) -> list[tuple[str, str]]:
    """What the words and columns of this climb mean."""
    on_gpu = isinstance(record.peaks, GpuPeaks)
    found = [
        ("rung", "a file of its own with one idea more than the one before. Hypothesis and prediction stand in its "
         "header, written before it was measured. It was verified against float64, on odd sizes and on the very inputs "
         "that are timed, and then timed in alternation with the rung before and the baselines."),
        ("predicted, got", "times as quick as the rung before, for the same work. Within 10% counts as predicted; a "
         "small gain must be hit to half of itself."),
        ("of the peak", f"the rate beside {words.peak_meaning(record)}."),
    ]  # fmt: skip
    baselines = _baselines(record)
    if baselines:
        said = [f"{name} is {record.baselines[name]}" for name in baselines if name in record.baselines]
        text = f"{'; '.join(said)}." if said else f"Baselines: {', '.join(baselines)}."
        found.append((f"of {baselines[-1]}", f"the rate beside the baseline's in the same race. {text}"))
    if record.unit == "GB/s":
        found.append(
            ("GB/s", "every byte of the inputs and of the output once, in the format that the rung reads. 'Got' is "
             "about times, so from one format to another it is not the ratio of two GB/s.")
        )  # fmt: skip
    found.append(
        ("spread", "how far apart the 10th and the 90th percentile of the samples lie, beside the median. From 25% on "
         "a rate is a rough one, and has a ~ before it.")
    )  # fmt: skip
    least = "memory, L2; L1 and shared memory as the GPU's counters have it" if on_gpu else "DRAM, L2, L1"
    found.append(
        ("bound by", f"its multiply-adds, and its bytes at each level ({least}), would at the measured peaks take "
         "some share of the time it took. The largest, from 60% on, is what bounds the rung; below that it is "
         "below the roofline, cause unknown: it may wait for answers, not for a rate.")
    )  # fmt: skip
    if on_gpu:
        found += _of_gpu(record)
    found.append(
        ("+ and -", "lines that are new, and lines of the rung before that are gone. What only moved or changed its "
         "indentation is not marked.")
    )  # fmt: skip
    return found


def _baselines(record: Climb) -> list[str]:
    return words.baseline_names(record.rungs)


def _of_gpu(record: Climb) -> list[tuple[str, str]]:
    """What only a GPU's evidence speaks of."""
    here = record.peaks
    assert isinstance(here, GpuPeaks)
    found = [
        ("registers, shared memory, warps", "a block of threads runs on one multiprocessor, 32 threads to a warp. The "
         "more registers and shared memory a block takes, the fewer fit, and the fewer warps are there to hide each "
         "other's waits. What does not fit the registers spills to memory."),
    ]  # fmt: skip
    if any(evidence.operands(r.resources) for r in record.rungs):
        found.append(
            ("operands that are waited for", "counted from the loop's instructions, not measured. Registers lie in two "
             "banks, and each delivers one a cycle; where an instruction's come late, nothing is issued. Warps, loads "
             "and barriers have their own waits beside these.")
        )  # fmt: skip
    rate = max((r for r in here.rates if r.dtype == record.arithmetic), key=lambda r: r.burst_tflops, default=None)
    if rate is not None and record.unit == "GFLOP/s" and rate.sustained_tflops < 0.97 * rate.burst_tflops:
        text = (
            f"on record, {rate.unit} in {rate.dtype} reached {quantity.gflops(rate.burst_tflops * 1e3)} in a burst and "
            f"{quantity.gflops(rate.sustained_tflops * 1e3)} after a second, when the power limit of "
            f"{here.power_limit_w:.0f} W had lowered the clock"
        )
        found.append(
            ("clock", f"{text}. All variants of a race run at the same clock, the one at which power is steady after "
             "half a second of it. Another race may have met another clock: so 'got' and the shares of a baseline "
             "compare "
             "within one race, and may say more than two rates of different races do.")
        )  # fmt: skip
    return found


def glossary(record: Climb) -> list[tuple[str, str]]:
    """The GPU's instructions that this climb counts, with what each does."""
    names = dict.fromkeys(name.split(", ")[0].split(".")[0] for r in record.rungs for name in r.instructions)
    return [(name, evidence.MEANINGS[name]) for name in names if name in evidence.MEANINGS]


# ---------------------------------------------------------------- the climb at a glance


def _anchor(rung: RungResult) -> str:
    """As GitHub makes it of the heading."""
    slug = re.sub(r"[^\w\- ]", "", f"{rung.number}. {rung.title}".lower()).replace(" ", "-")
    return f"[{rung.number} {rung.title}](#{slug})"


def _table(record: Climb) -> list[str]:
    unit, names = words.unit_of(record), _baselines(record)
    head = ["rung", unit.name, "of the peak", *(f"of {n}" for n in names), "predicted", "got", "bound by"]
    rows = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 2) + "---|"]
    few = False
    for rung in record.rungs:
        timed = words.judged_time(rung)
        if timed is None:
            rows.append(f"| {_anchor(rung)} | **{rung.status}** |{' |' * (len(head) - 2)}")
            continue
        few |= bool(words.timed_part(record, timed))
        cells = [
            f"{_anchor(rung)}{words.thread_suffix(timed.threads)}{' *' if words.timed_part(record, timed) else ''}",
            words.rate(record, timed),
            quantity.percent(timed.rate / timed.peak),
            *(words.share_of_baseline(timed, n) for n in names),
            quantity.ratio(rung.predicted),
            quantity.ratio(rung.gain),
            words.bottleneck_name(rung),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if few:
        rows += ["", "\\* timed on a part of the rows; the rung's section says how many."]
    return rows


# ---------------------------------------------------------------- one rung


def _rung(record: Climb, rung: RungResult, lines: Sequence[Line], where: str) -> list[str]:
    parts = [f"## {rung.number}. {rung.title}", ""]
    said = f"[{rung.file}]({link(where, rung.file)}), compiled for {rung.target}"
    parts += [f"{said}, inputs as {rung.format}." if rung.format else f"{said}.", ""]
    parts += _wrapped(f"**Hypothesis.** {rung.hypothesis}")
    if rung.predicted is not None:
        parts += ["", f"**Predicted** {quantity.ratio(rung.predicted)} the rate of the rung before."]
    parts += ["", *_code(rung, lines), "", *_wrapped(f"**Outcome.** {words.outcome(record, rung)}")]
    if rung.times:
        parts += ["", *_figures(record, rung)]
        parts += ["", *_wrapped(f"**Evidence.** {words.bottleneck_sentence(rung)} {words.verification_sentence(rung)}")]
        if rung.resources:
            parts += ["", *_wrapped(evidence.resources(rung))]
    counted = evidence.counters(record, rung, brief=True)
    if counted:
        listed = "; ".join(f"{name}: {text}" for name, text in counted)
        parts += ["", *_wrapped(f"**Counted** by the processor itself, in one call. {listed[:1].upper()}{listed[1:]}.")]
    if evidence.loop(rung):
        parts += ["", *_wrapped(f"The inner loop, {evidence.loop(rung)}. {evidence.operands(rung.resources)}")]
        shown = evidence.excerpt(rung)
        parts += ["", "```asm", *shown, "```"] if shown else []
    return [*parts, "", *_wrapped(f"**What bounds it next.** {rung.next}")]


def _code(rung: RungResult, lines: Sequence[Line]) -> list[str]:
    """The whole of a first rung and of one that is mostly new, else what changed with two lines around it."""
    marks = {line.mark for line in lines}
    if marks <= {" "} or rewritten(lines):
        gone = sum(line.mark == "-" for line in lines)
        said = ["Most of it is new, so here is the whole rung.", ""] if gone else []
        return [*said, f"```{FENCES[rung.language]}", *(x.text for x in lines if x.mark != "-"), "```"]
    shown, before = ["```diff"], ""
    for function, run in hunks(lines):
        name = f" {function} @@" if function and function != before else ""
        shown += [f"@@{name}", *(f"{x.mark}{x.text}".rstrip() for x in run)]
        before = function
    return [*shown, "```"]


def _figures(record: Climb, rung: RungResult) -> list[str]:
    """One figure in a sentence, several in a table."""
    unit = words.unit_of(record)
    if len(rung.times) == 1:
        (t,) = rung.times
        text = f"{words.rate_summary(record, t)}; {_spread(t)}."
        few = words.timed_part(record, t)
        if few:
            text += f" Timed on a part, {few}: every row of the output takes the same work."
        return _wrapped(f"**Measured.** {text}")
    names = words.baseline_names([rung])
    head = ["size" if words.times_at_further_sizes(rung) else "threads", unit.name, "of the peak"]
    head += [f"of {name}" for name in names]
    rows = [f"| {' | '.join(head)} | spread |", "|---|" + "---:|" * (len(head) - 1) + "---|"]
    for t in rung.times:
        at = (
            words.sizes(t.size) + words.thread_suffix(t.threads)
            if words.times_at_further_sizes(rung)
            else str(t.threads)
        )
        over = [words.share_of_baseline(t, n) for n in names]
        cells = [at, words.rate(record, t), quantity.percent(t.rate / t.peak, 1), *over, _spread(t)]
        rows.append(f"| {' | '.join(cells)} |")
    if words.times_at_further_sizes(rung):
        everywhere = [words.times_at_own_size(rung)[-1], *words.times_at_further_sizes(rung)]
        means = [quantity.percent(words.geometric_mean(everywhere, n), 1) for n in names]
        rows.append(f"| geometric mean | | | {' | '.join(means)} | |")
    few = words.timed_part(record, rung.times[0])
    return [*rows, *(["", f"Timed on a part, {few}."] if few else [])]


def _spread(timed: RungTime) -> str:
    low, high = quantity.seconds(timed.low_s), quantity.seconds(timed.high_s)
    return f"{low} to {high} a call, {timed.samples} samples"
