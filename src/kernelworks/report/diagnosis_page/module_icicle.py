"""The time of the run by module: an icicle, in which a module lies below the one it is in, as wide as its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from kernelworks.records import Diagnosis
from kernelworks.records.program_run import ModuleTime
from kernelworks.report import plot, quantity
from kernelworks.report.hotspots import bound_by, op_label

__all__ = ["Node", "module_icicle", "module_nodes"]

LEAST_SHARE = 0.004  # of the wall clock: what takes less is one node with its like
OUTSIDE = "outside modules"
ROW_PX = 26


@dataclass
class Node:
    """A module, or an operator in one: then with its ``hotspot``."""

    name: str
    seconds: float
    said: str  # in full, for whoever looks at it
    colour: str = ""  # the variable of a cause
    hotspot: int = 0  # its number on the page, from 1
    inner: list[Node] = field(default_factory=list)


def module_icicle(record: Diagnosis) -> str:
    root = module_nodes(record)
    if root is None or not root.inner:
        return ""
    drawn = list(_drawn(root, 0.0, 0, 1, 1, record.wall_s))
    deepest = max(depth for depth, _ in drawn) + 1
    return (
        '<section id="modules"><h2>Time by module</h2>\n'
        '<p class="note">A module lies below the one that it is in, as wide as the time spent in it; coloured are the '
        'operators, by what bounds them. <span class="script">A click on a module zooms in, on an operator shows its '
        "hotspot; arrow keys move, Enter chooses, Escape zooms out.</span></p>\n"
        '<div class="icicle-bar script"><button type="button" id="zoom-out" disabled>Whole run</button>'
        f'<span id="node-said" role="status">{escape(root.said)}</span></div>\n'
        f'<div class="icicle" role="tree" aria-label="Time by module" style="height:{deepest * ROW_PX}px">'
        f"{''.join(text for _, text in drawn)}</div></section>"
    )


def module_nodes(record: Diagnosis) -> Node | None:
    """The tree that is drawn: containers that hold one module are one with it, small modules and operators one node."""
    if record.modules is None or record.wall_s <= 0:
        return None
    least = LEAST_SHARE * record.wall_s
    by_module: dict[str, list[int]] = {}
    for number, hotspot in enumerate(record.hotspots):
        by_module.setdefault(hotspot.module, []).append(number)
    inner: dict[str, list[ModuleTime]] = {}
    for module in record.modules.modules:
        if module.path:
            inner.setdefault(module.path.rpartition(".")[0], []).append(module)

    def operators(path: str) -> list[Node]:
        return [_operator(record, number) for number in by_module.get(path, [])]

    def grown(module: ModuleTime, name: str) -> Node:
        below = inner.get(module.path, [])
        if len(below) == 1 and module.own_s < least and below[0].seconds >= least:
            return grown(below[0], f"{name}.{below[0].path.rpartition('.')[2]}")
        made = [grown(one, one.path.rpartition(".")[2]) for one in below] + operators(module.path)
        name += f" x{module.instances}" if module.instances > 1 and name.endswith("*") else ""
        return Node(name, module.seconds, _module_text(module, record.wall_s), inner=_largest(made, least))

    tops = [grown(module, module.path) for module in inner.get("", [])]
    rest = next((m for m in record.modules.modules if not m.path), None)
    if rest is not None and rest.seconds > 0:
        said = f"{OUTSIDE}: {_time_text(rest.seconds, record.wall_s)}"
        tops.append(Node(OUTSIDE, rest.seconds, said, inner=_largest(operators(""), least)))
    whole = f"{record.program}: {quantity.seconds(record.wall_s)}"
    return Node(record.program, record.wall_s, whole, inner=_largest(tops, least))


def _largest(nodes: Sequence[Node], least: float) -> list[Node]:
    """The nodes that can be seen, the longest first, and one for the others."""
    shown = sorted((n for n in nodes if n.seconds >= least), key=lambda n: -n.seconds)
    rest = [n for n in nodes if 0 < n.seconds < least]
    total = sum(n.seconds for n in rest)
    if total >= least:
        name = f"{len(rest)} more"
        shown.append(Node(name, total, f"{name}: {quantity.seconds(total)}"))
    return shown


def _operator(record: Diagnosis, number: int) -> Node:
    hotspot = record.hotspots[number]
    place = f" at {hotspot.source}" if hotspot.source else ""
    said = f"{op_label(hotspot)}{place}: {_time_text(hotspot.seconds, record.wall_s)} in {hotspot.calls} calls, "
    return Node(
        op_label(hotspot),
        hotspot.seconds,
        f"{said}bound by {bound_by(hotspot)}",
        plot.cause(hotspot.bottleneck),
        number + 1,
    )


def _module_text(module: ModuleTime, wall: float) -> str:
    said = f"{module.path}: {_time_text(module.seconds, wall)}"
    if module.instances > 1:
        each = f"{quantity.seconds(module.least_s)} to {quantity.seconds(module.most_s)}"
        said += f"; {module.instances} modules, {each} each, slowest {module.slowest}"
    return said


def _time_text(seconds: float, wall: float) -> str:
    return f"{quantity.seconds(seconds)} ({quantity.percent(seconds / wall, 1)})"


def _drawn(node: Node, start: float, depth: int, place: int, siblings: int, wall: float) -> Iterable[tuple[int, str]]:
    """The node and all below it as HTML, each with its depth; its place is among its siblings."""
    classes = "node operator" if node.colour else "node"
    colour = f";background:var(--{node.colour})" if node.colour else ""
    opens = ' aria-expanded="true"' if node.inner else ""
    hotspot = f' data-hotspot="{node.hotspot}"' if node.hotspot else ""
    yield (
        depth,
        f'<div class="{classes}" role="treeitem" aria-level="{depth + 1}" aria-posinset="{place}" '
        f'aria-setsize="{siblings}"{opens}{hotspot} tabindex="{-1 if depth else 0}" title="{escape(node.said)}" '
        f'style="--x:{start / wall:.5f};--w:{node.seconds / wall:.5f};--d:{depth}{colour}">'
        f"<span>{escape(node.name)}</span></div>",
    )
    for number, one in enumerate(node.inner, 1):
        yield from _drawn(one, start, depth + 1, number, len(node.inner), wall)
        start += one.seconds
