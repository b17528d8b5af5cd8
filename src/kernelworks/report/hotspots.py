"""The hotspots of a diagnosis on a terminal: their time, what bounds them, what is recoverable, and what to do."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import starmap

from rich.cells import cell_len
from rich.text import Text

from kernelworks.records import Diagnosis, Hotspot
from kernelworks.records.peak_share import own_s
from kernelworks.records.wall_clocks import CONTENTION
from kernelworks.report import quantity
from kernelworks.report.terminal import style_of
from kernelworks.report.text_lines import (
    cells,
    fold_items,
    last_parts,
    paragraph,
    section,
    shared_reasons,
    without_reason,
)

__all__ = [
    "OWN_TIME",
    "NOTABLE_CONTENTION",
    "bound_by",
    "hotspots",
    "limit_s",
    "next_action",
    "op_label",
    "own_share",
    "predicted_s",
    "recoverable",
    "share_heading",
    "sort_worst_first",
]

SHOWN_COUNT = 5  # the JSON and the page hold every hotspot
MIN_GAIN_SHARE = 0.02  # of the wall clock: a smaller predicted gain does not put a hotspot before others
MIN_SHOWN_SHARE = 0.001  # of the wall clock: what takes less has no line of its own
EXPLAINED_SHARE = 0.6  # of the time that is left for its work: then the peak bounds it (measure/roofline/bound.py)
SECOND_CAUSE_SHARE = 0.15  # of a hotspot's time: from here on its second cause is named too
WIDE_COLUMNS = 108  # from so many columns on a hotspot's figures stand behind its name, else below it
MOST_COLUMNS = 140
TIME, SHARE, PEAK, RECOVERABLE = -9, -7, -9, -14
MOST_NAME_COLUMNS, CAUSE_COLUMNS = 50, 36
CAUSE_UNKNOWN = "cause unknown"
UNKNOWN = "-"  # without measured peaks: what is said of those once on top is not said of each hotspot
NOTABLE_CONTENTION = 0.05  # of the wall clock: from here on shares are of the rest
BACKWARD = " (backward)"
OF_WALL, OF_OWN = "of wall", "of own"
OWN_TIME = "of own: the share of the program's own time, the wall clock without CPU contention"
AT_THE_ROOFLINE = "at the roofline"
LIMIT = "<="
LIMIT_ALONE = "<=: what the roofline leaves at the most; no optimization is predicted to recover it"

# A part of the time breakdown -> what bounds a hotspot whose time it is; "" where that is what bounds its work.
CAUSES = {
    "at peak": "",
    "above the memory roofline": "",
    "above the compute roofline": "",
    "traffic that fusion would remove": "",
    "allocation (page faults)": "page faults",
    "allocation (cudaMalloc)": "cudaMalloc",
    "Python overhead (host)": "Python",
    "Python and framework (host)": "Python, framework",
    "Python and framework, not attributed": "not attributed",
    "native code outside torch": "native code",
    "compiling (torch.compile)": "compiling",
    "input (DataLoader)": "input",
    "in ops": UNKNOWN,
    "unexplained": CAUSE_UNKNOWN,
}


def sort_worst_first(found: tuple[Hotspot, ...]) -> list[Hotspot]:
    """By the recoverable time if that is worth having, then by what the roofline allows, then by the time taken."""

    def worth(hotspot: Hotspot) -> tuple[float, float, float]:
        return -predicted_s(hotspot), -limit_s(hotspot), -hotspot.seconds

    return sorted(found, key=worth)


def predicted_s(hotspot: Hotspot) -> float:
    """The most that is predicted to be recoverable, as it is shown and sorted by; 0 if that is too little to say."""
    return hotspot.high_s if hotspot.high_s * hotspot.share >= MIN_GAIN_SHARE * hotspot.seconds > 0 else 0.0


def limit_s(hotspot: Hotspot) -> float:
    """What would be recoverable at the roofline, by whatever means."""
    return max(hotspot.allows_s, hotspot.high_s)


def own_share(record: Diagnosis, hotspot: Hotspot) -> float | None:
    """A hotspot's share of the wall clock; if others had the cores for much of that, of the program's own time. None
    for what is no part of it: the time that others took."""
    if hotspot.op == CONTENTION and share_heading(record) == OF_OWN:
        return None
    return _share(record, hotspot.seconds)


def _share(record: Diagnosis, seconds: float) -> float:
    return seconds / _whole_s(record) if _whole_s(record) > 0 else 0.0


def _whole_s(record: Diagnosis) -> float:
    own = own_s(record.time_breakdown, record.wall_s)
    return own if record.wall_s - own > NOTABLE_CONTENTION * record.wall_s else record.wall_s


def causes(hotspot: Hotspot) -> dict[str, float]:
    """What bounds a hotspot, with its seconds: each second of it has one cause."""
    found: dict[str, float] = {}
    for part, seconds in hotspot.parts.items():
        cause = CAUSES.get(part, part) or _bottleneck(hotspot)
        found[cause] = found.get(cause, 0.0) + seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _bottleneck(hotspot: Hotspot) -> str:
    """What bounds the work of a hotspot, whatever else its calls wait for."""
    kind = "memory" if "above the memory roofline" in hotspot.parts else "compute"
    if hotspot.bottleneck.endswith(CAUSE_UNKNOWN):
        work = sum(seconds for part, seconds in hotspot.parts.items() if not CAUSES.get(part, part))
        return kind if hotspot.parts.get("at peak", 0.0) >= EXPLAINED_SHARE * work > 0 else CAUSE_UNKNOWN
    if hotspot.bottleneck in ("allocation", "dispatch", "launch", "ambiguous", ""):
        return kind
    return hotspot.bottleneck


def bound_by(hotspot: Hotspot) -> str:
    """What most of its time is bound by, with the second cause if it has much of the time: "compute 81%, page faults
    19%"."""
    found = causes(hotspot)
    total = sum(found.values())
    if not total:
        return hotspot.bottleneck
    if UNKNOWN in found:
        told = {cause: s for cause, s in found.items() if cause != UNKNOWN and s >= SECOND_CAUSE_SHARE * total}
        return ", ".join(f"{cause} {100 * s / total:.0f}%" for cause, s in told.items()) or UNKNOWN
    (first, most), *others = found.items()
    if not others or others[0][1] < SECOND_CAUSE_SHARE * total:
        return first
    return f"{first} {100 * most / total:.0f}%, {others[0][0]} {100 * others[0][1] / total:.0f}%"


