"""A climb in words and figures, the same on the terminal, in the worklog and on the page: from the record alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kernelworks.records import GpuPeaks
from kernelworks.records.climb import Climb, RungResult, RungTime
from kernelworks.report import quantity, roofs

__all__ = [
    "Unit",
    "baseline_names",
    "best_baseline",
    "bottleneck_name",
    "bottleneck_sentence",
    "geometric_mean",
    "heading",
    "headline",
    "is_imprecise",
    "judged_time",
    "limit",
    "machine",
    "outcome",
    "peak_meaning",
    "predictions",
    "rate",
    "rate_range",
    "rate_summary",
    "share_of_baseline",
    "sizes",
    "spread",
    "thread_suffix",
    "timed_part",
    "times_at_further_sizes",
    "times_at_own_size",
    "totals",
    "unit_for",
    "unit_of",
    "verdict",
    "verification_sentence",
]  # fmt: skip

PREDICTION_TOLERANCE = 0.1  # off by less than this share, a prediction was right
MIN_TOLERANCE = 0.02  # a small gain must be hit to half of itself, but not nearer than this
ROUGH_SPREAD = 0.25  # spread, as a share of the median
LEVELS = {"shared": "shared memory"}  # what a header calls it, in words
WORDS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight", 9: "Nine", 10: "Ten",
         11: "Eleven", 12: "Twelve"}  # fmt: skip


class Unit:
    """What the rates of one climb are shown in: the record's unit, or a thousand of it where they are large."""

    def __init__(self, name: str, scale: float) -> None:
        self.name, self.scale = name, scale

    def figure(self, rate: float) -> str:
        return quantity.figures(rate / self.scale)

    def __call__(self, rate: float) -> str:
        return f"{self.figure(rate)} {self.name}"


def unit_of(record: Climb) -> Unit:
    return unit_for(record.unit, max((t.rate for r in record.rungs for t in r.times), default=0.0))


def unit_for(name: str, largest: float) -> Unit:
    if largest < 9995:
        return Unit(name, 1.0)
    return Unit({"GFLOP/s": "TFLOP/s", "GB/s": "TB/s"}[name], 1e3)


# ---------------------------------------------------------------- names


def heading(record: Climb) -> str:
    return f"{record.ladder}: {record.title}, {sizes(record.size)}"


def sizes(size: Mapping[str, int]) -> str:
    if len(size) > 1 and len(set(size.values())) == 1:
        return f"{' = '.join(size)} = {next(iter(size.values()))}"
    return ", ".join(f"{name} = {value}" for name, value in size.items())


def machine(record: Climb) -> str:
    """The machine's name and how much of it there is."""
    here = record.peaks
    if isinstance(here, GpuPeaks):
        limit = f", power limit {here.power_limit_w:.0f} W" if here.power_limit_w else ""
        return f"{here.name}, {here.multiprocessors} multiprocessors{limit}"
    return f"{here.name}, {here.cores} cores"


def thread_suffix(threads: int) -> str:
    """ " at 2 threads" after a figure; nothing on a GPU."""
    return f" at {threads} thread{'s' if threads > 1 else ''}" if threads else ""


def baseline_names(rungs: Sequence[RungResult]) -> list[str]:
    return list(dict.fromkeys(name for r in rungs for t in r.times for name in t.baselines))


def best_baseline(timed: RungTime) -> tuple[str, float]:
    """Name and rate of the fastest baseline in the same race."""
    return max(timed.baselines.items(), key=lambda item: item[1], default=("", 0.0))


def peak_meaning(record: Climb) -> str:
    """What "of the peak" means in this climb."""
    return record.peak or {
        "GFLOP/s": f"the measured rate of {record.arithmetic} multiply-adds",
        "GB/s": "the measured rate of reads of memory",
    }.get(record.unit, "the measured peak")


# ---------------------------------------------------------------- what was timed


def times_at_own_size(rung: RungResult) -> list[RungTime]:
    """At the rung's own size, least threads first."""
    return [t for t in rung.times if t.size == rung.times[0].size]


def times_at_further_sizes(rung: RungResult) -> list[RungTime]:
    """At further sizes."""
    return [t for t in rung.times if t.size != rung.times[0].size]


def judged_time(rung: RungResult) -> RungTime | None:
    """What the prediction is held against: the rung's own size, the most threads."""
    return times_at_own_size(rung)[-1] if rung.times else None


def timed_part(record: Climb, timed: RungTime) -> str:
    """Of which share of the problem a slow rung was timed, at its own size: "M = 16 of 2048"; empty for all of it."""
    return ", ".join(
        f"{name} = {value} of {record.size[name]}"
        for name, value in timed.size.items()
        if value < record.size.get(name, value)
    )


def spread(timed: RungTime) -> str:
    """How far the middle of the samples lies apart, as a share of the median."""
    return quantity.percent((timed.high_s - timed.low_s) / timed.median_s)


def is_imprecise(timed: RungTime) -> bool:
    """Whether the samples lie so far apart that the rate is a rough one."""
    return timed.rough or timed.high_s - timed.low_s > ROUGH_SPREAD * timed.median_s


