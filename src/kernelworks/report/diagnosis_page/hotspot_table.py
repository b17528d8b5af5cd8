"""The table of hotspots: each with its figures, and below it, once it is opened, the source at its call."""

from __future__ import annotations

import json
from html import escape

from kernelworks.records import Diagnosis, Hotspot
from kernelworks.records.program_run import SourceLines
from kernelworks.report import plot, quantity
from kernelworks.report.hotspots import (
    OWN_TIME,
    bound_by,
    limit_s,
    next_action,
    op_label,
    own_share,
    predicted_s,
    recoverable,
    share_heading,
)

__all__ = ["FIRST_ROWS", "has_dot", "hotspot_table"]

FIRST_ROWS = 12  # that are shown at first
LEAST_CAUSE_SHARE = 0.005  # of a hotspot's time: less does not make it one with time of that cause
SHARE = "Share"
BELOW_ANY_PREDICTION_S = 1e9  # what only the roofline allows is sorted after all that is predicted
COLUMNS = (
    ("Op, module, source", ""), ("Calls", "number"), ("Time", "number"), (SHARE, "number"), ("Bound by", ""),
    ("Achieved", "number"), ("Recoverable", "number"), ("Next action", ""),
)  # fmt: skip


def _order(record: Diagnosis) -> str:
    """What they are sorted by, as far as this record has it (``report.hotspots.sort_worst_first``)."""
    if any(map(predicted_s, record.hotspots)):
        return "largest predicted gain"
    return "most time above the roofline" if any(map(limit_s, record.hotspots)) else "longest"


def hotspot_table(record: Diagnosis) -> str:
    heading = share_heading(record).capitalize()
    headings = "".join(
        f'<th scope="col" class="{kind}"{_sorted_by(name)}><button type="button">{name}</button></th>'
        for name, kind in ((heading if name == SHARE else name, kind) for name, kind in COLUMNS)
    )
    bodies = "\n".join(_hotspot(record, number, hotspot) for number, hotspot in enumerate(record.hotspots, 1))
    return (
        f'<section id="hotspots-section"><h2>Hotspots, {_order(record)} first</h2>\n'
        '<p class="note">Achieved is the share of the peak: the time that this machine needs at best for the '
        "hotspot's arithmetic and compulsory traffic, over the time it took. What is recoverable is what the next "
        "action is predicted to bring; &lt;= is the most that the roofline allows, by whatever means, and comes after "
        f"all that is predicted.{f' {OWN_TIME[0].upper()}{OWN_TIME[1:]}.' if heading == 'Of own' else ''}</p>\n"
        f"{_filters(record, len(record.hotspots))}"
        f'<div class="scroll"><table class="sortable" id="hotspots" data-first="{FIRST_ROWS}">'
        f"<thead><tr>{headings}</tr></thead>\n{bodies}</table></div>\n"
        '<button type="button" class="more script" id="more" hidden>Show all</button></section>'
    )


def _filters(record: Diagnosis, count: int) -> str:
    rough = '<span class="mark">rough</span>' if record.rough else ""
    return (
        '<div class="filters script"><label for="filter">Filter</label>'
        '<input type="search" id="filter" autocomplete="off" spellcheck="false" '
        'placeholder="op, module, file, shape, bottleneck">'
        '<button type="button" id="clear-cause" hidden></button>'
        f'<span id="shown" role="status">{count} hotspots</span>{rough}</div>\n'
    )


def _sorted_by(name: str) -> str:
    return ' aria-sort="descending"' if name == "Recoverable" else ""


def has_dot(hotspot: Hotspot) -> bool:
    """Whether the roofline has a dot of it."""
    return hotspot.flop > 0 and hotspot.bytes > 0 and hotspot.seconds > 0


def _hotspot(record: Diagnosis, number: int, hotspot: Hotspot) -> str:
    """A hotspot is a body of the table of its own: its row and, hidden at first, what is told of it beside. Its number
    is its place among the record's hotspots, from 1."""
    causes = {n: round(s, 9) for n, s in hotspot.parts.items() if s >= LEAST_CAUSE_SHARE * hotspot.seconds}
    told = f'id="hotspot-{number}" data-causes="{escape(json.dumps(causes))}"'
    return f"<tbody {told}>{_row(record, number, hotspot)}{_detail(number, hotspot)}</tbody>"