def hotspots(record: Diagnosis, width: int, *, verbose: bool = False) -> Iterable[Text]:
    """The section of hotspots, by recoverable time; those left out are counted in its last line."""
    ordered = [r for r in sort_worst_first(record.hotspots) if verbose or r.op != CONTENTION]
    notable = [r for r in ordered if max(r.seconds, r.high_s) >= MIN_SHOWN_SHARE * record.wall_s] or ordered
    shown = notable if verbose else notable[:SHOWN_COUNT]
    notable_ids = {id(r) for r in notable}
    width = min(width, MOST_COLUMNS)
    # Without measured peaks these columns may say nothing.
    told = not record.peaks.unknown or any(r.high_s or r.allows_s for r in shown)
    figures = [("time", TIME), (share_heading(record), SHARE - 1)]
    figures += [("of peak", PEAK), ("recoverable", RECOVERABLE)] if told else []
    causes_told = any(bound_by(r) != UNKNOWN for r in shown)
    figures += [("  bound by", 20)] if causes_told else []
    if width >= WIDE_COLUMNS:
        yield section("hotspots", [("", _name_columns(width)), *figures])
    else:
        yield section("hotspots")
        yield cells([(Text(name, style="dim"), size) for name, size in figures], 1)
    reasons = {} if verbose else shared_reasons(r.action for r in shown)
    for lines in starmap(
        lambda i, r: _hotspot(
            i, r, width, reasons, own_share(record, r), told=told, causes_told=causes_told, verbose=verbose
        ),
        enumerate(shown, 1),
    ):
        yield from lines
    if share_heading(record) != OF_WALL:
        yield from paragraph(OWN_TIME, width, 2, style="dim")
    if told and any(recoverable(r).startswith(LIMIT) for r in shown):
        yield from paragraph(LIMIT_ALONE, width, 2, style="dim")
    for reason, count in reasons.items():
        yield from paragraph(f"{count} of these: {reason}", width, 2, style="dim")
    rest = [*notable[len(shown) :], *(r for r in ordered if id(r) not in notable_ids)]
    if rest:
        part = quantity.percent(_share(record, sum(r.seconds for r in rest)), 1)
        said = f"{len(rest)} more, {quantity.seconds(sum(r.seconds for r in rest))} together ({part})"
        yield from paragraph(f"+ {said}" if shown else said, width, 2, style="dim")
    unmodelled = dict.fromkeys(r.op for r in rest if not r.modelled and r.op != CONTENTION)
    if unmodelled:
        names = list(unmodelled)[: len(unmodelled) if verbose else 3]
        more = [f"{len(unmodelled) - len(names)} more"] if len(names) < len(unmodelled) else []
        yield from fold_items((*names, *more), width, 4, "    of them not modelled:", "dim")


