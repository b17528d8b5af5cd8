"""One self-contained HTML page for a diagnosis, one for a machine: no request leaves them, light and dark.

Every text that comes from a program (module names, sources, sentences) passes through ``html.escape``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from kernelworks.records import Diagnosis, Fix, GpuPeaks, GpuTime, Hotspot, Peaks
from kernelworks.report import gpu, plot, quantity, roofs
from kernelworks.report.diagnose import HIDDEN_IF_ZERO, headline, round_to_percents, sort_worst_first
from kernelworks.report.fix import ROUGH_MARK, error_verdict, gain_verdict, optimization_table
from kernelworks.report.inferred_figures import inference_notes, mark_inferred
from kernelworks.report.markup import html

__all__ = [
    "REPORT_DIR", "STYLES", "colours", "context_line", "diagnosis", "diagnosis_parts", "document", "machine",
    "machine_parts",
]  # fmt: skip

REPORT_DIR = Path(__file__).resolve().parent
STYLES = ("page.css", "narrow.css")  # of a page whose pictures are there twice
NO_REQUESTS = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Iterable[str], styles: Iterable[str] = ("page.css",)) -> str:
    style = "".join((REPORT_DIR / name).read_text(encoding="utf-8") for name in styles)
    script = (REPORT_DIR / "page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{NO_REQUESTS}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def colours(*, dark: bool) -> dict[str, str]:
    """The colours of page.css by their names, for pictures that stand on no page."""
    style = (REPORT_DIR / "page.css").read_text(encoding="utf-8")
    light, night = (dict(re.findall(r"--(\w+): (#\w+)", root)) for root in re.findall(r":root \{(.*?)\}", style, re.S))
    return light | night if dark else light


def context_line(pieces: Iterable[str]) -> str:
    return f'<p class="context">{" &middot; ".join(escape(p) for p in pieces if p)}</p>'


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _list(title: str, lines: Iterable[str], heading: str = "h2") -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<{heading}>{escape(title)}</{heading}>\n<ul class="plain">{items}</ul>' if items else ""


# ---------------------------------------------------------------- a diagnosis


def diagnosis(record: Diagnosis) -> str:
    """The page of one program. Without figures it is the sentence that says why."""
    return document(f"{record.program} - kernelworks diagnose", diagnosis_parts(record), STYLES)


def diagnosis_parts(record: Diagnosis) -> tuple[str, ...]:
    """What stands on that page."""
    mark = ROUGH_MARK if record.rough else ""
    context = (record.peaks.name, f"{record.threads} threads", _versions(record.versions), record.date)
    return (
        f"<h1>{escape(record.program)}</h1>",
        f'<p class="sentence">{escape(headline(record))}</p>',
        context_line(context),
        *(
            ()
            if record.ambiguous and not record.hotspots
            else _measured(record, sort_worst_first(record.hotspots), mark)
        ),
    )


def _measured(record: Diagnosis, ordered: list[Hotspot], mark: str) -> tuple[str, ...]:
    unknown = isinstance(record.peaks, Peaks) and bool(record.peaks.unknown)
    picture = "" if unknown else _both(lambda width: plot.roofline(record.peaks, record.threads, ordered, width))
    return (
        _time_breakdown(record.time_breakdown, record.wall_s, mark),
        _fix(record.fix, mark) if record.fix else "",
        _hotspots(ordered, mark),
        _kernels(record.gpu) if record.gpu else "",
        _roofline(picture) if picture else "",
        _list("Findings", record.findings),
        _list("Not modelled", record.unmodelled),
    )


MOST_KERNELS = 40


def _kernels(times: GpuTime) -> str:
    """The kernels that took the most time, each against its bound, and what counters say of our model of them."""
    shown = times.kernels[:MOST_KERNELS]
    rows = [
        (
            f"{k.name} ({k.op})",
            str(k.runs),
            quantity.seconds(k.seconds),
            quantity.seconds(k.bound_s),
            quantity.percent(k.bound_s / k.seconds) if k.seconds else "",
            k.bottleneck,
        )
        for k in shown
    ]
    headings = ("kernel (op)", "runs", "time", "least", "achieved", "bound by")
    counted = [
        (
            f"{c.name} ({c.op})",
            quantity.figures(c.model_read_bytes / 1e6),
            quantity.figures(c.memory_read_bytes / 1e6),
            quantity.figures(c.model_flop / 1e9) if c.counted_flop else "",
            quantity.figures(c.counted_flop / 1e9) if c.counted_flop else "",
        )
        for c in times.counters
    ]
    columns = ("kernel (op)", "MB read, model", "counted", "matrix GFLOP, model", "counted")
    return _table("Kernels", headings, rows) + (_table("Counters", columns, counted) if counted else "")


def _time_breakdown(parts: dict[str, float], wall_s: float, mark: str) -> str:
    """The whole wall clock as one bar, cut by cause."""
    shares = round_to_percents(parts)
    cuts = "".join(
        f'<span style="flex-grow:{shares[name]:.1f};background:var(--{plot.cause(name)})" '
        f'title="{escape(name)}: {quantity.seconds(value)}, {shares[name]:.1f}%"></span>'
        for name, value in parts.items()
        if shares[name] > 0
    )
    legend = "".join(
        f'<li><span class="swatch" style="background:var(--{plot.cause(name)})"></span><span>{escape(name)}</span>'
        f'<span class="figure">{quantity.seconds(value)}{mark}</span>'
        f'<span class="figure">{shares[name]:.1f}%</span></li>'
        for name, value in parts.items()
        if shares[name] or name not in HIDDEN_IF_ZERO
    )
    total = sum(shares.values())
    return (
        "<h2>Where the time went</h2>\n"
        f'<p class="note">The whole wall clock, {quantity.seconds(wall_s)}{mark}; the parts add to {total:.1f}%.</p>\n'
        f'<div class="bar" role="img" aria-label="Where the time went">{cuts}</div>\n<ul class="legend">{legend}</ul>'
    )


FIRST_ROWS = 12  # as in page.css
HOTSPOT_COLUMNS = (
    ("Op, module, source", ""), ("Calls", "number"), ("Time", "number"), ("Of wall", "number"), ("Bound by", ""),
    ("Achieved", "number"), ("Recoverable", "number"), ("Next action", ""),
)  # fmt: skip


def _hotspots(ordered: list[Hotspot], mark: str) -> str:
    headings = "".join(
        f'<th scope="col" class="{kind}"{_sorted_by(name)}><button type="button">{name}</button></th>'
        for name, kind in HOTSPOT_COLUMNS
    )
    rows = "\n".join(_hotspot(index, hotspot, mark) for index, hotspot in enumerate(ordered))
    return (
        "<h2>Hotspots, largest recoverable time first</h2>\n"
        '<p class="note">Achieved is the share of the peak: the time that this machine needs at best for the '
        "hotspot's arithmetic and compulsory traffic, over the time it took. What is recoverable is what the next "
        "action is predicted to bring; what only the roofline allows stands below it.</p>\n"
        f'<div class="scroll"><table class="sortable" id="hotspots"><thead><tr>{headings}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>{_more(len(ordered))}"
    )


def _more(count: int) -> str:
    """The button that shows the rows which page.css hides at first."""
    if count <= FIRST_ROWS:
        return ""
    return f'<button type="button" class="more" id="more">Show all {count} hotspots</button>'


def _sorted_by(name: str) -> str:
    return ' aria-sort="descending"' if name == "Recoverable" else ""


def _hotspot(index: int, hotspot: Hotspot, mark: str) -> str:
    colour = f"var(--{plot.cause(hotspot.bottleneck)})"
    chip = f'<span class="chip" style="color:{colour}">{escape(hotspot.bottleneck)}</span>'
    time, share = quantity.seconds(hotspot.seconds), quantity.percent(hotspot.share, 1)
    achieved = -1.0 if hotspot.achieved is None else hotspot.achieved
    module = escape(hotspot.module).replace(".", ".<wbr>")
    lines = "".join(f'<div class="small">{text}</div>' for text in (module, escape(hotspot.source)) if text)
    peak = f'<div class="small">{escape(hotspot.peak)}</div>' if hotspot.peak else ""
    meter = ""
    if hotspot.achieved is not None:
        width = 100 * max(0.0, min(1.0, hotspot.achieved))
        meter = f'<div class="meter"><span style="width:{width:.0f}%;background:{colour}"></span></div>'
    return (
        f'<tr id="hotspot-{index}">'
        f'<td class="where" data-label="" title="{escape(hotspot.shapes)}">'
        f'<div class="op">{escape(hotspot.op)}</div>{lines}</td>'
        f'<td class="number" data-label="calls">{hotspot.calls}</td>'
        f'<td class="number" data-label="time" data-value="{hotspot.seconds:.9g}">{time}{mark}</td>'
        f'<td class="number" data-label="of wall" data-value="{hotspot.share:.9g}">{share}</td>'
        f'<td class="waits" data-label="bound by">{chip}{peak}</td>'
        f'<td class="number" data-label="achieved" data-value="{achieved:.9g}">'
        f"{quantity.percent(hotspot.achieved)}{meter}</td>"
        f'<td class="number" data-label="recoverable" data-value="{hotspot.high_s:.9g}">'
        f"{quantity.seconds_range(hotspot.low_s, hotspot.high_s)}{_bound_allows(hotspot)}</td>"
        f'<td class="action" data-label="next action">{escape(hotspot.action)}</td></tr>'
    )


def _bound_allows(hotspot: Hotspot) -> str:
    if hotspot.allows_s <= hotspot.high_s:
        return ""
    return f'<div class="small">at the roofline {quantity.seconds(hotspot.allows_s)}</div>'


def _both(draw: Callable[[float], str]) -> str:
    """A picture twice, for wide windows and for narrow ones; page.css shows the one that fits."""
    wide = draw(plot.WIDE_INCHES)
    return (
        f'<div class="wide-only">{wide}</div><div class="narrow-only">{draw(plot.NARROW_INCHES)}</div>' if wide else ""
    )


def _roofline(picture: str) -> str:
    if not picture:
        return ""
    return (
        "<h2>Roofline</h2>\n"
        '<p class="note">A dot is a hotspot: how much arithmetic it does on each byte it cannot avoid moving, and how '
        "fast it ran; its area goes with its time. Open circles mark the ridge points of the outermost memory level: "
        "to their right compute is the limit, to their left memory.</p>\n"
        f'<div class="picture" id="roofline">{picture}</div>'
    )


def _fix(fix: Fix, mark: str) -> str:
    mark = mark or (ROUGH_MARK if fix.rough else "")
    if not fix.rounds:
        said = _list("No fix was applied", tuple(n for n in (fix.refused, *fix.notes) if n))
        return f'<div id="fix">{said}{_optimizations(fix, mark)}</div>'
    speedup = quantity.ratio(fix.before_s / fix.after_s) if fix.after_s > 0 else "-"
    verdict = f'<span class="{"good" if fix.agrees else "bad"}">{escape(error_verdict(fix))}</span>'
    against, was, after = f"against {fix.against}", f"was {fix.error_before:.1e}: ", f"{fix.error_after:.1e}"
    if not fix.against:
        against, was, after, verdict = "not compared", "", "-", '<span class="bad">not verified</span>'
    refused = f'<p class="note"><span class="bad">refused: {escape(fix.refused)}</span></p>\n' if fix.refused else ""
    times = _pairs((("before", fix.before_s, "unexplained"), ("after", fix.after_s, "useful")))
    code = f"<h3>To have it without kernelworks</h3><pre>{escape(fix.code)}</pre>\n" if fix.code else ""
    foreseen = fix.predicted_gain_s
    predicted = () if foreseen is None else (("predicted", foreseen, "memory"),)
    gains = _pairs((*predicted, ("got", fix.gain_s, "useful")))
    return (
        f"<h2>With the fix</h2>\n{refused}"
        f'<div class="cards" id="fix">'
        f'<div class="card"><h3>speedup over the program as it was</h3>'
        f'<div class="big">{speedup}{mark}</div>{times}'
        f'<div class="small">medians of {fix.rounds} rounds in alternation</div></div>'
        f'<div class="card"><h3>gain</h3><div class="big">{quantity.seconds(fix.gain_s)}{mark}</div>{gains}'
        f'<div class="small">{gain_verdict(fix)}</div></div>'
        f'<div class="card"><h3>error, relative, {against}</h3><div class="big">{after}</div>'
        f"<div>{was}{verdict}</div></div></div>\n{_optimizations(fix, mark)}{code}"
        f'<div class="columns"><div>{_list("Replaced", fix.replaced, "h3")}</div>'
        f"<div>{_list('Left as it was', fix.left, 'h3')}{_list('Notes', fix.notes, 'h3')}</div></div>"
    )


def _optimizations(fix: Fix, mark: str) -> str:
    """Every optimization that was tried, those that are in place first."""
    if not fix.optimizations:
        return ""
    table = optimization_table(fix, mark)
    table.title = "Optimizations"
    return html(table) + "\n"


def _pairs(pairs: Iterable[tuple[str, float, str]]) -> str:
    """Bars one below the other on one scale; a loss goes to the left of zero, in the colour of what costs."""
    listed = list(pairs)
    least = min((0.0, *(value for _, value, _ in listed)))
    whole = max((0.0, *(value for _, value, _ in listed))) - least or 1.0
    return "".join(
        f'<div class="pair"><span>{name}</span><span class="track"><span style="margin-left:'
        f"{100 * (min(value, 0.0) - least) / whole:.1f}%;width:{100 * abs(value) / whole:.1f}%;"
        f'background:var(--{colour if value >= 0 else "dispatch"})"></span></span>'
        f'<span class="figure">{quantity.seconds(value)}</span></div>'
        for name, value, colour in listed
    )


# ---------------------------------------------------------------- a machine


def machine(*records: Peaks | GpuPeaks) -> str:
    """The page of one machine's peaks, or of several: the CPU's and its GPU's."""
    return document(f"{records[0].name} - kernelworks machine", machine_parts(*records), STYLES)


