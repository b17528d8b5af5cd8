"""The page of a climb: the climb on the roofline, and every rung's code with what changed from the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from kernelworks.report import climb as text
from kernelworks.report import plot, quantity, roofs
from kernelworks.report.page import context_line, document
from kernelworks.rungs import Climb, RungResult, RungTime

__all__ = ["page", "roofline"]

STYLE = """<style>
pre { background: var(--panel); border-radius: 8px; padding: 12px 14px; overflow-x: auto; font-size: 12.5px; line-height: 1.5; }
pre .changed { background: color-mix(in srgb, var(--useful) 22%, transparent); display: inline-block; min-width: 100%; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--muted); }
table:not(.all) tbody tr:nth-child(n + 13) { display: table-row; }
.rung { border-top: 1px solid var(--line); margin-top: 34px; } .rung h2 { margin-top: 20px; }
.rung p { max-width: 90ch; }
</style>"""  # noqa: E501
COLOURS = {"compute": "compute", "memory": "memory", "latency": "latency"}


def roofline(record: Climb) -> str:
    """The climb on the roofline of one thread: each rung at the flop it does for a byte from L1, joined in order.

    A rung of several threads is a ring above its own one-thread dot, under the multiply-add roof of all threads.
    Empty where the ceilings lack a roof or no rung has a figure.
    """
    slopes = roofs.slopes(record.ceilings, 1)
    tops = [roof for roof in roofs.best_flops(record.ceilings, 1) if roof.dtype == "float32"]
    found = [(r, r.times[0]) for r in record.rungs if r.times and r.loads.get("L1")]
    if not slopes or not tops or not found:
        return ""
    figure, axes = plot.canvas(10.5, 5.8, "climb")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xlim(1 / 32, 64)
    slowest = min(t.rate for _, t in found)
    highest = max([tops[-1].gflops, *(t.ceiling for r, _ in found for t in r.times)])
    axes.set_ylim(slowest / 3, highest * 2)
    plot.draw_roofs(axes, slopes, tops, 1 / 32, 64)
    at = [(2 / r.loads["L1"], t.rate) for r, t in found]
    axes.plot(*zip(*at, strict=True), color=plot.stand_in("muted"), linewidth=1.2, linestyle=":", zorder=3)
    for (rung, _), (x, y) in zip(found, at, strict=True):
        colour = plot.stand_in(plot.cause(rung.regime))
        axes.plot([x], [y], "o", ms=8, color=colour, mec=plot.stand_in("paper"), zorder=4)
        for timed in rung.times[1:]:
            axes.plot([x], [timed.rate], "o", ms=8, mfc="none", mec=colour, mew=1.6, zorder=4)
    for place, (x, y), names in _labels(found, at):
        axes.annotate(
            names, (x, y), xytext=place, textcoords="offset points", fontsize=9.5, va="center",
            color=plot.stand_in("ink"), zorder=5,
        )  # fmt: skip
    all_threads = [t for r, _ in found for t in r.times if t.threads > 1]
    if all_threads:
        top = max(t.ceiling for t in all_threads)
        axes.plot([1, 64], [top, top], color=plot.stand_in("ink"), linewidth=1.2, linestyle="--", zorder=2)
        axes.annotate(
            f"float32 at {all_threads[0].threads} threads {quantity.gflops(top)}", (64, top), xytext=(-4, 3),
            textcoords="offset points", ha="right", va="bottom", fontsize=9.5, color=plot.stand_in("ink"),
        )  # fmt: skip
    axes.set_xlabel("flop per byte moved between L1 and the registers", color=plot.stand_in("muted"))
    axes.set_ylabel("GFLOP/s", color=plot.stand_in("muted"))
    axes.xaxis.set_major_formatter(lambda x, _: f"1/{round(1 / x)}" if x < 1 else f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.grid(which="major", color=plot.stand_in("line"), linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    return plot.svg_text(figure, f"The climb of {record.ladder} on the roofline")


Point = tuple[float, float]


def _labels(found: Sequence[tuple[RungResult, RungTime]], at: Sequence[Point]) -> list[tuple[Point, Point, str]]:
    """(offset, point, text): rungs whose dots lie on each other share one label."""
    groups: list[tuple[Point, list[str]]] = []
    for (rung, _), point in zip(found, at, strict=True):
        name = f"{rung.number} {rung.title}"
        near = next((g for g in groups if g[0][0] == point[0] and 0.8 < g[0][1] / point[1] < 1.25), None)
        if near is not None:
            near[1].append(name)
        else:
            groups.append((point, [name]))
    return [
        ((10.0, -4.0), point, ", ".join(names)) if len(names) < 3
        else ((10.0, -4.0 - 6.0 * (len(names) - 1)), point, "\n".join(names))
        for point, names in groups
    ]  # fmt: skip


def _rows(rungs: Sequence[RungResult], unit: str) -> str:
    names = list(dict.fromkeys(name for r in rungs for t in r.times for name in t.peers))
    titles = ("rung", "threads", unit, "of the ceiling", *(f"over {n}" for n in names), "predicted", "got")
    head = "".join(f'<th scope="col"{"" if not i else " class=number"}>{escape(t)}</th>' for i, t in enumerate(titles))
    body = []
    for rung in rungs:
        if not rung.times:
            why = f'<span class="bad">{escape(rung.status)}</span> {escape(rung.reason)}'
            body.append(f"<tr><td>{rung.number} {escape(rung.title)}</td><td colspan={len(titles) - 2}>{why}</td></tr>")
        for index, t in enumerate(rung.times):
            last = index == len(rung.times) - 1
            cells = [str(t.threads), quantity.figures(t.rate), _meter(t, rung.regime)]
            cells += [quantity.ratio(t.rate / t.peers[n]) if n in t.peers else "-" for n in names]
            cells += [quantity.ratio(rung.predicted), quantity.ratio(rung.gain)] if last else ["", ""]
            name = f'<a href="#rung-{rung.number}">{rung.number} {escape(rung.title)}</a>' if not index else ""
            body.append(f"<tr><td>{name}</td>" + "".join(f'<td class="number">{c}</td>' for c in cells) + "</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _meter(timed: RungTime, regime: str) -> str:
    share = timed.rate / timed.ceiling
    bar = f'<span style="width:{100 * min(1.0, share):.0f}%;background:var(--{plot.cause(regime)})"></span>'
    return f'{quantity.percent(share)}<div class="meter">{bar}</div>'


def _code(lines: Sequence[tuple[str, bool]]) -> str:
    shown = (f'<span class="changed">{escape(t)}</span>' if mark else escape(t) for t, mark in lines)
    return f"<pre><code>{chr(10).join(shown)}</code></pre>"


def _rung(rung: RungResult, lines: Sequence[tuple[str, bool]], unit: str) -> str:
    parts = [f'<section class="rung" id="rung-{rung.number}"><h2>{rung.number}. {escape(rung.title)}</h2>']
    parts.append(f"<p><b>Hypothesis.</b> {escape(rung.hypothesis)}</p>")
    if rung.predicted is not None:
        parts.append(f"<p><b>Predicted</b> {quantity.ratio(rung.predicted)} the rate of the rung before.</p>")
    parts.append(f"<p><b>Outcome.</b> {escape(text.outcome(rung, unit).replace('**', ''))}</p>")
    if rung.times:
        parts.append(f"<p><b>Evidence.</b> {escape(text.waits(rung))}</p>")
    parts.append(
        f"<details{' open' if len(lines) < 60 else ''}><summary>{escape(rung.file)}, what changed marked</summary>"
    )
    parts.append(f"{_code(lines)}</details>")
    if rung.assembly:
        parts.append(f"<details><summary>the inner loop, {len(rung.assembly)} instructions</summary>")
        parts.append(f"<pre><code>{escape(chr(10).join(rung.assembly))}</code></pre></details>")
    parts.append(f"<p><b>What it waits on next.</b> {escape(rung.next)}</p></section>")
    return "\n".join(parts)


def page(record: Climb, sources: Mapping[str, str]) -> str:
    """One self-contained page; ``sources`` is the code of each rung's file without its header."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    picture = roofline(record)
    notes = "".join(f"<li>{escape(note)}</li>" for note in record.notes)
    return document(
        f"{record.ladder} - kernelworks climb",
        (
            STYLE,
            f"<h1>{escape(text.heading(record))}</h1>",
            *(f'<p class="sentence">{escape(sentence)}</p>' for sentence in text.totals(record)[-1:]),
            *(f'<p class="note">{escape(sentence)}</p>' for sentence in text.totals(record)[:-1]),
            context_line((text.machine(record), versions, record.date)),
            "<h2>The climb</h2>",
            '<p class="note">Dots: one thread; rings: all threads. The dotted line joins the rungs in order. To the '
            "right: more work for each byte that is loaded from L1; upwards: faster.</p>",
            f'<div class="picture" id="climb">{picture}</div>' if picture else "",
            "<h2>Rung by rung</h2>",
            _rows(record.rungs, record.unit),
            *(_rung(rung, lines, record.unit) for rung, lines in text.rungs(record, sources)),
            f'<h2>Notes</h2><ul class="plain">{notes}</ul>' if notes else "",
        ),
    )
