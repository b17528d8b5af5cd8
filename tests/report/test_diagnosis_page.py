"""The page of a diagnosis: its parts in order, each figure in its place, links that lead somewhere; and in a browser
what a click, a key and a narrow window do."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import opened, without_browser

from kernelworks.records import Diagnosis, Hotspot
from kernelworks.records.fix import TriedOptimization
from kernelworks.records.program_run import ModuleTime, ModuleTree, OperatorSpans, SourceLines
from kernelworks.report import page, plot, roofs
from kernelworks.report.diagnosis_page.module_icicle import LEAST_SHARE, Node, module_nodes
from kernelworks.report.document import STYLES, colours, read_texts
from kernelworks.report.html import fragment
from kernelworks.report.next_steps import Files

CODE = SourceLines(121, ("def forward(self, x):", "    if x < 1:", "        return self.query(x)", "", "    # <end>"))


def module(path: str, seconds: float, own: float, instances: int = 1) -> ModuleTime:
    each = seconds / instances
    return ModuleTime(path, instances, seconds, own, 0.9 * each, 1.1 * each, path.replace("*", "1"))


@pytest.fixture(scope="module")
def whole(diagnosis: Diagnosis) -> Diagnosis:
    """A record with everything that a diagnosis of today keeps."""
    tried = (
        TriedOptimization("swap", "all modules", "our kernels", "", "applied", "it saves 34%", 0.12, 0.135),
        TriedOptimization("torch.compile", "Net", "compiled whole", "", "rejected", "it costs 3%", 0.02, -0.012),
        TriedOptimization("fewer bits", "all modules", "bfloat16", "", "not tried", "allow bf16 to have it tried"),
        TriedOptimization("threads", "", "", "", "not tried", "", advice="use 2 threads"),
    )  # fmt: skip
    assert diagnosis.fix is not None
    fix = dataclasses.replace(
        diagnosis.fix, optimizations=tried, noise_s=0.02, code="import kernelworks\nkernelworks.swap(model)",
    )  # fmt: skip
    first, *rest = diagnosis.hotspots
    tree = ModuleTree((
        module("encoder", 0.29, 0.0), module("encoder.layer", 0.29, 0.0), module("encoder.layer.*", 0.29, 0.0, 6),
        module("encoder.layer.*.attention", 0.2, 0.08, 6), module("encoder.layer.*.attention.self", 0.12, 0.0, 6),
        module("encoder.layer.*.attention.self.query", 0.12, 0.12, 6),
        module("encoder.layer.*.intermediate", 0.06, 0.06, 6), module("encoder.layer.*.output", 0.03, 0.03, 6),
        module("<lambda> & co", 0.005, 0.005), module("", 0.105, 0.105),
    ))  # fmt: skip
    spans = OperatorSpans((0, 120_000_000, 200_000_000), (120_000_000, 80_000_000, 60_000_000), (0, 1, 2))
    return dataclasses.replace(
        diagnosis, hotspots=(dataclasses.replace(first, code=CODE), *rest), fix=fix, modules=tree, spans=spans
    )


@pytest.fixture(scope="module")
def text(whole: Diagnosis) -> str:
    return page.diagnosis(whole)


class Tree(HTMLParser):
    """The elements that a test asks for: tag, attributes, text."""

    VOID = frozenset({"meta", "link", "input", "br", "wbr", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(text)
        assert not self._open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words: list[str] = []
        self.elements.append((tag, {name: value or "" for name, value in attrs}, words))
        if tag not in self.VOID:
            self._open.append((tag, words))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        opened_tag, _ = self._open.pop()
        assert opened_tag == tag, f"<{opened_tag}> is closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        for _, words in self._open:
            words.append(data)

    def named(self, name: str) -> list[tuple[dict[str, str], str]]:
        """Every element with that class, tag or ``#id``."""
        return [
            (attributes, " ".join("".join(words).split()))
            for tag, attributes, words in self.elements
            if name in (tag, f"#{attributes.get('id')}") or name in attributes.get("class", "").split()
        ]


# ---------------------------------------------------------------- what stands where


def test_the_parts_come_in_the_order_in_which_they_are_read(text: str) -> None:
    ids = ["cards", "time-breakdown", "modules", "hotspots-section", "timeline-section", "roofline-section", "fix"]
    places = [text.index(f'id="{name}"') for name in ids] + [text.index("<h2>Findings")]
    assert places == sorted(places)