def rate_range(unit: Unit, timed: RungTime) -> str:
    """A rate that others' use of the machine left rough: from the least to the most."""
    least, most = (timed.rate * timed.median_s / seconds for seconds in (timed.high_s, timed.low_s))
    return f"{unit.figure(least)} to {unit.figure(most)}"


def rate(record: Climb, timed: RungTime) -> str:
    """For a table: "~" before a rate whose samples lie far apart."""
    if timed.rough:
        return f"{rate_range(unit_of(record), timed)} rough"
    return f"{'~' if is_imprecise(timed) else ''}{unit_of(record).figure(timed.rate)}"


def geometric_mean(timed: Sequence[RungTime], name: str) -> float:
    """The geometric mean of how many times a baseline's rate it was."""
    ratios = [t.rate / t.baselines[name] for t in timed if name in t.baselines]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


# ---------------------------------------------------------------- the result


def share_of_baseline(timed: RungTime, name: str) -> str:
    """As a share of a baseline's rate, for a table."""
    if name not in timed.baselines:
        return "-"
    share = timed.rate / timed.baselines[name]
    return quantity.percent(share, 1) if 0.1 <= share < 10 else f"{quantity.figures(100 * share)}%"


def _beside(timed: RungTime) -> str:
    text = ""
    for name, rate in timed.baselines.items():
        share = timed.rate / rate
        text += f", {speedup_text(share)} {name}" if share >= 0.9 else f", {share_of_baseline(timed, name)} of {name}"
    return text


def speedup_text(share: float) -> str:
    """A speedup; near 1 with one more figure, since that is where it is looked at closely."""
    return f"{share:.3f}x" if 0.9 <= share < 1.1 else quantity.ratio(share)


def rate_summary(record: Climb, timed: RungTime) -> str:
    """Rate, share of the peak, and beside every baseline."""
    unit, share = unit_of(record), quantity.percent(timed.rate / timed.peak)
    return f"{_at(record, timed)}, {share} of the peak of {unit(timed.peak)}{_beside(timed)}"


def _at(record: Climb, timed: RungTime) -> str:
    unit = unit_of(record)
    if timed.rough:
        return f"{rate_range(unit, timed)} {unit.name} (rough){thread_suffix(timed.threads)}"
    return f"{'about ' if is_imprecise(timed) else ''}{unit(timed.rate)}{thread_suffix(timed.threads)}"


def last_timed_rung(record: Climb) -> RungResult | None:
    return next((r for r in reversed(record.rungs) if r.times), None)


def headline(record: Climb) -> str:
    """The whole climb in one sentence."""
    timed = [r for r in record.rungs if r.times]
    if not timed:
        return "No rung has a figure."
    first, last, unit = times_at_own_size(timed[0])[0], judged_time(timed[-1]), unit_of(record)
    assert last is not None
    steps = WORDS.get(len(timed), str(len(timed)))
    rough = "Rough, since others used the machine: " if any(t.rough for r in timed for t in r.times) else ""
    if len(timed) == 1:
        return f"{rough}Rung {timed[0].number} alone: {rate_summary(record, last)}."
    return f"{rough}{steps} rungs from {unit(first.rate)} to {rate_summary(record, last)}."


def totals(record: Climb) -> list[str]:
    """The headline; then what the last rung reached with fewer threads, at further sizes and over all of them."""
    last, sentences = last_timed_rung(record), [headline(record)]
    if last is None:
        return sentences
    sentences += [f"Rung {last.number}: {rate_summary(record, t)}." for t in times_at_own_size(last)[:-1]]
    more = times_at_further_sizes(last)
    sentences += [f"At {sizes(t.size)}: {_at(record, t)}{_beside(t)}." for t in more]
    if more:
        everywhere = [times_at_own_size(last)[-1], *more]
        for name in baseline_names([last]):
            least = min((t for t in everywhere if name in t.baselines), key=lambda t: t.rate / t.baselines[name])
            sentences.append(
                f"Over these {len(everywhere)} sizes the geometric mean is "
                f"{speedup_text(geometric_mean(everywhere, name))} {name}, the least "
                f"{speedup_text(least.rate / least.baselines[name])}, at "
                f"{sizes(least.size)}."
            )
    wrong = [r for r in record.rungs if r.status == "wrong"]
    if wrong:
        listed = ", ".join(f"{r.number} ({r.title})" for r in wrong)
        sentences.append(f"Wrong, and so without a figure: {listed}.")
    sentences += [
        f"No figure for rung {r.number} ({r.title}): {r.reason}." for r in record.rungs if r.status == "not run"
    ]
    return sentences


def _least_bytes(record: Climb) -> dict[str, float]:
    """What one call must move, by " as FORMAT" where the rungs take several."""
    if record.unit != "GB/s":
        return {"": record.bytes}
    found: dict[float, str] = {}
    for rung in (r for r in record.rungs if r.times):
        t = rung.times[0]
        whole = t.rate * 1e9 * t.median_s * math.prod(record.size[n] / t.size[n] for n in record.size)
        found.setdefault(round(whole, -3), f" as {rung.format}" if rung.format else "")
    return {name: count for count, name in found.items()} or {"": record.bytes}


