"""Tables, pictures and pages made of records: what they hold, that it adds up, and that a browser shows it."""

from __future__ import annotations

import dataclasses
import html.parser
import itertools
import re
from pathlib import Path

import machines
import pytest
from browser import opened, without_browser
from hypothesis import given
from hypothesis import strategies as st
from printed import printed

from kernelworks.records import (
    BenchResult,
    Diagnosis,
    FlopRate,
    GpuPeaks,
    MapOp,
    Peaks,
    Verification,
    from_json,
    to_json,
)
from kernelworks.report import bench, diagnose, document, fix, machine, page, plot, quantity, roofs, terminal, verify
from kernelworks.report import map as kernel_map
from kernelworks.report.diagnosis_page.hotspot_table import FIRST_ROWS

# ---------------------------------------------------------------- quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.5e-9, "1.50 ns"), (0.99949e-6, "999 ns"), (0.9996e-6, "1.00 us"), (12.34e-3, "12.3 ms"),
        (0.9999, "1.00 s"), (75.04, "75.0 s"), (1234.0, "1234 s"),
    ],
)  # fmt: skip
def test_times_have_three_figures(value: float, text: str) -> None:
    assert quantity.seconds(value) == text


@pytest.mark.parametrize(
    ("times", "texts"),
    [
        ((1.45, 0.629), ["1450 ms", "629 ms"]),
        ((0.121, 298e-6), ["121 ms", "0.298 ms"]),  # 121000 us are no better read
        ((9.9996, 0.9), ["10.0 s", "0.900 s"]),
        ((9.994, 0.9), ["9994 ms", "900 ms"]),
        ((0.003, 0.0), ["3.00 ms", "0"]),  # nothing has no unit
        ((-0.002, 0.0005), ["-2000 us", "500 us"]),
    ],
)
def test_times_that_are_compared_have_one_unit(times: tuple[float, ...], texts: list[str]) -> None:
    unit = quantity.unit_of(*times)
    assert [quantity.seconds(time, unit) for time in times] == texts
    assert quantity.with_interval(1.2, 0.034, quantity.unit_of(1.4, 0.2)) == "1200 +- 34 ms"


def test_a_range_has_one_unit() -> None:
    assert quantity.seconds_range(3.1e-3, 4.25e-3) == "3.1-4.2 ms"
    assert quantity.seconds_range(0.4e-3, 1.2e-3) == "0.40-1.2 ms"
    assert quantity.seconds_range(0.0, 0.0) == "0"
    assert quantity.seconds_range(2.01e-3, 2.02e-3) == "2.0 ms"


def test_other_quantities() -> None:
    assert quantity.percent(0.004) == "<1%"
    assert quantity.percent(None) == "-"
    assert quantity.gflops(1055.0) == "1055 GFLOP/s"
    assert quantity.gflops(55000.0) == "55.0 TFLOP/s"
    assert quantity.size(48 << 10) == "48 KiB"
    assert quantity.size(1536) == "1.5 KiB"
    assert quantity.ratio(2.4142) == "2.41x"


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_three_figures_are_within_half_a_unit_of_the_third(value: float) -> None:
    text = quantity.figures(value)
    assert "e" not in text
    assert abs(float(text) - value) <= 0.005001 * value


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.floats(min_value=0, max_value=1e6), min_size=1, max_size=9))
def test_the_printed_parts_add_to_exactly_one_hundred(parts: dict[str, float]) -> None:
    shares = diagnose.round_to_percents(parts)
    total = sum(parts.values())
    if total > 0:
        assert round(sum(shares.values()), 6) == 100.0
        assert all(abs(shares[n] - 100 * v / total) <= 0.1 + 1e-9 for n, v in parts.items())


# ---------------------------------------------------------------- the terminal


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_a_diagnosis_prints_every_figure(diagnosis: Diagnosis, width: int) -> None:
    text = printed(diagnose.diagnosis(diagnosis, width, verbose=True), width)
    assert max(map(len, text.splitlines())) <= width
    joined = " ".join(text.split())
    assert "runs at 38% of what this machine can do" in joined
    for hotspot in diagnosis.hotspots:
        assert hotspot.op in text
    for part in diagnosis.time_breakdown:
        assert part in text
    for expected in (
        "400 ms -> 265 ms per run: 1.51x", "120 ms predicted, 135 ms got", "120 ms", "30%", "compute", "45%",
        "40-59 ms", "model.py:123", "100.0%",
    ):  # fmt: skip
        assert expected in joined, expected