def test_the_cards_hold_the_four_figures(whole: Diagnosis, text: str) -> None:
    cards = [said for _, said in Tree(text).named("card")]
    assert [re.split(r"\d|unknown", card)[0].strip() for card in cards] == [
        "Wall clock per run", "Share of the measured peak", "Recoverable", "Applied gain",
    ]  # fmt: skip
    assert "400 ms" in cards[0]
    share = whole.time_breakdown["at peak"] / (whole.wall_s - 0.015)  # one hotspot has no model
    assert f"{100 * share:.0f}%" in cards[1]
    assert "at the roofline" in cards[2] or whole.hotspots[0].allows_s == 0
    assert "1.51x" in cards[3] and "predicted" in cards[3] and "135 ms ± 20.0 ms" in cards[3]


def test_the_sentence_of_many_figures_is_not_on_the_page(whole: Diagnosis, text: str) -> None:
    assert whole.sentence not in text


def test_error_bars_and_losses_keep_their_scale(whole: Diagnosis) -> None:
    """Predicted a loss of 45 ms, got a gain of 135 +- 20 ms: the axis goes from -45 to 155 ms."""
    assert whole.fix is not None
    lost = dataclasses.replace(whole.fix, predicted_gain_s=-0.045)
    found = page.diagnosis(dataclasses.replace(whole, fix=lost))
    assert 'class="gain outline loss" style="left:0.0%;width:22.5%"' in found
    assert 'class="gain solid" style="left:22.5%;width:67.5%"' in found
    assert 'class="whisker" style="left:80.0%;width:20.0%"' in found


def test_parts_of_the_bar_say_their_cause_and_add_to_the_whole(whole: Diagnosis, text: str) -> None:
    cuts = Tree(text).named("cut")
    assert [attributes["data-cause"] for attributes, _ in cuts] == list(whole.time_breakdown)
    grown = sum(float(re.findall(r"flex-grow:([\d.]+)", attributes["style"])[0]) for attributes, _ in cuts)
    assert math.isclose(grown, 100.0)
    labels = {attributes["data-cause"]: said for attributes, said in cuts if said}
    assert labels["at peak"] == "38% at peak"
    causes = [attributes["data-cause"] for attributes, _ in Tree(text).named("cause")]
    assert causes == sorted(whole.time_breakdown, key=lambda name: -whole.time_breakdown[name])


def test_every_hotspot_has_a_row_and_a_link_of_its_own(whole: Diagnosis, text: str) -> None:
    tree = Tree(text)
    bodies = [attributes for attributes, _ in tree.named("tbody") if "data-causes" in attributes]
    assert [body["id"] for body in bodies] == [f"hotspot-{n}" for n in range(1, 1 + len(whole.hotspots))]
    links = [attributes["href"] for attributes, _ in tree.named("permalink")]
    assert links == [f"#{body['id']}" for body in bodies]
    for body, hotspot in zip(bodies, whole.hotspots, strict=True):
        assert set(json.loads(body["data-causes"])) <= set(hotspot.parts)


def test_links_within_the_page_lead_somewhere(text: str) -> None:
    tree = Tree(text)
    ids = {attributes["id"] for _, attributes, _ in tree.elements if "id" in attributes}
    hrefs = [attributes.get("href", "") for _, attributes, _ in tree.elements]
    assert {href[1:] for href in hrefs if href.startswith("#")} <= ids
    assert {a["aria-controls"] for _, a, _ in tree.elements if "aria-controls" in a} <= ids
    dots = [attributes["id"] for attributes, _ in tree.named("dot")]
    assert dots and {re.sub("dot(-narrow)?", "hotspot", dot) for dot in dots} <= ids


def test_the_source_around_the_call_is_shown_with_its_line_marked(text: str) -> None:
    lines = Tree(text).named("line")
    assert [said for _, said in lines] == [
        "121def forward(self, x):", "122 if x < 1:", "123 return self.query(x)", "124", "125 # <end>",
    ]  # fmt: skip
    assert [attributes["class"] for attributes, _ in lines].count("line called") == 1
    assert lines[2][0]["class"] == "line called"  # model.py:123


