"""The page of a climb: the climb on the roofline, prediction beside outcome, every rung's code with what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from kernelworks.records.climb import Climb, RungResult, RungTime
from kernelworks.report import plot, quantity
from kernelworks.report.climb import evidence, words
from kernelworks.report.climb import plot as climb_plot
from kernelworks.report.climb.code import Line, rewritten, rungs
from kernelworks.report.climb.worklog import glossary, reading
from kernelworks.report.document import context_line, document, figure_both

__all__ = ["page"]

STYLE = f"<style>\n{(Path(__file__).parent / 'page.css').read_text(encoding='utf-8')}</style>"
PRE = '<pre tabindex="0">'  # of code, which may be wider than the page: keys scroll it
MIN_FOLDED_LINES = 10  # unchanged lines in a row from which on they are folded away
CONTEXT_LINES = 3  # of them that stay in sight beside a change


# ---------------------------------------------------------------- tables


def _grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of HTML cells; every column after the first holds numbers."""
    head = "".join(f'<th scope="col"{" class=number" if i else ""}>{escape(t)}</th>' for i, t in enumerate(titles))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{" class=number" if i else ""} data-label="{escape(titles[i]) if i else ""}"><div>{cell}</div></td>'
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _words(table: str) -> str:
    """The same with words in its last column."""
    return table.replace("<table>", '<table class="said">')


def _climbed(record: Climb) -> str:
    """All rungs at all thread counts and sizes."""
    unit, names = words.unit_of(record), words.baseline_names(record.rungs)
    titles = ["rung", unit.name, "spread", "of the peak", *(f"of {n}" for n in names)]
    titles += ["predicted", "got", "bound by"]
    rows = []
    for rung in record.rungs:
        name = f'<a href="#rung-{rung.number}">{rung.number} {escape(rung.title)}</a>'
        if not rung.times:
            why = f'<div class="small"><span class="bad">{escape(rung.status)}</span> {escape(rung.reason)}</div>'
            rows.append([name + why, *[""] * (len(titles) - 1)])
        for index, t in enumerate(rung.times):
            is_judged = t is words.judged_time(rung)
            at = [words.thread_suffix(t.threads).removeprefix(" at ")]
            at += [words.sizes(t.size)] if t in words.times_at_further_sizes(rung) else []
            few = "" if t in words.times_at_further_sizes(rung) else words.timed_part(record, t)
            at += [f"timed on {few}"] if few else []
            small = f'<div class="small">{escape(", ".join(filter(None, at)))}</div>' if any(at) else ""
            got = f"<b>{quantity.ratio(rung.gain)}</b>" if rung.gain else "-"
            colour = climb_plot.COLOURS.get(words.verdict(rung), "muted")
            ends = [quantity.ratio(rung.predicted), f'<span style="color:var(--{colour})">{got}</span>']
            rows.append([
                ("" if index else name) + small, words.rate(record, t), _spread(t), _meter(t, rung.bottleneck),
                *(words.share_of_baseline(t, n) for n in names), *(ends if is_judged else ("", "")),
                escape(words.bottleneck_name(rung)) if is_judged else "",
            ])  # fmt: skip
    return _grid(titles, rows).replace("<table>", '<table class="said">')


def _spread(timed: RungTime) -> str:
    text = words.spread(timed)
    return f'<b style="color:var(--bad)">{text}</b>' if words.is_imprecise(timed) else text


def _meter(timed: RungTime, bottleneck: str) -> str:
    share = timed.rate / timed.peak
    bar = f'<span style="width:{100 * min(1.0, share):.0f}%;background:var(--{plot.cause(bottleneck)})"></span>'
    return f'{quantity.percent(share)}<div class="meter">{bar}</div>'


# ---------------------------------------------------------------- code


def _line(line: Line) -> str:
    """Without the line break: each is a block of its own. What is gone is struck through from its first letter on."""
    kind = {"+": "come", "-": "gone"}.get(line.mark, "")
    body = line.text.lstrip()
    indent = line.text[: len(line.text) - len(body)]
    text = indent + (f"<s>{escape(body)}</s>" if kind == "gone" else escape(body))
    return f'<span class="{f"line {kind}" if kind else "plain"}">{text or " "}</span>'


def _code(rung: RungResult, lines: Sequence[Line]) -> str:
    """The whole rung, what is new marked, what is gone struck through, long runs of what stayed folded away."""
    come, gone = (sum(line.mark == mark for line in lines) for mark in "+-")
    if not come and not gone:
        body = "".join(_line(line) for line in lines)
        return f"<details open><summary>{escape(rung.file)}</summary>{PRE}<code>{body}</code></pre></details>"
    shown = "" if rewritten(lines) else " checked"
    said = f"{escape(rung.file)}: {come} line{'s' if come != 1 else ''} new, {gone} gone"
    switch = f'<label><input type="checkbox" class="show-gone"{shown}> show what is gone</label>'
    return (
        f'<div class="code">{switch if gone else ""}<details open><summary>{said}</summary>'
        f"{PRE}<code>{_folded(lines)}</code></pre></details></div>"
    )


def _folded(lines: Sequence[Line]) -> str:
    parts, run = list[str](), list[Line]()

    def close(first: bool, last: bool) -> None:
        head, tail = 0 if first else CONTEXT_LINES, 0 if last else CONTEXT_LINES
        hidden = run[head : len(run) - tail]
        if len(hidden) < MIN_FOLDED_LINES:
            parts.extend(map(_line, run))
        else:
            parts.extend(map(_line, run[:head]))
            inside = "".join(map(_line, hidden))
            parts.append(f"<details><summary>{len(hidden)} lines as before</summary>{inside}</details>")
            parts.extend(map(_line, run[len(run) - tail :]))
        run.clear()

    for line in lines:
        if line.mark == " ":
            run.append(line)
        else:
            close(not parts, False)
            parts.append(_line(line))
    close(not parts, True)
    return "".join(parts)