def _row(record: Diagnosis, number: int, hotspot: Hotspot) -> str:
    time, share = quantity.seconds(hotspot.seconds), own_share(record, hotspot)
    achieved = -1.0 if hotspot.achieved is None else hotspot.achieved
    colour = f"var(--{plot.cause(hotspot.bottleneck)})"
    chip = f'<span class="swatch" style="background:{colour}"></span> {escape(bound_by(hotspot))}'
    peak = f'<div class="small">{escape(hotspot.peak)}</div>' if hotspot.peak else ""
    meter = ""
    if hotspot.achieved is not None:
        width = 100 * max(0.0, min(1.0, hotspot.achieved))
        meter = f'<div class="meter"><span style="width:{width:.0f}%;background:{colour}"></span></div>'
    order = predicted_s(hotspot) or limit_s(hotspot) - BELOW_ANY_PREDICTION_S
    return (
        f'<tr class="hotspot"><td class="where" data-label=""><div>{_where(number, hotspot)}</div></td>'
        f'<td class="number" data-label="calls"><div>{hotspot.calls}</div></td>'
        f'<td class="number" data-label="time" data-value="{hotspot.seconds:.9g}">'
        f'<div>{time}<div class="small of-cause"></div></div></td>'
        f'<td class="number" data-label="{share_heading(record)}" data-value="{-1.0 if share is None else share:.9g}">'
        f"<div>{quantity.percent(share, 1)}</div></td>"
        f'<td class="waits" data-label="bound by"><div>{chip}{peak}</div></td>'
        f'<td class="number" data-label="achieved" data-value="{achieved:.9g}">'
        f"<div>{quantity.percent(hotspot.achieved)}{meter}</div></td>"
        f'<td class="number" data-label="recoverable" data-value="{order:.9f}">'
        f"<div>{escape(recoverable(hotspot))}</div></td>"
        f'<td class="action" data-label="next action"><div>{escape(next_action(hotspot))}</div></td></tr>'
    )


def _where(number: int, hotspot: Hotspot) -> str:
    module = escape(hotspot.layers or hotspot.module).replace(".", ".<wbr>")
    inside = f'<div class="small">{module}</div>' if module else ""
    source = escape(hotspot.source)
    opener = (
        f'<button type="button" class="open script" aria-expanded="false" aria-controls="detail-{number}">'
        f"{source or 'details'}</button>"
        f'<span class="small unscripted">{source}</span>'
    )
    link = f'<a class="permalink" href="#hotspot-{number}" aria-label="Link to hotspot {number}">#{number}</a>'
    return f'<div class="op">{escape(op_label(hotspot))} {link}</div>{inside}<div>{opener}</div>'


def _detail(number: int, hotspot: Hotspot) -> str:
    dot = f'<a class="to-dot" href="#dot-{number}">Show it in the roofline</a>' if has_dot(hotspot) else ""
    parts = ", ".join(f"{name} {quantity.seconds(value)}" for name, value in hotspot.parts.items())
    facts = (
        ("shapes", hotspot.shapes),
        ("time by cause", parts),
        ("recoverable", _recoverable_both(hotspot)),
        ("work of all calls", _work(hotspot)),
        ("kernels", ", ".join(hotspot.kernels)),
        ("kernel after a swap", hotspot.op_kernel),
    )
    told = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    code = _code(hotspot.source, hotspot.code) if hotspot.code is not None else ""
    return (
        f'<tr class="detail script" id="detail-{number}" hidden><td colspan="{len(COLUMNS)}" data-label="">'
        f"<div>{code}<dl>{told}</dl>{dot}</div></td></tr>"
    )


def _recoverable_both(hotspot: Hotspot) -> str:
    predicted = f"predicted {quantity.seconds_range(hotspot.low_s, hotspot.high_s)}" if hotspot.high_s >= 1e-9 else ""
    limit = f"at the roofline {quantity.seconds(limit_s(hotspot))}" if limit_s(hotspot) >= 1e-9 else ""
    return ", ".join(part for part in (predicted, limit) if part)


def _work(hotspot: Hotspot) -> str:
    said = [f"{quantity.figures(hotspot.flop / 1e9)} GFLOP"] if hotspot.flop else []
    said += [f"{quantity.figures(hotspot.bytes / 1e6)} MB"] if hotspot.bytes else []
    if hotspot.flop and hotspot.seconds:
        said.append(f"{quantity.gflops(hotspot.flop / hotspot.seconds / 1e9)} reached")
    return ", ".join(said)


def _code(source: str, code: SourceLines) -> str:
    """The lines around the call, that of the call marked."""
    digits = source.rpartition(":")[2]
    at = int(digits) if digits.isdecimal() else -1
    lines = "".join(
        f'<span class="line{" called" if code.first + i == at else ""}">'
        f'<span class="line-number">{code.first + i}</span>{escape(line) or " "}</span>'
        for i, line in enumerate(code.lines)
    )
    return f'<pre tabindex="0" role="group" aria-label="Source around {escape(source)}"><code>{lines}</code></pre>'
