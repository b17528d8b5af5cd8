"""Two records side by side: what was judged first, then where the difference lies."""

from __future__ import annotations

import re

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records.compare import AMBIGUOUS, SLOWER, ComparedFigure, Comparison
from kernelworks.report import quantity
from kernelworks.report.table import Table

__all__ = ["comparison", "markdown", "sentence"]

MOST_PARTS = 12
NO_VERDICT = "no verdict (rough)"


def comparison(found: Comparison) -> RenderableType:
    """What ``kernelworks compare`` prints."""
    first, second = (_head(head) for head in found.heads)
    lines: list[RenderableType] = [Text(f"A  {first}"), Text(f"B  {second}")]
    lines += [Text(line, style="yellow") for line in found.remarks]
    judged, moved = _judged_and_moved(found)
    lines += [Text(), _table(judged)]
    if moved:
        lines += [Text(), Text("where it lies", style="bold"), _table(moved)]
    for name, only in zip("AB", found.only, strict=True):
        if only:
            lines.append(Text(f"only in {name}: {', '.join(only[:6])}{_more(len(only) - 6)}", style="dim"))
    return Group(*lines, Text(), Text(sentence(found), style="bold"))


def markdown(found: Comparison) -> str:
    """The same for a job's summary or a comment: the verdict first, then the tables. Names are code, so that nothing in
    them is read as markup."""
    judged, moved = _judged_and_moved(found)
    lines = [f"### kernelworks compare: {_cell(sentence(found))}", ""]
    lines += [f"- {name}: {_code(_head(head))}" for name, head in zip("AB", found.heads, strict=True)]
    lines += [f"- **{_cell(line)}**" for line in found.remarks]
    lines += ["", *_rows(judged)]
    if moved:
        lines += ["", "<details><summary>where it lies</summary>", "", *_rows(moved), "", "</details>"]
    for name, only in zip("AB", found.only, strict=True):
        if only:
            lines += ["", f"only in {name}: {', '.join(_code(one) for one in only[:6])}{_more(len(only) - 6)}"]
    return "\n".join(lines)


def _rows(items: list[ComparedFigure]) -> list[str]:
    lines = ["| | A | B | change | noise | |", "|---|---:|---:|---:|---:|---|"]
    for item in items:
        cells = (_value(item.before, item.unit), _value(item.after, item.unit), *_change(item), _word(item)[0])
        lines.append(f"| {_code(item.name)} | {' | '.join(cells)} |")
    return lines


def _code(text: str) -> str:
    """A span of code in a table's cell: no line ends, no backquotes and no bar that would end it."""
    return f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', '¦') or '-'}`"


def _cell(text: str) -> str:
    """Plain words: what markdown and HTML would read as markup is escaped."""
    return re.sub(r"([\\`*_\[\]<>|#~&!])", r"\\\1", " ".join(text.split()))


def _judged_and_moved(found: Comparison) -> tuple[list[ComparedFigure], list[ComparedFigure]]:
    """What is judged, and the parts that changed most."""
    parts = sorted((c for c in found.compared if not c.judged), key=lambda c: -abs(c.after - c.before))
    return [c for c in found.compared if c.judged], [c for c in parts if c.exceeds_noise][:MOST_PARTS]


def _change(item: ComparedFigure) -> tuple[str, str]:
    if not item.is_change_known:
        return "appeared" if item.exceeds_noise and item.after > item.before else "-", _value(item.noise, item.unit)
    return f"{100 * item.change:+.1f}%" if item.after else "gone", f"{100 * item.noise / item.before:.1f}%"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _head(head: dict[str, object]) -> str:
    words = (head.get("file"), head.get("program"), head.get("machine"), head.get("date"), head.get("commit"))
    return " · ".join(str(word) for word in words if word)


def _value(value: float, unit: str) -> str:
    return quantity.seconds(value) if unit == "s" else f"{quantity.figures(value)} {unit}"


def _table(items: list[ComparedFigure]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", overflow="fold", min_width=20)
    for name in ("A", "B", "change", "noise"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold", min_width=10)
    for item in items:
        word, style = _word(item)
        values = (_value(item.before, item.unit), _value(item.after, item.unit))
        table.add_row(item.name, *values, *_change(item), Text(word, style=style))
    return table


def _word(item: ComparedFigure) -> tuple[str, str]:
    if item.rough:
        return NO_VERDICT, "yellow"
    if not item.exceeds_noise:
        return "same within the noise", "dim"
    return ("slower", "red") if item.after > item.before else ("faster", "green")


def sentence(found: Comparison) -> str:
    """What came of it, in one line."""
    judged = [c for c in found.compared if c.judged]
    slower, faster = found.slower(), [c for c in judged if c.exceeds_noise and not c.rough and c.change < 0]
    said = f"{len(judged)} {'figure' if len(judged) == 1 else 'figures'}: {len(slower)} slower, {len(faster)} faster"
    rough = sum(c.rough for c in judged)
    if rough:
        said += f", {rough} without a verdict (rough)"
    if found.limit is None:
        return said
    asked = f"slower by more than {100 * found.limit:g}%"
    if found.verdict == SLOWER:
        names = ", ".join(f"{c.name} ({100 * c.change:+.1f}%)" for c in found.slower(found.limit))
        return f"{said}; {asked}: {names}"
    if found.verdict == AMBIGUOUS:
        unclear = ", ".join(f"{c.name} ({100 * c.change:+.1f}%)" for c in found.unclear(found.limit))
        why = f"{unclear}, within the noise or rough" if unclear else "the two cannot be held against each other"
        return f"{said}; no verdict on what is {asked}: {why}"
    return f"{said}; nothing is {asked}"
