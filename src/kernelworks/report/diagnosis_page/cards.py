"""The figures on top of the page: the wall clock, the share of the peak, what is recoverable, what was gained."""

from __future__ import annotations

from html import escape

from kernelworks.records import Diagnosis, Fix
from kernelworks.records.peak_share import AT_PEAK, own_s, peak_share, recorded_peak_share
from kernelworks.records.wall_clocks import CONTENTION
from kernelworks.report import quantity
from kernelworks.report.fix import count_outcomes, gain_verdict, speedup_text
from kernelworks.report.hotspots import NOTABLE_CONTENTION

__all__ = ["cards"]

LEAST_MODELLED = 0.25  # if less of the time has a model, there is no share of the peak
MOSTLY_MODELLED = 0.9  # if less, the card says of how much of the time it speaks


def cards(record: Diagnosis) -> str:
    return (
        '<div class="cards" id="cards">'
        f"{_wall(record)}{_share_of_peak(record)}{_recoverable(record)}{_gain(record)}</div>"
    )


def _card(title: str, big: str, *lines: str) -> str:
    """One figure; ``lines`` are HTML."""
    inside = "".join(lines)
    return f'<section class="card"><h2>{escape(title)}</h2><div class="big">{escape(big)}</div>{inside}</section>'


def _small(text: str) -> str:
    return f'<div class="small">{escape(text)}</div>' if text else ""


def _wall(record: Diagnosis) -> str:
    others = record.time_breakdown.get(CONTENTION, 0.0)
    said = f"{quantity.seconds(others)} of it is CPU contention: other processes had the cores"
    calls = sum(hotspot.calls for hotspot in record.hotspots if hotspot.achieved is not None)
    lines = [_small(said)] if others > NOTABLE_CONTENTION * record.wall_s else []
    return _card("Wall clock per run", quantity.seconds(record.wall_s), *lines, _small(f"{calls} calls with a model"))


def _share_of_peak(record: Diagnosis) -> str:
    """Of the time that the program had cores and that has a model."""
    found = peak_share(record.time_breakdown, record.hotspots, record.wall_s)
    share = found.modelled if own_s(record.time_breakdown, record.wall_s) > 0 else 0.0
    peak = record.time_breakdown.get(AT_PEAK, 0.0)
    if share < LEAST_MODELLED:
        return _card("Share of the measured peak", "unknown", _small(f"{quantity.percent(1 - share)} has no model"))
    if AT_PEAK not in record.time_breakdown:
        return _card("Share of the measured peak", "unknown", _small("measured peaks are unknown"))
    achieved, shown = min(1.0, found.achieved), recorded_peak_share(record)
    if not shown:
        return _card("Share of the measured peak", "unknown", _small("others disturbed it too much"))
    of = "" if share > MOSTLY_MODELLED else f", of the {quantity.percent(share)} of the time that has a model"
    meter = f'<div class="meter"><span style="width:{100 * achieved:.0f}%;background:var(--useful)"></span></div>'
    return _card("Share of the measured peak", shown, meter, _small(f"{quantity.seconds(peak)} at peak{of}"))


def _recoverable(record: Diagnosis) -> str:
    left = [hotspot for hotspot in record.hotspots if not hotspot.applied]  # what a fix applied is its gain
    low, high, roofline = sum(h.low_s for h in left), sum(h.high_s for h in left), sum(h.allows_s for h in left)
    limit = f"{quantity.seconds(roofline)} at the roofline (theoretical limit)" if roofline > high else ""
    figure = quantity.seconds_range(low, high)
    if high <= 0 and (AT_PEAK not in record.time_breakdown or record.ambiguous):
        return _card("Recoverable", "unknown", _small("nothing is predicted on these figures"))
    return _card(
        "Recoverable", figure if high > 0 else "none predicted", _small("predicted for known optimizations"),
        _small(limit),
    )  # fmt: skip


def _gain(record: Diagnosis) -> str:
    fix = record.fix
    if fix is None:
        return _card("Applied gain", "not tried", _small("--fix tries optimizations and measures them"))
    if not fix.rounds or fix.refused:
        return _card("Applied gain", "none", _small(count_outcomes(fix)))
    unit = quantity.unit_of(fix.before_s, fix.after_s)
    before, after = quantity.seconds(fix.before_s, unit), quantity.seconds(fix.after_s, unit)
    times = f"{before} to {after}, {fix.rounds} rounds in alternation"
    return _card("Applied gain", speedup_text(fix), _gain_bars(fix), _small(gain_verdict(fix)), _small(times))


def _gain_bars(fix: Fix) -> str:
    """Predicted beside got on one scale; a loss goes to the left of zero. The line is the noise of what was got."""
    rows = [("predicted", fix.told_prediction_s, 0.0, "outline"), ("got", fix.gain_s, fix.noise_s, "solid")]
    ends = [0.0, *(v + s * n for _, v, n, _ in rows if v is not None for s in (-1, 1))]
    least, most = min(ends), max(ends)
    whole = most - least or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - least) / whole:.1f}%"

    lines = []
    for name, value, noise, kind in rows:
        if value is None:
            lines.append(f'<div class="pair"><span>{name}</span><span></span><span class="figure">-</span></div>')
            continue
        left, size = at(min(value, 0.0)), f"{100 * abs(value) / whole:.1f}%"
        loss = " loss" if value < 0 else ""
        bars = f'<span class="gain {kind}{loss}" style="left:{left};width:{size}"></span>'
        figure = quantity.seconds(value)
        if noise > 0:
            bars += f'<span class="whisker" style="left:{at(value - noise)};width:{200 * noise / whole:.1f}%"></span>'
            figure += f" &plusmn; {quantity.seconds(noise)}"
        lines.append(
            f'<div class="pair"><span>{name}</span><span class="track">{bars}</span>'
            f'<span class="figure">{figure}</span></div>'
        )
    return "".join(lines)
