"""A search as its reader sees it: what was found, who brought it, how it climbed to the roof, and the tree of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from kernelworks.records import Hotspot
from kernelworks.records.search import BETTER, Search, TriedCandidate
from kernelworks.report import plot, quantity
from kernelworks.report.document import context_line, figure_both
from kernelworks.report.judge import judgement
from kernelworks.report.markup import html
from kernelworks.report.optional_pictures import optional_picture
from kernelworks.report.table import Table

__all__ = ["parts", "search", "sentence"]

STYLES = {"right": "green", "refused": "red", "unsound": "yellow", "undecided": "yellow", "": "dim"}
COLOURS = ("series1", "series2", "series3", "series4", "accent", "good", "muted")
STOPS = {
    "budget": "its time was over", "count": "as many were judged as were asked for", "interrupted": "interrupted",
    "nothing left": "nobody had more to offer", "no verdict": "the problem allows no verdict", "": "not run",
}  # fmt: skip
MOST_TREE = 120  # candidates of the tree that are drawn
MOST_ROWS = 10


def sentence(found: Search) -> str:
    """What came of it, in a line."""
    if found.outcome == "no verdict":
        return f"{found.problem}: no verdict can be given: {found.why}"
    if not found.judged:
        return f"{found.problem}: nothing was judged: {STOPS[found.stopped]}"
    if found.best is None:
        return f"{found.problem}: none of {found.judged} candidates is right"
    speed = _speed(found)
    again = "" if found.best.again is not None else ", judged once"
    quick = f"{speed} over {found.over}{again}"
    whose = f"{found.best.tried.proposer} #{found.best.tried.number}"
    if found.outcome == BETTER:
        was = "" if found.begun_with is None else f"; it began with {quantity.ratio(found.begun_with)}"
        return f"{found.problem}: {quick} ({whose}){was}"
    return f"{found.problem}: nothing better than what it began with; the best is {quick} ({whose})"


def _speed(found: Search) -> str:
    """Of the best, as it was judged last."""
    assert found.best is not None
    last = found.best.again or found.best.first
    its = next((s for s in last.speeds if s.over == found.over), None)
    if its is None:
        return "not timed"
    return f"{quantity.ratio(its.ratio)} ({its.low:.2f} to {its.high:.2f}{', ambiguous' if its.ambiguous else ''})"


# ---------------------------------------------------------------- on a terminal


def search(found: Search) -> RenderableType:
    """What ``kernelworks search`` prints."""
    style = "green" if found.outcome == BETTER else "yellow"
    lines: list[RenderableType] = [Text(sentence(found), style=f"bold {style}"), Text(), _facts(found)]
    if found.by_proposer:
        lines += [Text(), _proposers(found)]
    if found.candidates:
        lines += [Text(), _quickest(found)]
    return Group(*lines)


def _facts(found: Search) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    verdicts = [one.verdict for one in found.candidates if one.verdict]
    counted = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    waiting = len(found.candidates) - len(verdicts)
    rows = (
        ("judged", f"{found.judged} ({counted}), {found.judged_now} of them now" if verdicts else "none"),
        ("not judged yet", str(waiting) if waiting else ""),
        ("ended since", STOPS[found.stopped]),
        ("a candidate costs", _cost(found)),
        ("least time", "" if not found.limit_s else f"{quantity.seconds(found.limit_s)}: {found.peak}"),
        ("share of it", _share(found)),
        ("kept", _keep_result(found)),
        ("took", quantity.seconds(found.seconds)),
        ("kept in", found.store),
    )
    for name, value in rows:
        if value:
            table.add_row(name, value)
    return table


def _cost(found: Search) -> str:
    """Of judging: what a worker spends on a candidate, and the search where several work beside each other."""
    if found.cost_s is None:
        return ""
    said = f"{quantity.seconds(found.cost_s)}, its build included"
    if found.workers == 1 or found.each_s is None:
        return said
    lost = f"; {found.lost} worker{'s' if found.lost > 1 else ''} lost, and no verdict" if found.lost else ""
    return f"{said}; {quantity.seconds(found.each_s)} of the search, with {found.workers} workers{lost}"


def _keep_result(found: Search) -> str:
    """What came of putting the best into its op package."""
    kept = found.kept
    if kept is None:
        return ""
    beside = ", ".join(f"{quantity.ratio(one.ratio)} ({one.case})" for one in kept.sizes)
    if kept.why:
        return f"nothing was: {kept.why}"
    verified = (
        f"{kept.verification.cases} cases and {kept.verification.mutants_rejected} mutants"
        if kept.verification
        else "nothing"
    )
    gain = f"{kept.op}.{kept.kernel}: {beside} over the kernel as it was"
    return f"{gain}; verified by {verified}; in {', '.join(kept.files)}"


def _share(found: Search) -> str:
    seconds = found.best.tried.seconds if found.best else None
    return "" if not seconds or not found.limit_s else quantity.percent(found.limit_s / seconds)


def _proposers(found: Search) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("proposer", no_wrap=True)
    for heading in ("judged", "right", "beat their parents", "best", "a candidate"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for one in found.by_proposer:
        each = quantity.seconds(one.cost_s / one.candidates) if one.candidates else "-"
        table.add_row(
            one.proposer, str(one.candidates), str(one.right), str(one.won), quantity.ratio(one.best), each, one.remark
        )
    return table


def _quickest(found: Search) -> Table:
    """The quickest that are right, then those that were refused last."""
    timed = sorted((t for t in found.candidates if t.ratio is not None), key=lambda t: -(t.low or 0.0))
    others = [t for t in found.candidates if t.ratio is None and t.verdict]
    shown = timed[:MOST_ROWS] + others[len(others) - max(0, MOST_ROWS - len(timed)) :]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("#", justify="right")
    table.add_column("by", no_wrap=True)
    table.add_column("from", justify="right")
    table.add_column(f"over {found.over}", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("a call", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    numbers = {one.id: one.number for one in found.candidates}
    for one in shown:
        wide = "" if one.low is None or one.high is None else f"{one.low:.2f} to {one.high:.2f}"
        quick = quantity.ratio(one.ratio) if one.ratio is not None else one.verdict
        said = one.note if one.verdict == "right" else f"{one.note}: {one.why}" if one.note else one.why
        table.add_row(
            str(one.number), one.proposer, ", ".join(f"#{numbers[p]}" for p in one.parents if p in numbers),
            Text(quick, style="bold green" if one.won else STYLES[one.verdict]), wide,
            "-" if one.seconds is None else quantity.seconds(one.seconds), said[:200],
        )  # fmt: skip
    return table


# ---------------------------------------------------------------- the page


def parts(found: Search) -> tuple[str, ...]:
    """What stands on the page."""
    threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    context = (found.format, threads, found.machine, found.date, found.store)
    body = [
        "<h1>kernelworks search</h1>",
        f'<p class="sentence">{escape(sentence(found))}</p>',
        context_line(context),
        html(_facts(found)),
        _climb(found),
        _roofline(found),
        "<h2>Who proposed</h2>" + html(_proposers(found)) if found.by_proposer else "",
        "<h2>The tree</h2>" + _tree(found) if found.candidates else "",
        "<h2>The quickest</h2>" + html(_quickest(found)) if found.candidates else "",
    ]
    if found.best is not None:
        last = found.best.again or found.best.first
        body += [
            f"<h2>The best: {escape(found.best.tried.proposer)} #{found.best.tried.number}</h2>",
            html(judgement(last)),
            f'<div class="scroll"><pre style="padding:10px">{escape(found.best.code)}</pre></div>',
        ]
    return tuple(body)


def _colour(found: Search) -> Mapping[str, str]:
    names = dict.fromkeys(one.proposer for one in found.candidates)
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}


def _leaders(found: Search) -> list[TriedCandidate]:
    """Each candidate that was surely the quickest so far when it was judged: by the lower ends of intervals."""
    held: list[TriedCandidate] = []
    for one in found.candidates:
        if one.low is not None and (not held or one.low > (held[-1].low or 0.0)):
            held.append(one)
    return held


def _climb(found: Search) -> str:
    """Every candidate in the order of judging, and how far the roof is."""
    if not any(one.ratio is not None for one in found.candidates):
        return ""
    return (
        "<h2>The climb</h2>\n"
        f'<p class="note">A dot is a candidate that is right, at how many times as quick as {escape(found.over)} it '
        "is, with its interval; a tick at the foot is one that is not. The line is what was surely the quickest so far "
        "(whose interval begins highest); the roof is what the bytes and the arithmetic take at least on this "
        "machine.</p>\n"
        f'<div class="picture" id="climb">{figure_both(lambda width: _climbed(found, width))}</div>'
    )


@optional_picture
def _climbed(found: Search, width: float) -> str:
    narrow = "-narrow" if width < plot.WIDE_INCHES else ""
    figure, axes = plot.canvas(width, 4.6, f"search-climb{narrow}")
    axes.set_yscale("log", base=2)
    ink, colours = plot.stand_in, _colour(found)
    timed = [t for t in found.candidates if t.ratio is not None and t.low is not None and t.high is not None]
    lowest = min(min(t.ratio or 1.0 for t in timed), 1.0) / 1.25
    for name, colour in colours.items():
        own = [t for t in timed if t.proposer == name]
        for one in own:
            ends = [max(one.low or 0.0, lowest), one.high or 0.0]
            axes.plot([one.number] * 2, ends, color=ink(colour), linewidth=1.2, alpha=0.6, zorder=2)
        axes.scatter(
            [t.number for t in own], [t.ratio or 0.0 for t in own], s=34, color=ink(colour), label=name, zorder=3,
            edgecolors=ink("paper"), linewidths=0.8,
        )  # fmt: skip
    wrong = [t.number for t in found.candidates if t.verdict and t.ratio is None]
    axes.plot(wrong, [lowest] * len(wrong), "|", color=ink("bad"), ms=9, mew=1.6, zorder=3)
    leaders = _leaders(found)
    last = max(t.number for t in found.candidates)
    steps = [(t.number, t.ratio or 0.0) for t in leaders] + [(last, leaders[-1].ratio or 0.0)]
    axes.step([x for x, _ in steps], [y for _, y in steps], where="post", color=ink("ink"), linewidth=1.4, zorder=1)
    roof = _roof(found)
    if roof is not None:
        axes.axhline(roof, color=ink("ink"), linewidth=2.0)
        axes.annotate(
            f"the roof: {found.peak}", (1, roof), xycoords=("axes fraction", "data"), xytext=(-4, 4),
            textcoords="offset points", ha="right", va="bottom", fontsize=9.5, color=ink("ink"),
        )  # fmt: skip
    axes.axhline(1.0, color=ink("muted"), linewidth=1.0, linestyle="--")
    axes.annotate(
        found.over, (1, 1.0), xycoords=("axes fraction", "data"), xytext=(-4, 3), textcoords="offset points",
        ha="right", va="bottom", fontsize=9.5, color=ink("muted"),
    )  # fmt: skip
    highest = max([t.high or 1.0 for t in timed] + ([roof] if roof else []) + [1.0])
    axes.set_ylim(lowest / 1.08, highest * 1.35)
    axes.set_xlim(0.4, last + 0.6)
    axes.yaxis.set_major_formatter(lambda y, _: f"{quantity.figures(y, 2)}x")
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("candidate, in the order of judging", color=ink("muted"))
    axes.set_ylabel(f"times as quick as {found.over}", color=ink("muted"))
    if len(colours) > 1:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncol=3 if narrow else 8, frameon=False, labelcolor=ink("ink"),
            fontsize=9.5, borderpad=0, handletextpad=0.2,
        )  # fmt: skip
    return plot.svg_text(figure, "Candidates in the order of judging, and the roof")


def _roof(found: Search) -> float | None:
    """The least time as a ratio over the baseline, whose time is that of the best times its ratio."""
    if found.best is None or not found.limit_s:
        return None
    one = found.best.tried
    return None if one.ratio is None or one.seconds is None else one.ratio * one.seconds / found.limit_s


def _roofline(found: Search) -> str:
    """Those that led, on the machine's roofline: one below the other, since all have the same work."""
    peaks = found.peaks
    if peaks is None or not found.flop or not found.bytes:
        return ""
    dots = [_hotspot(found, one) for one in _leaders(found) if one.seconds]
    picture = figure_both(lambda width: plot.roofline(peaks, found.threads, dots, width))
    if not picture or not dots:
        return ""
    return (
        "<h2>The roofline</h2>\n"
        '<p class="note">Candidates that were the quickest when they were judged. All have the same work, so they '
        "climb straight up: to the slope of the memory that the bytes come from, or the roof of the arithmetic.</p>\n"
        f'<div class="picture" id="roofline">{picture}</div>'
    )


