"""When each operator of the run ran, on one track for each bottleneck: drawn by the page's script from its columns."""

from __future__ import annotations

import json
from html import escape

from kernelworks.records import Diagnosis
from kernelworks.report import plot, quantity
from kernelworks.report.hotspots import op_label

__all__ = ["run_timeline"]


def run_timeline(record: Diagnosis) -> str:
    """The section, hidden where no script runs. Nothing without spans."""
    spans = record.spans
    if spans is None or not spans.starts_ns:
        return ""
    tracks: dict[str, float] = {}
    for number, length in zip(spans.hotspots, spans.lengths_ns, strict=True):
        name = record.hotspots[number].bottleneck
        tracks[name] = tracks.get(name, 0.0) + length / 1e9
    ordered = sorted(tracks, key=lambda name: -tracks[name])
    of_hotspot = [ordered.index(h.bottleneck) if h.bottleneck in tracks else -1 for h in record.hotspots]
    before = (0, *spans.starts_ns)
    data = {
        "tracks": [{"name": name, "colour": plot.cause(name)} for name in ordered],
        "track": of_hotspot,
        "names": [op_label(hotspot) for hotspot in record.hotspots],
        "modules": [hotspot.module or hotspot.source for hotspot in record.hotspots],
        # In tenths of microseconds; each start is counted from the one before it.
        "gaps": [_tenths(at) - _tenths(last) for last, at in zip(before, spans.starts_ns, strict=False)],
        "lengths": [max(1, _tenths(length)) for length in spans.lengths_ns],
        "hotspots": spans.hotspots,
    }
    said = ", ".join(f"{name} {quantity.seconds(tracks[name])}" for name in ordered)
    more = f" {spans.left_out} spans after these are left out." if spans.left_out else ""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<section id="timeline-section" class="script"><h2>Timeline</h2>\n'
        '<p class="note">One run under the profiler, whose own time is in it; a track for each bottleneck. '
        f"Drag to move; Ctrl and scroll, or + and -, to zoom; click for the hotspot.{more} "
        "<code>--perfetto FILE</code> writes the same for ui.perfetto.dev.</p>\n"
        '<div class="timeline-bar"><button type="button" id="closer">Zoom in</button>'
        '<button type="button" id="farther">Zoom out</button><button type="button" id="all-of-it">Whole run</button>'
        '<span id="span-said" role="status"></span></div>\n'
        '<div class="timeline"><canvas id="timeline" tabindex="0" role="img" '
        f'aria-label="Operators over time, by bottleneck: {escape(said)}"></canvas></div>\n'
        f'<script type="application/json" id="spans">{text}</script></section>'
    )


def _tenths(nanoseconds: int) -> int:
    return round(nanoseconds / 100)