def machine_parts(*records: Peaks | GpuPeaks) -> list[str]:
    """What stands on that page."""
    parts: list[str] = ["<h1>What this machine was measured to do</h1>"]
    for record in records:
        parts += _gpu(record) if isinstance(record, GpuPeaks) else _cpu(record)
    return parts


def _cpu(record: Peaks) -> list[str]:
    counts = roofs.thread_counts(record)
    picture = _both(lambda width: plot.roofline(record, counts[-1], (), width)) if counts else ""
    share = f"other processes took {quantity.percent(record.foreign_share)} of the cores meanwhile"
    context = (f"{record.cores} cores", record.kind, _versions(record.versions), f"measured {record.date}", share)
    return [
        f'<p class="sentence">{escape(record.name)}</p>',
        context_line(context),
        _not_as_measured(record),
        '<h2>Memory hierarchy</h2>\n<div class="picture" id="memory-hierarchy">'
        f"{_both(lambda width: plot.memory_hierarchy(record, width))}</div>",
        f'<h2>Roofline</h2>\n<div class="picture" id="roofline">{picture}</div>' if picture else "",
        _machine_tables(record, counts),
    ]


def _not_as_measured(record: Peaks | GpuPeaks) -> str:
    """Why some figures are marked; nothing where none is."""
    return "".join(f'<p class="note">{escape(line)}</p>\n' for line in inference_notes(record))