def test_the_worst_comes_first(diagnosis: Diagnosis) -> None:
    ordered = diagnose.sort_worst_first(diagnosis.hotspots)
    worth = [r.high_s for r in ordered if r.high_s >= 0.02 * diagnosis.wall_s]
    assert len(worth) > 3 and worth == sorted(worth, reverse=True)
    text = printed(diagnose.diagnosis(diagnosis, 140, verbose=True)).partition("HOTSPOTS")[2]
    assert text.index("encoder.layer.*.attention") < text.index("layer_norm") < text.index("unique_dim")


def test_a_long_table_counts_what_it_leaves_out(diagnosis: Diagnosis) -> None:
    many = dataclasses.replace(diagnosis, hotspots=diagnosis.hotspots * 4)
    text = printed(diagnose.diagnosis(many, 140))
    left = len(many.hotspots) - len(re.findall(r"^ ?\d+ \w+ x\d+", text, re.M))
    assert f"+ {left} more" in text and left > 20


def test_a_fix_that_disagrees_says_so(diagnosis: Diagnosis) -> None:
    assert diagnosis.fix is not None
    wrong = dataclasses.replace(diagnosis.fix, agrees=False, gain_s=-0.01)
    assert "WORSE" in printed(fix.fix(wrong))
    assert "-10.0 ms got (slower)" in printed(fix.fix(wrong))
    unforeseen = dataclasses.replace(diagnosis.fix, predicted_gain_s=-0.05)
    assert "no gain was predicted" in printed(fix.fix(unforeseen))