def _hotspot(found: Search, one: TriedCandidate) -> Hotspot:
    seconds = one.seconds or 0.0
    achieved = found.limit_s / seconds if found.limit_s and seconds else None
    return Hotspot(
        op=f"#{one.number}", module=one.proposer, source=one.note, shapes="", calls=1, seconds=seconds, share=1.0,
        bottleneck=found.best.first.bound_by if found.best else "", peak=found.peak, achieved=achieved,
        low_s=0.0, high_s=0.0, action="", flop=found.flop, bytes=found.bytes, modelled=True,
    )  # fmt: skip


def _tree(found: Search) -> str:
    """Who came from whom. Of many: what won, what led, and the way to them."""
    by_id = {one.id: one for one in found.candidates}
    shown = set(by_id)
    if len(by_id) > MOST_TREE:
        wanted = [*_leaders(found), *sorted((t for t in by_id.values() if t.won), key=lambda t: -(t.ratio or 0.0))]
        shown = set()
        for one in wanted:
            way = _way(one, by_id)
            if len(shown | way) <= MOST_TREE:
                shown |= way
    children: dict[str, list[TriedCandidate]] = {}
    for one in found.candidates:
        parent = next((p for p in one.parents if p in by_id), "")
        children.setdefault(parent, []).append(one)
    best = found.best.tried.id if found.best else ""
    root = Tree("")
    _grow(root, "", children, shown, best)
    return f'<div class="tree">{html(root)}</div>'