# ---------------------------------------------------------------- one rung


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="plain">{items}</ul>' if items else ""


def _evidence(record: Climb, rung: RungResult) -> str:
    """What the machine says of the rung: the peaks, a block's share of a multiprocessor, counters, instructions."""
    parts = [
        f"<p><b>Evidence.</b> {escape(words.bottleneck_sentence(rung))} {escape(words.verification_sentence(rung))}</p>"
    ]
    costs = (evidence.resources(rung), evidence.operands(rung.resources))
    parts += [f"<p>{escape(text)}</p>" for text in costs if text]
    counted = [(escape(name), escape(text)) for name, text in evidence.counters(record, rung)]
    if counted:
        parts.append(f"<h3>The processor's own counters, of one call</h3>{_words(_grid(('what', 'counted'), counted))}")
    if rung.instructions:
        listed = evidence.instructions(rung)
        rows = [(f"<code>{escape(name)}</code>", str(count), escape(text)) for name, count, text in listed]
        table = _words(_grid(("instruction", "in the loop", "what it does"), rows))
        parts.append(f"<details><summary>the hot loop: {escape(evidence.loop(rung))}</summary>{table}</details>")
    if rung.assembly:
        said = "every instruction of it" if rung.instructions else f"the inner loop, {evidence.loop(rung)}"
        body = f'{PRE}<code class="plain">{"&#10;".join(map(escape, rung.assembly))}</code></pre>'
        parts.append(f"<details><summary>{escape(said)}</summary>{body}</details>")
    return "".join(parts)


def _rung(record: Climb, rung: RungResult, lines: Sequence[Line]) -> str:
    tag, colour = words.verdict(rung), climb_plot.COLOURS.get(words.verdict(rung), "muted")
    if rung.status != "verified":
        tag, colour = rung.status, "bad"
    badge = f'<span class="tag" style="color:var(--{colour})">{escape(tag)}</span>' if tag else ""
    parts = [
        f'<section class="rung" id="rung-{rung.number}"><h2>{rung.number}. {escape(rung.title)}{badge}</h2>',
        f"<p><b>Hypothesis.</b> {escape(rung.hypothesis)}</p>",
    ]
    if rung.predicted is not None:
        parts.append(f"<p><b>Predicted</b> {quantity.ratio(rung.predicted)} the rate of the rung before.</p>")
    parts.append(_code(rung, lines))
    parts.append(f"<p><b>Outcome.</b> {escape(words.outcome(record, rung))}</p>")
    few = words.timed_part(record, rung.times[0]) if rung.times else ""
    if few:
        parts.append(f"<p>Timed on a part, {escape(few)}: every row of the output takes the same work.</p>")
    if rung.times:
        parts.append(_evidence(record, rung))
    return "".join([*parts, f"<p><b>What bounds it next.</b> {escape(rung.next)}</p></section>"])


# ---------------------------------------------------------------- the page


def _picture(title: str, note: str, name: str, svg: str, key: str = "") -> str:
    if not svg:
        return ""
    text = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<h2>{escape(title)}</h2>{text}<div class="picture" id="{name}">{svg}</div>{key}'


def _key() -> str:
    items = "".join(
        f'<li><span class="key" style="background:var(--{colour})"></span>{text}</li>'
        for text, colour in climb_plot.COLOURS.items()
    )
    return f'<ul class="steps">{items}<li>Diamond: predicted, from what the rung before did in the same race</li></ul>'


def _how(record: Climb) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in reading(record))
    rows = [(f"<code>{escape(name)}</code>", escape(text)) for name, text in glossary(record)]
    table = _words(_grid(("instruction", "what it does"), rows)) if rows else ""
    return f"<details><summary>how to read this</summary><dl>{items}</dl>{table}</details>"


def page(record: Climb, sources: Mapping[str, str]) -> str:
    """One self-contained page; ``sources`` is the code of each rung's file without its header."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    headline, *more = words.totals(record)
    lessons = f"The library's own rows use what the last rung does: {record.lessons}." if record.lessons else ""
    return document(
        f"{record.ladder} - kernelworks climb",
        (
            STYLE,
            f"<h1>{escape(words.heading(record))}</h1>",
            f'<p class="sentence">{escape(headline)}</p>',
            _list(more),
            context_line((words.machine(record), versions, record.date[:10])),
            f'<p class="note" style="margin-top:14px">{escape(words.limit(record))}</p>',
            _how(record),
            _picture(
                "The climb on the roofline",
                climb_plot.caption(record),
                "climb",
                figure_both(lambda width: climb_plot.roofline(record, width)),
            ),
            _picture(
                "Predicted and got",
                words.predictions(record),
                "stairs",
                figure_both(lambda width: climb_plot.stairs(record, width)),
                _key(),
            ),
            "<h2>Rung by rung</h2>",
            _climbed(record),
            *(_rung(record, rung, lines) for rung, lines in rungs(record, sources)),
            f"<h2>Where the ideas went</h2><p>{escape(lessons)}</p>" if lessons else "",
            f"<h2>Notes</h2>{_list(record.notes)}" if record.notes else "",
        ),
    )