def limit(record: Climb) -> str:
    """What one call needs at least, and which of memory and multipliers that asks more of."""
    least, here = _least_bytes(record), record.peaks
    intensity = record.flop / min(least.values())
    moved = " or ".join(f"{quantity.figures(count / 1e6)} MB{name}" for name, count in least.items())
    each = " or ".join(quantity.figures(record.flop / count) for count in least.values())
    text = (
        f"One call is {quantity.figures(record.flop / 1e9)} GFLOP over {moved} that must move at least once: {each} "
        "flop for each byte."
    )
    if isinstance(here, GpuPeaks):
        rates = [r.burst_tflops * 1e3 for r in here.rates if r.dtype == record.arithmetic]
        read = roofs.slopes(here, 1).get("HBM")
    else:
        rates = [r.gflops for r in here.flops if (r.dtype, r.threads) == (record.arithmetic, here.cores)]
        read = roofs.slopes(here, here.cores).get("DRAM")
    if not rates or read is None:
        return text
    ridge = max(rates) / read
    which = "the multipliers are" if intensity > ridge else "memory is"
    return (
        f"{text} This machine's memory meets its multipliers at {quantity.figures(ridge)} flop for each byte, so "
        f"{which} what can limit it at best."
    )


# ---------------------------------------------------------------- prediction and outcome


def verdict(rung: RungResult) -> str:
    """How the outcome stands to the prediction; empty where one of the two is missing."""
    if rung.gain is None or rung.predicted is None:
        return ""
    off = rung.gain / rung.predicted
    if abs(off - 1) <= max(MIN_TOLERANCE, min(PREDICTION_TOLERANCE, abs(rung.predicted - 1) / 2)):
        return "as predicted"
    return "more than predicted" if off > 1 else "less than predicted"


def outcome(record: Climb, rung: RungResult) -> str:
    """Prediction against outcome in one sentence, honest where it missed."""
    timed = judged_time(rung)
    if timed is None:
        return f"{rung.status}: {rung.reason}. It has no figure."
    rate = f"{unit_of(record)(timed.rate)}{thread_suffix(timed.threads)}"
    if timed.rough:
        return f"Got {rate_range(unit_of(record), timed)} {unit_of(record).name}, rough: others used the machine."
    if rung.gain is None or rung.predicted is None:
        return f"Got {rate}; there is nothing to compare it with."
    words = verdict(rung)
    if rung.gain < 1 - MIN_TOLERANCE:
        words += ", and slower than the rung before"
    return (
        f"Predicted {quantity.ratio(rung.predicted)} the rung before, got {quantity.ratio(rung.gain)} "
        f"({words}): {rate}.{_care(timed)}"
    )


def _care(timed: RungTime) -> str:
    return f" The samples lie {spread(timed)} of the median apart, so take it with care." if is_imprecise(timed) else ""


def predictions(record: Climb) -> str:
    """How many predictions were right, and which were not."""
    tried = [r for r in record.rungs if verdict(r)]
    if not tried:
        return ""
    missed = [r for r in tried if verdict(r) != "as predicted"]
    text = f"{len(tried) - len(missed)} of {len(tried)} predictions were right."
    if missed:
        expected = (f"expected {quantity.ratio(r.predicted)}, got {quantity.ratio(r.gain)}" for r in missed)
        listed = ", ".join(f"{r.number} {r.title} ({text})" for r, text in zip(missed, expected, strict=True))
        text += f" Missed: {listed}."
    return text


# ---------------------------------------------------------------- what bounds it


def bottleneck_sentence(rung: RungResult) -> str:
    """What each peak explains of the time, and what that says."""
    largest = sorted(rung.shares.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{LEVELS.get(name, name)} {quantity.percent(share)}" for name, share in largest)
    text = f"Of its time the peaks explain: {parts}."
    if rung.bottleneck == "latency":
        return f"{text} None is enough: it is below the roofline, cause unknown."
    return f"{text} It is bound by {bottleneck_name(rung)}."


def bottleneck_name(rung: RungResult) -> str:
    """What it is bound by, in a word or two: a level of memory by its name."""
    name = quantity.bottleneck(rung.bottleneck).removeprefix("memory ")
    return {"compute": "the multipliers"}.get(name, LEVELS.get(name, name))


def verification_sentence(rung: RungResult) -> str:
    """What was verified, and for which sizes it was not tried."""
    text = ""
    if rung.worst is not None:
        text = f"Largest error over all sizes tried: {quantity.percent(rung.worst, 1)} of the derived bound."
    if rung.multiples:
        asked = ", ".join(f"{name} a multiple of {count}" for name, count in rung.multiples.items())
        text += f" It asks for {asked}"
        if rung.skipped:
            sizes = f"{rung.skipped} size{'s' if rung.skipped > 1 else ''}"
            text += f"; {sizes} of the verification that are not so were left out"
        text += "."
    return text.strip()