def _gpu(record: GpuPeaks) -> list[str]:
    picture = _both(lambda width: plot.roofline(record, 1, (), width))
    points = roofs.ridges(record, 1)
    levels = list(dict.fromkeys(r.level for r in points))
    found = {(r.dtype, r.level): quantity.figures(r.flop_per_byte) for r in points}
    meeting = [(dtype, *(found[dtype, level] for level in levels)) for dtype in dict.fromkeys(r.dtype for r in points)]
    columns = [f"{title}, {'one launch' if cache == 'cold' else 'in place'}" for _, cache, title in gpu.MEMORY]
    floors = [(f"{title}: {words}", figure) for title, figure, words in gpu.floor_rows(record)]
    rates = [(f"{dtype}, {unit}", *pair) for dtype, unit, *pair in gpu.rate_rows(record)]
    return [
        _not_as_measured(record),
        f'<p class="sentence">{escape(record.name)}</p>',
        context_line(gpu.cards(record)),
        "<h2>Memory</h2>\n"
        '<p class="note">Solid: one launch, L2 emptied before it, less the time of an empty launch. Dashed: a launch '
        "that walks the same bytes again and again, which come from L2 where they fit.</p>\n"
        f'<div class="picture" id="gpu-memory">{_both(lambda width: plot.bandwidths(record, width))}</div>',
        f'<h2>Roofline</h2>\n<div class="picture" id="gpu-roofline">{picture}</div>' if picture else "",
        '<div class="columns wide">'
        + _table("Arithmetic", ("dtype, by", "burst", "sustained, after 1 s"), rates)
        + _table("Elementary functions", ("function", "results a second"), gpu.function_rows(record))
        + _table("Ridge points, flop per byte", ("dtype", *levels), meeting)
        + _table("Floors", ("what", "figure"), floors)
        + "</div>",
        _table("Memory, GB/s", ("bytes moved", *columns), gpu.memory_rows(record)),
    ]