def _way(one: TriedCandidate, by_id: Mapping[str, TriedCandidate]) -> set[str]:
    """A candidate and its first parents, up to where they began."""
    found = {one.id}
    while True:
        parent = next((p for p in one.parents if p in by_id and p not in found), None)
        if parent is None:
            return found
        found.add(parent)
        one = by_id[parent]


def _grow(root: Tree, top: str, children: Mapping[str, Sequence[TriedCandidate]], shown: set[str], best: str) -> None:
    pending = [(root, top)]
    while pending:
        tree, parent = pending.pop()
        hidden = [one for one in children.get(parent, ()) if one.id not in shown]
        for one in children.get(parent, ()):
            if one.id in shown:
                pending.append((tree.add(_leaf(one, best)), one.id))
        if hidden:
            right = sum(one.verdict == "right" for one in hidden)
            tree.add(Text(f"and {len(hidden)} more, {right} right", style="dim"))


def _leaf(one: TriedCandidate, best: str) -> Text:
    text = Text(f"#{one.number} {one.proposer} ")
    if one.ratio is not None:
        text.append(f"{quantity.ratio(one.ratio)} ", style="bold green" if one.won else "green")
    else:
        text.append(f"{one.verdict or 'not judged'} ", style=STYLES[one.verdict])
    if one.id == best:
        text.append("the best ", style="bold")
    said = one.note if one.verdict in ("right", "") else one.why
    text.append(said[:160], style="dim")
    return text
