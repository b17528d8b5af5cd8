"""The whole wall clock as one bar, cut by cause. A click on a part shows the hotspots that have time of that cause."""

from __future__ import annotations

from html import escape

from kernelworks.records import Diagnosis
from kernelworks.report import plot, quantity
from kernelworks.report.diagnose import round_to_percents

__all__ = ["breakdown_bar"]

LABELLED_PERCENT = 4.0  # a part below it has no label in the bar


def breakdown_bar(record: Diagnosis) -> str:
    parts, wall = record.time_breakdown, record.wall_s
    shares = round_to_percents(parts)
    shown = [name for name in parts if shares[name] > 0]
    cuts = "".join(
        f'<span class="cut" data-cause="{escape(name)}" style="flex-grow:{shares[name]:.1f};'
        f'background:var(--{plot.cause(name)})" title="{escape(name)}: {quantity.seconds(parts[name])}, '
        f'{shares[name]:.1f}%">{_label(name, shares[name])}</span>'
        for name in shown
    )
    largest = sorted(shown, key=lambda name: -parts[name])
    legend = "".join(
        f'<li><button type="button" class="cause" data-cause="{escape(name)}" aria-pressed="false">'
        f'<span class="swatch" style="background:var(--{plot.cause(name)})"></span><span>{escape(name)}</span>'
        f'<span class="figure">{quantity.seconds(parts[name])}</span>'
        f'<span class="figure">{shares[name]:.1f}%</span></button></li>'
        for name in largest
    )
    said = ", ".join(f"{name} {shares[name]:.1f}%" for name in largest)
    return (
        '<section id="time-breakdown"><h2>Time breakdown</h2>\n'
        f'<p class="note">The whole wall clock, {quantity.seconds(wall)}, by cause; the parts add to '
        f'{sum(shares.values()):.1f}%. <span class="script">Choose a cause to see its hotspots.</span></p>\n'
        f'<div class="bar" role="img" aria-label="Time by cause: {escape(said)}">{cuts}</div>\n'
        f'<ul class="legend">{legend}</ul></section>'
    )


def _label(name: str, percent: float) -> str:
    if percent < LABELLED_PERCENT:
        return ""
    return f'<span class="cut-label"><b>{percent:.0f}%</b> <span>{escape(name)}</span></span>'