def test_untried_optimizations_are_folded_and_the_code_has_a_true_title(text: str) -> None:
    (summary, *_) = [said for _, said in Tree(text).named("summary")]
    assert summary == "1 not tried"
    assert "To keep it:" in text and "without kernelworks" not in text
    table = text[text.index('id="fix"') : text.index("<details>", text.index('id="fix"'))]
    assert "it saves 34%" in table and "it costs 3%" in table and "bfloat16" not in table
    assert "threads: use 2 threads" in text


def test_the_page_says_what_the_terminal_says(whole: Diagnosis) -> None:
    """Of a hotspot that the fix has cured, of outputs that stayed the same, and of how to keep the fix."""
    assert whole.fix is not None
    cured = dataclasses.replace(whole.hotspots[0], optimization="fused optimizer", applied=True, action="be quick")
    fix = dataclasses.replace(whole.fix, patch="a diff", error_before=0.0, error_after=0.0, against="itself")
    record = dataclasses.replace(whole, hotspots=(cured, *whole.hotspots[1:]), fix=fix)
    found = page.diagnosis(record, Files(record="out/train-step.json"))
    assert "fused optimizer: applied" in found and "be quick" not in found
    assert "Outputs as before (compared with itself)." in found
    assert "kernelworks show out/train-step.json --patch fix.diff" in found


def test_a_fix_that_applied_nothing_shows_no_code(whole: Diagnosis) -> None:
    assert whole.fix is not None
    none = dataclasses.replace(whole.fix, rounds=0, refused="")
    found = page.diagnosis(dataclasses.replace(whole, fix=none))
    assert "To keep it" not in found and "1 applied, 1 rejected, 1 not tried" in found
    refused = page.diagnosis(dataclasses.replace(whole, fix=dataclasses.replace(whole.fix, refused="it is wrong")))
    assert "The fix is refused: it is wrong." in refused and "To keep it" not in refused


def test_rough_figures_are_marked_once_and_first(whole: Diagnosis) -> None:
    found = page.diagnosis(dataclasses.replace(whole, rough=True))
    assert found.index("Rough: other processes") < found.index('id="cards"')
    assert "ms rough" not in found


def test_a_record_of_another_version_is_drawn(diagnosis: Diagnosis) -> None:
    found = page.diagnosis(diagnosis)  # without modules, spans and code
    assert 'id="modules"' not in found and 'id="timeline-section"' not in found and "hotspot-1" in found


def test_the_page_says_its_size(whole: Diagnosis, text: str) -> None:
    assert f"One file of {len(text.encode()) / 1e3:.0f} kB that makes no request." in text
    assert len(text) < 400_000
    odd = page.diagnosis(dataclasses.replace(whole, program="{size}"))
    assert "<h1>{size}</h1>" in odd and "One file of {size}" not in odd


def test_a_notebook_has_no_script_and_nothing_that_needs_one(whole: Diagnosis) -> None:
    found = fragment([whole])
    assert "<script" not in found and "hotspot-1" in found and "@container" in found


# ---------------------------------------------------------------- the tree of modules


def walk(node: Node) -> list[Node]:
    return [node, *(below for one in node.inner for below in walk(one))]


def test_no_node_is_wider_than_the_one_above_it(whole: Diagnosis) -> None:
    root = module_nodes(whole)
    assert root is not None and root.seconds == whole.wall_s
    for node in walk(root):
        assert sum(one.seconds for one in node.inner) <= node.seconds * (1 + 1e-9)
        assert node.seconds >= LEAST_SHARE * whole.wall_s
    assert {node.hotspot for node in walk(root)} - {0} == set(range(1, 1 + len(whole.hotspots)))


def test_containers_of_one_module_are_one_node(whole: Diagnosis) -> None:
    root = module_nodes(whole)
    assert root is not None
    names = [node.name for node in walk(root)]
    assert "encoder.layer.* x6" in names and "self.query" in names
    layer = next(node for node in walk(root) if node.name == "encoder.layer.* x6")
    assert "6 modules, 43.5 ms to 53.2 ms each, slowest encoder.layer.1" in layer.said


def test_small_modules_are_one_node(whole: Diagnosis) -> None:
    many = tuple(module(f"Net.part{i}", 0.001, 0.001) for i in range(50))
    tree = ModuleTree((module("Net", 0.05, 0.0), *many, module("", 0.35, 0.35)))
    root = module_nodes(dataclasses.replace(whole, modules=tree, hotspots=()))
    assert root is not None
    (net,) = (node for node in root.inner if node.name == "Net")
    assert [(node.name, round(node.seconds, 6)) for node in net.inner] == [("50 more", 0.05)]