def test_no_color_is_honoured(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = terminal.stdout()
    with console.capture() as captured:
        console.print(diagnose.diagnosis(diagnosis, 120))
    assert not re.search(r"\x1b\[[\d;]*(3[0-7]|9[0-7]|38)[;m]", captured.get())


@pytest.mark.parametrize("width", [80, 132])
def test_a_machine_prints_pyramid_roofline_and_ridges(ceilings: Peaks, width: int) -> None:
    text = printed(machine.peaks(ceilings, width), width)
    assert max(map(len, text.splitlines())) <= width
    for expected in ("L1", "DRAM", "855", "float32", "536 GFLOP/s", "1960 Gop/s", "tanh", "800 ns", "6.72"):
        assert expected in text, expected
    tiers = [line.count("█") for level in roofs.LEVELS for line in text.splitlines() if f"█ {level} █" in line]
    assert tiers == sorted(tiers)
    assert len(tiers) == 4


def test_ridges_are_rates_over_bandwidths(ceilings: Peaks) -> None:
    found = {(r.level, r.dtype): r.flop_per_byte for r in roofs.ridges(ceilings, 2)}
    assert found["DRAM", "float32"] == pytest.approx(536.0 / (42.0 * 1.9))
    assert found["L1", "bfloat16"] == pytest.approx(1080.0 / (450.0 * 1.9))


def test_a_verification_prints_the_line_that_shows_a_failure_again(proofs: list[Verification]) -> None:
    text = printed(verify.verifications(proofs))
    assert "verified, certified" in text
    assert "REFUSED" in text
    assert "kernelworks verify softmax.avx2 --case 'length 17'" in text
    assert [verify.is_verified(p) for p in proofs] == [True, False]
    blind = dataclasses.replace(proofs[0], mutants_rejected=5)
    assert not verify.is_verified(blind)
    assert not verify.is_verified(dataclasses.replace(proofs[0], cases=0))


def test_a_bench_without_its_gate_gives_no_figure(benches: list[BenchResult]) -> None:
    text = printed(bench.benches(benches), 160)
    assert "2.25x inductor" in text
    assert "no figure" in text


def test_the_map_shows_certificate_share_and_ratio(map_ops: list[MapOp]) -> None:
    text = printed(kernel_map.kernel_map(map_ops, "kind"))
    for expected in ("reduction", "softmax", "avx512", "81% of bound", "2.25x over inductor", "verified 2026-01-01"):
        assert expected in text
    page_text = kernel_map.markdown(map_ops)
    assert "### gelu" in page_text
    assert "`avx512`, `avx2`, `torch`, `reference`" in page_text


def test_records_survive_json(diagnosis: Diagnosis, benches: list[BenchResult], proofs: list[Verification]) -> None:
    assert from_json(Diagnosis, to_json(diagnosis)) == diagnosis
    assert from_json(BenchResult, to_json(benches[0])) == benches[0]
    assert from_json(Verification, to_json(proofs[1])) == proofs[1]


# ---------------------------------------------------------------- the pages


class Reader(html.parser.HTMLParser):
    """Counts tags, and collects ids, links and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "xlink:href", "src", "action", "data") and value:
                self.links.append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.fixture(scope="module")
def pages(diagnosis: Diagnosis, ceilings: Peaks) -> dict[str, str]:
    """To draw one takes a second."""
    return {
        "diagnosis": page.diagnosis(diagnosis), "machine": page.machine(ceilings),
        "machine and GPU": page.machine(ceilings, machines.gpu_record()),
    }  # fmt: skip


@pytest.mark.parametrize("which", ["diagnosis", "machine"])
def test_a_page_asks_the_network_for_nothing(which: str, pages: dict[str, str]) -> None:
    text = pages[which]
    reader = read(text)
    assert all(link.startswith(("#", "data:")) for link in reader.links), reader.links
    assert not re.findall(r"url\((?!['\"]?(?:#|data:))", text)
    assert not re.findall(r"@import|//cdn|https?://(?!www\.w3\.org/)", text)
    assert len(reader.ids) == len(set(reader.ids))


def test_text_from_a_program_is_escaped(diagnosis: Diagnosis) -> None:
    nasty = dataclasses.replace(diagnosis.hotspots[0], op="<script>alert(1)</script>", module='"><img src=x>')
    text = page.diagnosis(dataclasses.replace(diagnosis, hotspots=(nasty,), program="<b>x</b>"))
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;b&gt;x" in text


def test_pages_without_dots_rates_or_a_fix_are_drawn(diagnosis: Diagnosis, ceilings: Peaks) -> None:
    bare = dataclasses.replace(ceilings, flops=(), functions=())
    empty = dataclasses.replace(diagnosis, hotspots=(), fix=None, findings=(), unmodelled=(), peaks=bare)
    assert read(page.diagnosis(empty)).tags.get("svg") is None
    assert "no roofline" in printed(machine.peaks(bare, 120))
    assert read(page.machine(bare)).tags["svg"] == 2  # the pyramid, for wide windows and for narrow ones


def test_pictures_take_their_colours_from_the_page(ceilings: Peaks, diagnosis: Diagnosis) -> None:
    for picture in (plot.roofline(ceilings, 2, diagnosis.hotspots), plot.memory_hierarchy(ceilings)):
        assert "var(--ink)" in picture
        assert not re.findall(r"#0b5e\w\w", picture)
        assert picture == picture.encode("ascii", "xmlcharrefreplace").decode()


# ---------------------------------------------------------------- a browser


def test_a_browser_shows_the_diagnosis(diagnosis: Diagnosis, pages: dict[str, str], tmp_path: Path) -> None:
    if without_browser():
        return
    found, messages = opened(pages["diagnosis"], tmp_path)
    assert messages == []
    assert len(found["descending"]) == len(diagnosis.hotspots)
    assert found["descending"] == sorted(found["descending"], reverse=True)
    assert found["ascending"] == sorted(found["ascending"])
    assert min(found["tables"]) > 100
    assert min(found["svgs"]) > 200
    assert found["paths"] > 10
    assert found["overlaps"] == []
    assert found["wide"] <= 0 and found["scrolling"] == 0


def test_a_browser_shows_the_machine(pages: dict[str, str], tmp_path: Path) -> None:
    if without_browser():
        return
    found, messages = opened(pages["machine and GPU"], tmp_path)
    assert messages == []
    assert len(found["tables"]) == 5 + 5
    assert len(found["svgs"]) == 2 + 2  # a roofline each, the pyramid, and the GPU's memory
    assert found["overlaps"] == []
    assert found["wide"] <= 0 and found["scrolling"] == 0


def _machines() -> dict[str, Peaks | GpuPeaks]:
    """Machines whose levels and rates lie near each other, as those that labels once overlapped on."""
    known = machines.record()
    near = {"L1": 110.0, "L2": 104.0, "L3": 100.0, "DRAM": 91.0}
    bandwidth = tuple(dataclasses.replace(b, gbs=near[b.level] * b.threads) for b in known.bandwidth)
    rates = tuple(FlopRate(f"float{32 + i}", "avx2", t, 100.0 * t * 1.3**i) for i in range(4) for t in (1, 2))
    return {
        "apart": known,
        "levels alike": dataclasses.replace(known, bandwidth=bandwidth),
        "rates alike": dataclasses.replace(known, flops=rates),
        "both": dataclasses.replace(known, flops=rates, bandwidth=bandwidth),
        "GPU": machines.gpu_record(),
    }


@pytest.mark.parametrize("width", [pytest.param(plot.WIDE_INCHES, marks=pytest.mark.thorough), plot.NARROW_INCHES])
@pytest.mark.parametrize("name", _machines())
def test_names_of_levels_lie_on_no_other(name: str, width: float) -> None:
    here = _machines()[name]
    slopes, tops = roofs.slopes(here, 2), roofs.best_flops(here, 2)
    figure, axes = plot.canvas(width, 5.6, "test")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xlim(1 / 32, 512)
    axes.set_ylim(min(slopes.values()) / 12, tops[-1].gflops * 2.2)
    plot.draw_roofs(axes, slopes, tops, 1 / 32, 512)
    figure.draw_without_rendering()
    names = [text for text in axes.texts if text.get_rotation()]
    assert len(names) == len(slopes)
    boxes = []
    for text in names:
        x, y = text.xy
        along, across = plot._turned(axes, x, y, text.get_rotation())
        boxes.append((along, across, plot.LETTER * len(text.get_text())))
    for (u, v, w), (p, q, _) in itertools.permutations(boxes, 2):
        assert abs(v - q) >= 0.9 * plot.LINE or p >= u + w or p < u


@pytest.mark.parametrize("dots", [[(128.0, 1.0)], [(128.0, 1.0), (300.0, 1.1)], [(2.0**i, 1.02) for i in range(3, 9)]])
def test_names_of_roofs_keep_clear_of_dots(dots: list[tuple[float, float]], diagnosis: Diagnosis) -> None:
    """Regions that run near a roof: its name stands beside them where there is room."""
    here = machines.record()
    top = roofs.best_flops(here, 2)[0].gflops
    found = [
        dataclasses.replace(diagnosis.hotspots[0], flop=x * 1e9, bytes=1e9, seconds=x * 1e9 / (top * y * 1e9))
        for x, y in dots
    ]
    picture = plot.roofline(here, 2, found)
    assert picture.count('class="dot"') == len(dots)
    figure, axes = plot.canvas(plot.WIDE_INCHES, 5.6, "test")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xlim(1 / 32, 512)
    axes.set_ylim(1, top * 4)
    places = [(x, top * y, 8.0) for x, y in dots]
    plot.draw_roofs(axes, roofs.slopes(here, 2), roofs.best_flops(here, 2), 1 / 32, 512, places)
    figure.draw_without_rendering()
    label = next(text for text in axes.texts if not text.get_rotation() and "float32" in text.get_text())
    box = label.get_window_extent()
    for x, y, _ in places:
        across, up = axes.transData.transform((x, y))
        assert not (box.x0 < across < box.x1 and box.y0 < up < box.y1)


@pytest.mark.parametrize("width", [390, 640])
def test_nothing_scrolls_sideways(width: int, pages: dict[str, str], tmp_path: Path) -> None:
    if without_browser():
        return
    for number, text in enumerate((pages["diagnosis"], pages["machine and GPU"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, messages = opened(text, folder, width)
        assert messages == [] and found["overlaps"] == []
        assert found["wide"] <= 0 and found["scrolling"] == 0


def test_a_browser_shows_the_first_rows_and_then_all(diagnosis: Diagnosis, tmp_path: Path) -> None:
    if without_browser():
        return
    many = dataclasses.replace(diagnosis, hotspots=diagnosis.hotspots * 4)
    found, messages = opened(page.diagnosis(many), tmp_path)
    assert messages == []
    assert found["shown"] == [FIRST_ROWS, len(many.hotspots)]


def test_the_browser_test_sees_errors_and_requests(tmp_path: Path) -> None:
    if without_browser():
        return
    policy = f'<meta http-equiv="Content-Security-Policy" content="{document.NO_REQUESTS}">'
    text = f'<html><head>{policy}</head><body><script>console.error("seen")</script><img src="http://a.b/c.png"></body></html>'
    _, messages = opened(text, tmp_path)
    assert any("seen" in m for m in messages)
    assert any("Content Security Policy" in m for m in messages)