def next_action(hotspot: Hotspot) -> str:
    """What to do there, or what a fix has done."""
    return f"{hotspot.optimization}: applied" if hotspot.applied else hotspot.action


def share_heading(record: Diagnosis) -> str:
    return OF_WALL if _whole_s(record) == record.wall_s else OF_OWN


def _name_columns(width: int) -> int:
    return min(MOST_NAME_COLUMNS, width - CAUSE_COLUMNS + TIME + SHARE - 1 + PEAK + RECOVERABLE)


def _hotspot(
    number: int, hotspot: Hotspot, width: int, reasons: Container[str], share: float | None, *, told: bool,
    causes_told: bool, verbose: bool,
) -> Iterable[Text]:  # fmt: skip
    figures: list[tuple[str | Text, int]] = [
        (quantity.seconds(hotspot.seconds), TIME),
        (quantity.percent(share), SHARE - 1),
    ]
    if told:
        figures += [(quantity.percent(hotspot.achieved), PEAK), (recoverable(hotspot), RECOVERABLE)]
    figures.append(("  ", 2))
    bound = bound_by(hotspot) if causes_told else ""
    cause = Text(bound, style=style_of(bound))
    if width >= WIDE_COLUMNS:
        columns = _name_columns(width)
        yield cells([(_name(number, hotspot, columns), columns), *figures, (cause, cell_len(bound))])
    else:
        yield cells([(_name(number, hotspot, width), width)])
        first = cells(figures, 1)
        beside = width - cell_len(first.plain) - 2
        if cell_len(bound) <= beside:
            yield cells([*figures, (cause, cell_len(bound))], 1)
        else:
            yield first
            yield from paragraph(cause, width, 4)
    yield from _details(hotspot, width, reasons, verbose=verbose)


def _details(hotspot: Hotspot, width: int, reasons: Container[str], *, verbose: bool) -> Iterable[Text]:
    """The line of source and what to do, if there is anything; with ``verbose`` what it was called with."""
    action = next_action(hotspot) if hotspot.applied else without_reason(hotspot.action, reasons)
    if action == AT_THE_ROOFLINE and not verbose:
        action = ""
    words = [word for word in (hotspot.source, action) if word]
    if words:
        yield from paragraph(": ".join(words), width, 4, style="dim")
    if verbose:
        for line in (hotspot.shapes, hotspot.peak and f"peak: {hotspot.peak}", " ".join(hotspot.kernels)):
            if line:
                yield from paragraph(line, width, 4, style="dim")


def _name(number: int, hotspot: Hotspot, width: int) -> Text:
    """Rank, op, number of calls, and as much of the module as fits."""
    text = Text.assemble(f"{number:2d} ", (op_label(hotspot), "bold"), f" x{hotspot.calls}")
    left = width - cell_len(text.plain) - 2
    for module in dict.fromkeys((hotspot.layers or hotspot.module, hotspot.module)):
        shown = last_parts(module, left)
        if module and left >= cell_len(shown):
            text.append(f"  {shown}", style="dim")
            break
    return text


def op_label(hotspot: Hotspot) -> str:
    """The op; of ``gelu_backward (backward)`` the name alone, which says it."""
    plain = hotspot.op.removesuffix(BACKWARD)
    return plain if plain.endswith("_backward") else hotspot.op


def recoverable(hotspot: Hotspot) -> str:
    """What is predicted to be recoverable; "<=" what would be at the roofline; "-" if neither is known."""
    if predicted_s(hotspot) >= 1e-9:
        return quantity.seconds_range(hotspot.low_s, hotspot.high_s)
    limit = limit_s(hotspot)
    return f"{LIMIT} {quantity.seconds(limit)}" if limit >= 1e-9 else "-"