# ---------------------------------------------------------------- colours


def _lightness(colour: str) -> tuple[float, tuple[float, float, float]]:
    """Relative luminance as WCAG has it, and the place in OKLab."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    x, y, z = (cone ** (1 / 3) for cone in cones)
    lab = (
        0.2104542553 * x + 0.793617785 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.428592205 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.808675766 * z,
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b, lab


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_lightness(one)[0], _lightness(other)[0]))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_causes_are_told_apart_by_colour_and_no_colour_means_two_things(dark: bool) -> None:
    named = colours(dark=dark)
    used = [*dict.fromkeys(plot.CAUSES.values()), *plot.SERIES]
    for one, other in itertools.combinations(used, 2):
        distance = math.dist(_lightness(named[one])[1], _lightness(named[other])[1])
        assert distance > 0.045, f"{one} and {other}: {distance:.3f}"


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_causes_stand_out_from_what_is_behind_them(dark: bool) -> None:
    named = colours(dark=dark)
    for name in ("ink", "muted", *plot.CAUSES.values(), *plot.SERIES):
        for behind in ("paper", "panel"):
            assert _contrast(named[name], named[behind]) >= 4.5, f"{name} on {behind}"


def test_every_part_and_bottleneck_has_a_colour_of_its_own() -> None:
    from kernelworks.diagnose.account import on_cpu, on_gpu

    for parts in (on_cpu.PARTS, on_gpu.PARTS):
        assert len({plot.cause(part) for part in parts}) == len(parts)


def test_styles_use_causes_for_causes_alone() -> None:
    """In a style sheet no rule takes the colour of a cause: those come with the elements that are of it."""
    rules = read_texts([*STYLES, "diagnosis_page/diagnosis.css", "style/shown.css", "climb/page.css"])
    used = set(re.findall(r"var\(--(\w+)\)", rules))
    assert not used & set(plot.CAUSES.values())


# ---------------------------------------------------------------- the roofline


def hotspot(record: Diagnosis, **more: object) -> Hotspot:
    return dataclasses.replace(record.hotspots[0], **more)


@pytest.mark.parametrize(
    ("shapes", "peak", "expected"),
    [
        ("f32 4x4, f32 4", "", ["float32"]), ("bf16 4x4", "", ["bfloat16"]), ("i64 3, f32 1", "", ["float32"]),
        ("qint8 4x4", "", ["int8"]), ("f32 4x4", "bfloat16 avx512_bf16 540 GFLOP/s", ["float32", "bfloat16"]),
        ("f32 4x4, f64 scalar", "", ["float32"]), ("", "", ["float32", "bfloat16", "int8"]),
        ("complex64 3", "", ["float32", "bfloat16", "int8"]),
    ],
)  # fmt: skip
def test_roofs_are_of_dtypes_that_occur(whole: Diagnosis, shapes: str, peak: str, expected: list[str]) -> None:
    assert not isinstance(whole.peaks, type(None))
    tops = roofs.best_flops(whole.peaks, 2)
    found = roofs.roofs_in_use(tops, [hotspot(whole, shapes=shapes, peak=peak)])
    assert [roof.dtype for roof in found] == expected


def test_slopes_are_of_levels_that_occur_and_of_the_outermost(whole: Diagnosis) -> None:
    slopes = roofs.slopes(whole.peaks, 2)
    found = roofs.slopes_in_use(slopes, [hotspot(whole, peak="L2 copy 200 GB/s", bottleneck="memory L2")])
    assert list(found) == ["L2", "DRAM"]
    assert roofs.slopes_in_use(slopes, ()) == slopes


# ---------------------------------------------------------------- a browser

PROBE = """<script>
const found = {};
const byId = (id) => document.getElementById(id);
const rows = () => [...document.querySelectorAll("#hotspots tbody")].filter((b) => b.offsetHeight > 0).map((b) => b.id);
const key = (target, name) => target.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
found.first = rows();
byId("filter").value = "gelu intermediate";
byId("filter").dispatchEvent(new Event("input"));
found.filtered = rows();
found.said = byId("shown").textContent;
byId("filter").value = "";
byId("filter").dispatchEvent(new Event("input"));
document.querySelector(".cause[data-cause='at peak']").click();
found.cause = rows();
found.times = [...document.querySelectorAll(".of-cause")].map((e) => e.textContent);
found.pressed = document.querySelectorAll(".cause[aria-pressed=true]").length;
byId("clear-cause").click();
found.cleared = rows();
const opener = byId("hotspot-1").querySelector(".open");
opener.click();
found.opened = [opener.getAttribute("aria-expanded"), byId("detail-1").offsetHeight > 0];
opener.click();
found.closed = byId("detail-1").offsetHeight;
[...document.querySelectorAll("g.dot")].find((d) => d.id.endsWith("-2")).dispatchEvent(new Event("click"));
found.hash = location.hash;
found.focus = document.activeElement.closest("tbody")?.id;
const tree = document.querySelector(".icicle");
const nodes = [...tree.querySelectorAll(".node")];
nodes[0].focus();
key(nodes[0], "ArrowDown");
found.down = document.activeElement.textContent;
key(document.activeElement, "Enter");
found.zoomed = getComputedStyle(tree).getPropertyValue("--zw");
found.status = byId("node-said").textContent;
key(document.activeElement, "Escape");
found.unzoomed = getComputedStyle(tree).getPropertyValue("--zw");
nodes.find((n) => n.dataset.hotspot === "3").click();
found.chosen = location.hash;
found.tabs = nodes.filter((n) => n.tabIndex === 0).length;
const canvas = byId("timeline");
found.inked = canvas && new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size;
found.copies = document.querySelectorAll(".copied button").length;
found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const cells = [...document.querySelectorAll(".scroll td")];
found.cut = cells.filter((t) => t.offsetParent && t.firstChild.scrollWidth > t.firstChild.clientWidth + 1).length;
found.bare = cells.filter((t) => t.childNodes.length !== 1).length;
const note = document.createElement("output");
note.id = "probe";
note.textContent = JSON.stringify(found);
document.body.append(note);
</script>"""


@pytest.mark.parametrize("width", [1280, 800, 390, 360])
def test_the_page_answers_to_clicks_and_keys(whole: Diagnosis, width: int, tmp_path: Path) -> None:
    if without_browser():
        return
    shares = ({"at peak": 0.08, "dispatch": 0.04}, {"at peak": 0.09, "dispatch": 0.0001})
    pair = tuple(dataclasses.replace(h, parts=p) for h, p in zip(whole.hotspots, shares, strict=False))
    record = dataclasses.replace(whole, hotspots=(*pair, *whole.hotspots[2:]))
    found, messages = opened(page.diagnosis(record), tmp_path, width, PROBE)
    everything = [f"hotspot-{n}" for n in range(1, 9)]
    assert messages == []
    assert found["first"] == everything == found["cleared"]
    assert found["filtered"] == ["hotspot-3"] and found["said"] == "1 of 8 hotspots"
    assert found["cause"] == ["hotspot-2", "hotspot-1"] and found["pressed"] == 1
    assert found["times"][:2] == ["90.0 ms of this cause", "80.0 ms of this cause"]
    assert found["opened"] == ["true", True] and found["closed"] == 0
    assert found["hash"] == "#hotspot-2" and found["focus"] == "hotspot-2"
    assert found["down"] == "encoder.layer.* x6" and found["status"].startswith("encoder.layer.*: 290 ms")
    assert 0.7 < float(found["zoomed"]) < 0.75 and float(found["unzoomed"]) == 1
    assert found["chosen"] == "#hotspot-3" and found["tabs"] == 1
    assert found["inked"] > 3 and found["copies"] >= 1
    assert found["wide"] <= 0 and found["cut"] == 0 and found["bare"] == 0


def test_the_hotspots_say_what_they_are_sorted_by(diagnosis: Diagnosis) -> None:
    plain = tuple(dataclasses.replace(r, low_s=0.0, high_s=0.0, allows_s=0.1 * r.seconds) for r in diagnosis.hotspots)
    bare = tuple(dataclasses.replace(r, allows_s=0.0) for r in plain)
    for hotspots, order in (
        (diagnosis.hotspots, "largest predicted gain"), (plain, "most time above the roofline"), (bare, "longest"),
    ):  # fmt: skip
        found = page.diagnosis(dataclasses.replace(diagnosis, hotspots=hotspots))
        assert f"<h2>Hotspots, {order} first</h2>" in found