def _table(title: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A plain table; every column after the first holds numbers."""
    titles = list(headings)
    head = "".join(f'<th scope="col"{_number(i)}>{escape(h)}</th>' for i, h in enumerate(titles))
    labels = [f' data-label="{escape(title if i else "")}"' for i, title in enumerate(titles)]
    body = "\n".join(
        "<tr>" + "".join(f"<td{_number(i)}{labels[i]}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div><h2>{escape(title)}</h2>\n<div class="scroll">{table}</div></div>'


def _number(index: int) -> str:
    return ' class="number"' if index else ""


def _machine_tables(record: Peaks, counts: list[int]) -> str:
    threads = [f"{t} thread{'s' if t > 1 else ''}" for t in counts]
    flops = {(r.dtype, r.isa, r.threads): mark_inferred(record, r.name, _rate(r.dtype, r.gflops)) for r in record.flops}
    rates = [
        (f"{dtype}, {isa}", *(flops.get((dtype, isa, t), "-") for t in counts))
        for dtype, isa in dict.fromkeys((r.dtype, r.isa) for r in record.flops)
    ]
    calls = {(r.function, r.isa, r.threads): mark_inferred(record, r.name, _billions(r.gops)) for r in record.functions}
    functions = [
        (f"{name}, {isa}", *(calls.get((name, isa, t), "-") for t in counts))
        for name, isa in dict.fromkeys((r.function, r.isa) for r in record.functions)
    ]
    ridges = roofs.ridges(record, counts[-1]) if counts else []
    levels = list(dict.fromkeys(r.level for r in ridges))
    points = {(r.dtype, r.level): quantity.figures(r.flop_per_byte) for r in ridges}
    meeting = [(dtype, *(points[dtype, level] for level in levels)) for dtype in dict.fromkeys(r.dtype for r in ridges)]
    floors = [
        ("torch dispatch: add(out=) of one element", quantity.seconds(record.dispatch_us / 1e6)),
        ("fork-join: an empty parallel region on all threads", quantity.seconds(record.fork_join_us / 1e6)),
        ("page fault: first touch of a fresh 4 KiB page", quantity.seconds(record.page_fault_us / 1e6)),
    ]
    return (
        '<div class="columns wide">'
        + _table("Arithmetic: multiply-adds", ("dtype, instruction set", *threads), rates)
        + _table("Elementary functions: float32 results", ("function, instruction set", *threads), functions)
        + _table("Ridge points, flop per byte", ("dtype", *levels), meeting)
        + _table("Floors", ("what", "time"), floors)
        + "</div>"
    )


def _rate(dtype: str, value: float) -> str:
    return quantity.gflops(value).replace("FLOP", "op" if dtype.startswith("int") else "FLOP")


def _billions(value: float) -> str:
    return f"{quantity.figures(value)} G/s"
