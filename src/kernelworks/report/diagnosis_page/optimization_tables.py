"""The optimizations of a fix: applied and rejected ones, those that were not tried, and how to keep the gain."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED, Fix, TriedOptimization
from kernelworks.report import quantity
from kernelworks.report.document import copied_code, text_list
from kernelworks.report.fix import cost_text, error_text, error_verdict, is_candidate, reason_text, verdict_text

__all__ = ["optimization_tables"]

COLUMNS = ("Optimization", "Predicted", "Got", "Cost", "Error", "Why")
SAID_WHEN_EMPTY = "No optimization was applied or rejected."


def optimization_tables(fix: Fix) -> str:
    advice = [one for one in fix.optimizations if one.advice]
    real = [one for one in fix.optimizations if is_candidate(one)]
    tried = [one for outcome in (APPLIED, REJECTED) for one in real if one.outcome == outcome]
    untried = [one for one in real if one.outcome == NOT_TRIED]
    parts = [
        '<section id="fix"><h2>Optimizations</h2>\n',
        _outputs(fix),
        _table(tried) if tried else f'<p class="note">{SAID_WHEN_EMPTY}</p>\n',
        _folded(f"{len(untried)} not tried", _table(untried)) if untried else "",
        text_list("What only the author can do", [f"{one.optimization}: {one.advice}" for one in advice], "h3"),
        f"<h3>To keep it:</h3>\n{copied_code(fix.code, 'code that keeps the gain')}\n" if _is_kept(fix) else "",
        _notes(fix),
        "</section>",
    ]
    return "".join(parts)


def _is_kept(fix: Fix) -> bool:
    return bool(fix.code and fix.rounds and not fix.refused)


def _outputs(fix: Fix) -> str:
    """What was verified of the outputs."""
    if not fix.rounds:
        return ""
    if not fix.against:
        return '<p class="note"><span class="bad">Outputs were not compared: not verified.</span></p>\n'
    if not fix.error_before and not fix.error_after:
        return f'<p class="note">Outputs as before (compared with {escape(fix.against)}).</p>\n'
    kind = "good" if fix.agrees else "bad"
    verdict = f'<span class="{kind}">{escape(error_verdict(fix))}</span>'
    errors = f"{fix.error_before:.1e} before, {fix.error_after:.1e} after"
    return f'<p class="note">Relative error of the outputs against {escape(fix.against)}: {errors}: {verdict}.</p>\n'


def _table(some: Sequence[TriedOptimization]) -> str:
    head = "".join(f'<th scope="col"{_number(i)}>{name}</th>' for i, name in enumerate(COLUMNS))
    rows = "".join(_row(one) for one in some)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n'


def _number(index: int) -> str:
    return ' class="number"' if 1 <= index <= 4 else ""


def _row(one: TriedOptimization) -> str:
    says = f": {escape(one.says)}" if one.says else ""
    place = f'<div class="small">{escape(one.place)}</div>' if one.place else ""
    kind = "good" if one.applied else "bad" if one.outcome == REJECTED else "small"
    what = f'<b>{escape(one.optimization)}</b>{says}{place}<div class="{kind}">{escape(verdict_text(one))}</div>'
    cells = (
        what,
        _time(one.predicted_gain_s),
        _time(one.gain_s),
        cost_text(one),
        error_text(one),
        escape(reason_text(one)),
    )
    return (
        "<tr>"
        + "".join(
            f'<td{_number(i)} data-label="{name.lower() if i else ""}"><div>{cell}</div></td>'
            for i, (name, cell) in enumerate(zip(COLUMNS, cells, strict=True))
        )
        + "</tr>"
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else quantity.seconds(seconds)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{inside}</details>\n"


def _notes(fix: Fix) -> str:
    """What was replaced and what was left, folded: it is long."""
    lists = (("Replaced", fix.replaced), ("Left as it was", fix.left), ("Notes", fix.notes))
    said = [f"{title.lower()}: {len(lines)}" for title, lines in lists if lines]
    inside = "".join(text_list(title, lines, "h3") for title, lines in lists)
    return _folded(", ".join(said), f'<div class="columns">{inside}</div>') if said else ""
