"""What a climb looks like: committed documents are those that their records make, and every kind of record is shown
whole and honestly. The figures in the records made up here are invented."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from browser import opened, without_browser
from printed import printed

from kernelworks.climb import command
from kernelworks.climb.command import documents, write_pages
from kernelworks.climb.ladder import Ladder
from kernelworks.records import GpuBandwidth, GpuPeaks, GpuRate, Peaks, from_json
from kernelworks.records.climb import Climb, RungResult, RungTime
from kernelworks.report.climb import evidence as climb_evidence
from kernelworks.report.climb import page as climb_page
from kernelworks.report.climb import terminal
from kernelworks.report.climb import words as climb_words
from kernelworks.report.climb.code import Line, changes, hunks, rewritten
from kernelworks.report.climb.plot import FEW_RUNGS, roofline, stairs
from kernelworks.report.climb.worklog import worklog
from kernelworks.report.plot import NARROW_INCHES, WIDE_INCHES

LADDERS = Path(__file__).resolve().parents[2] / "ladders"
RECORDS = sorted(LADDERS.glob("**/results.json"))
SOURCES = {
    "01_naive.cpp": "for (int i = 0; i < n; ++i)\n    sum += x[i];\n",
    "02_chains.cpp": "for (int i = 0; i < n; i += 2)\n    sum += x[i] + x[i + 1];\n",
    "03_wide.cpp": "wide(x);\n",
}


def timed(rate: float, peak: float, before: float | None = None, threads: int = 1, **more: Any) -> RungTime:
    made = RungTime(
        threads=threads, size={"M": 64, "N": 64}, median_s=1e-3 / rate, low_s=0.99e-3 / rate, high_s=1.03e-3 / rate,
        samples=9, rate=rate, peak=peak, baselines={"torch": 50.0, "tuned": 90.0}, before=before, thrown=0,
    )  # fmt: skip
    return dataclasses.replace(made, **more)


def rung(number: int, title: str, times: tuple[RungTime, ...], **more: Any) -> RungResult:
    files = list(SOURCES)
    first = times[0] if times else None
    judged = [t for t in times if first and t.size == first.size][-1:]
    made = RungResult(
        number=number, file=files[number - 1], sha256="", title=title, target="avx2",
        hypothesis=f"{title} is quicker.", next="More.", predicted=None if number == 1 else 4.0,
        status="verified" if times else "wrong", reason="" if times else "M 3, N 5: 2 of 15 elements", worst=0.25,
        times=times, gain=judged[0].rate / judged[0].before if judged and judged[0].before else None,
        loads={"L1": 8.0 / number}, shares={"multiply-adds": 0.7, "L1": 0.2}, bottleneck="compute",
        assembly=("vmovups ymm0,[rax]", "vfmadd231ps ymm1,ymm0,ymm2", "jne 10"),
    )  # fmt: skip
    return dataclasses.replace(made, **more)


def climb_of(peaks: Peaks | GpuPeaks, *rungs: RungResult, **more: Any) -> Climb:
    made = Climb(
        ladder="mine", title="sums of rows", size={"M": 64, "N": 64}, flop=1e6, bytes=1e4, lessons="src/lessons.hpp",
        date="2026-01-01T00:00:00", commit="", versions={"torch": "2.13.0"}, peaks=peaks, rungs=rungs,
        notes=("tuned does not run here",), seconds=1.0,
    )  # fmt: skip
    return dataclasses.replace(made, **more)


def on_cpu(peaks: Peaks) -> Climb:
    """A slow rung timed on some rows, one that is wrong, one of several threads."""
    return climb_of(
        peaks,
        rung(1, "Naive", (timed(1.0, 268.0, size={"M": 4, "N": 64}),)),
        rung(2, "Chains", ()),
        rung(3, "Wide", (timed(45.0, 268.0, 10.0), timed(95.0, 530.0, 20.0, threads=2)), gain=4.75),
    )


GPU = GpuPeaks(
    kind="sm_90", name="Invented GPU", fingerprint="", uuid="", driver="1", power_limit_w=700.0, date="2026-01-01",
    multiprocessors=132, l2_bytes=50 << 20, memory_bytes=1 << 37,
    bandwidth=(GpuBandwidth("read", "warm", 1 << 24, 9000.0), GpuBandwidth("read", "cold", 1 << 30, 4500.0)),
    rates=(GpuRate("float32", "multiply-add", 65.0, 65.0), GpuRate("bfloat16", "torch.mm", 800.0, 660.0)),
    functions={}, launch_us=1, isolated_us=1, graph_us=1, host_launch_us=1, dispatch_us=1, round_trip_us=1,
    to_device_gbs=50, to_host_gbs=50, seconds=1,
)  # fmt: skip
TAKEN = {
    "language": "cu", "target": "sm_90a",
    "launch": {"threads": 256, "tile_rows": 128, "tile_columns": 128, "cluster": 2, "blocks": 1024, "workspace": 0},
    "resources": {
        "registers": 121, "local_bytes": 0, "shared_bytes": 36864, "blocks_resident": 2, "warps_resident": 16,
    },
    "instructions": {"HGMMA.64x256x16": 4, "LDS.128": 2, "UTMALDG, elsewhere": 2},
    "counters": {
        "HBM read bytes": 2e8, "HBM written bytes": 3e7, "L2 bytes": 2e9, "shared accesses": 1e6,
        "shared bank conflicts": 1e5, "matrix pipe": 0.8, "L2": 0.4, "resident warps": 0.25, "waiting for wgmma": 0.6,
    },
}  # fmt: skip


def on_gpu() -> Climb:
    """A last rung that is timed at a further size, and that asks something of sizes."""
    whole = {"M": 4096, "N": 4096, "K": 4096}
    own = {"threads": 0, "baselines": {"cuBLAS": 700e3}, "size": whole}
    further = timed(650e3, 800e3, **own | {"size": {"M": 8192, "N": 8192, "K": 8192}, "baselines": {"cuBLAS": 640e3}})
    return climb_of(
        GPU,
        rung(1, "Naive", (timed(5e3, 800e3, **own),), **TAKEN),
        rung(
            3, "Wide", (timed(720e3, 800e3, 200e3, **own), further), gain=3.6, multiples={"M": 128}, skipped=2, **TAKEN
        ),
        device="cuda", arithmetic="bfloat16", size=whole, flop=2.0 * 4096**3, bytes=6.0 * 4096**2,
        baselines={"cuBLAS": "torch.mm(A, B.t(), out=C)"},
    )  # fmt: skip


def on_memory(peaks: Peaks) -> Climb:
    """Rates in GB/s, a format that moves fewer bytes, a rung without a figure because the machine was busy."""
    return climb_of(
        peaks,
        rung(1, "Naive", (timed(10.0, 42.0, baselines={}),), format="bf16", shares={"DRAM": 0.2}, bottleneck="latency"),
        rung(2, "Chains", (), status="ambiguous", reason="the machine was busy", format="bf16"),
        rung(3, "Wide", (timed(40.0, 42.0, 8.0, baselines={"ggml": 30.0}, median_s=1e-5),), format="q8_0", gain=5.0,
             shares={"DRAM": 0.95}, bottleneck="memory DRAM"),
        unit="GB/s", flop=1e6,
    )  # fmt: skip


@pytest.fixture(params=["cpu", "gpu", "memory"])
def record(request: pytest.FixtureRequest, ceilings: Peaks) -> Climb:
    return {"cpu": on_cpu(ceilings), "gpu": on_gpu(), "memory": on_memory(ceilings)}[request.param]


# ---------------------------------------------------------------- what is committed


def test_documents_and_pages_are_made_from_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the report ``python -m kernelworks.climb.command`` writes the documents anew. Pages are as
    ``make site`` makes them: one for each ladder with every rung in it, and nothing beside it. Pictures take most of
    the time: that of many rungs is drawn narrow, where it differs from one of few, and the longest in both widths."""
    worklogs: dict[Path, str] = {}
    longest = max(len(from_json(Climb, path.read_text(encoding="utf-8")).rungs) for path in RECORDS)

    def made(record: Climb, ladder: Ladder, folder: Path) -> tuple[str, str]:
        count = len(record.rungs)
        width = NARROW_INCHES if count > FEW_RUNGS else WIDE_INCHES
        with monkeypatch.context() as patch:
            if count < longest:
                patch.setattr(climb_page, "figure_both", lambda draw: draw(width))
            both = documents(record, ladder, folder)
        worklogs[folder] = both[0]
        return both

    monkeypatch.setattr(command, "documents", made)
    pages = write_pages(LADDERS, tmp_path)
    assert [page.parent.relative_to(tmp_path) for page in pages] == [x.parent.relative_to(LADDERS) for x in RECORDS]
    for page, path in zip(pages, RECORDS, strict=True):
        assert (path.parent / "worklog.md").read_text(encoding="utf-8") == worklogs[path.parent]
        text, record = page.read_text(encoding="utf-8"), from_json(Climb, path.read_text(encoding="utf-8"))
        assert page.name == f"{record.ladder}.html" and "https:" not in text
        assert all(f'id="rung-{one.number}"' in text for one in record.rungs)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(pages)


# ---------------------------------------------------------------- all three ways of showing it


def test_everything_is_in_the_table(record: Climb) -> None:
    text = " ".join(printed(terminal.table(record), 170).split())
    for one in record.rungs:
        assert one.title in text and (one.status in text or one.times)
    assert f" {climb_words.unit_of(record).name} " in text
    lines = "\n".join(terminal.line(one, record.unit).plain for one in record.rungs)
    assert "predicted 4.00x" in lines


def test_a_worklog_reads_as_a_document(record: Climb) -> None:
    text = worklog(record, SOURCES)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    for one in record.rungs:
        assert f"## {one.number}. {one.title}" in text and one.hypothesis in text
        assert f"[{one.file}]({one.file})" in text
    order = [
        text.index(f"**{word}", text.index("## 3. ")) for word in ("Hypothesis", "Predicted", "Outcome", "Evidence")
    ]
    assert order == sorted(order) and text.count("**Predicted**") == len(record.rungs) - 1
    assert "../deep/01_naive.cpp" in worklog(record, SOURCES, "../deep") and "(../../src/lessons.hpp)" in text
    anchors = re.findall(r"\(#([^)]*)\)", text)
    headings = [re.sub(r"[^\w\- ]", "", x.lower()).replace(" ", "-") for x in re.findall(r"^## (.*)$", text, re.M)]
    assert len(anchors) == len(record.rungs) and set(anchors) <= set(headings)


def test_a_page_holds_what_the_worklog_does(record: Climb) -> None:
    text = climb_page.page(record, SOURCES)
    assert "https:" not in text and text.count("<svg") == 4  # each for wide windows and for narrow ones
    for one in record.rungs:
        assert one.hypothesis in text and f'id="rung-{one.number}"' in text
        assert (f"{one.number} {one.title}:" in text) == bool(one.times)  # its dot's tooltip
    assert 'class="line gone"' in text and 'class="line come"' in text and "spread" in text


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page(record: Climb, width: int, tmp_path: Path) -> None:
    if without_browser():
        return
    found, messages = opened(climb_page.page(record, SOURCES), tmp_path, width)
    assert found["scrolling"] == 0
    assert (messages, found["overlaps"]) == ([], []) and found["wide"] <= 0
    assert min(found["svgs"]) > 200


def test_one_rung_alone_and_none_at_all_are_shown(record: Climb) -> None:
    last, empty = (
        record.rungs[-1],
        dataclasses.replace(record.rungs[-1], times=(), status="not run", reason="no such CPU"),
    )
    for one, words in ((last, "Rung 3 alone"), (empty, "No rung has a figure")):
        alone = dataclasses.replace(record, rungs=(one,))
        assert words in worklog(alone, SOURCES) and words in climb_page.page(alone, SOURCES)
        assert one.title in printed(terminal.table(alone), 170) and stairs(alone) == ""


# ---------------------------------------------------------------- honest words


def test_a_slow_rung_says_that_it_was_timed_on_a_part(ceilings: Peaks) -> None:
    record = on_cpu(ceilings)
    few = "M = 4 of 64"
    assert few in worklog(record, SOURCES) and few in climb_page.page(record, SOURCES)
    assert few in " ".join(printed(terminal.table(record), 200).split())
    assert climb_words.spread(record.rungs[0].times[0]) == "4%"


def test_a_wrong_rung_has_a_reason_and_no_figure(ceilings: Peaks) -> None:
    record = on_cpu(ceilings)
    wrong = record.rungs[1]
    said = climb_words.outcome(record, wrong)
    assert wrong.reason in said and "no figure" in said and "GFLOP/s" not in said
    assert any("Wrong" in sentence and "2 (Chains)" in sentence for sentence in climb_words.totals(record))


@pytest.mark.parametrize(
    ("gain", "words"),
    [(4.3, "as predicted"), (8.0, "more than predicted"), (3.0, "less than predicted"), (0.95, "slower than the rung")],
)
def test_a_missed_prediction_is_said_to_be_one(ceilings: Peaks, gain: float, words: str) -> None:
    record = on_cpu(ceilings)
    last = dataclasses.replace(record.rungs[2], gain=gain)
    assert words in climb_words.outcome(record, last)
    tried = climb_words.predictions(dataclasses.replace(record, rungs=(*record.rungs[:2], last)))
    assert ("Missed" in tried) == (words != "as predicted") and tried.startswith("1" if gain == 4.3 else "0")


def test_a_rung_that_was_not_run_says_why(ceilings: Peaks) -> None:
    record = on_cpu(ceilings)
    missing = dataclasses.replace(record.rungs[1], status="not run", reason="this machine has no avx512f")
    said = climb_words.totals(dataclasses.replace(record, rungs=(record.rungs[0], missing, record.rungs[2])))
    assert said[-1] == "No figure for rung 2 (Chains): this machine has no avx512f."


def test_a_small_gain_is_not_met_by_a_loss(ceilings: Peaks) -> None:
    last = on_cpu(ceilings).rungs[2]
    verdicts = {
        gain: climb_words.verdict(dataclasses.replace(last, predicted=1.05, gain=gain)) for gain in (0.99, 1.06)
    }
    assert verdicts == {0.99: "less than predicted", 1.06: "as predicted"}


def test_a_rough_rate_is_said_to_be_one(ceilings: Peaks) -> None:
    record = on_cpu(ceilings)
    rough = dataclasses.replace(record.rungs[2].times[1], high_s=1.0)
    last = dataclasses.replace(record.rungs[2], times=(record.rungs[2].times[0], rough))
    record = dataclasses.replace(record, rungs=(*record.rungs[:2], last))
    assert "about 95.0 GFLOP/s at 2 threads" in climb_words.headline(record)
    assert "with care" in climb_words.outcome(record, last) and "| ~95.0 |" in worklog(record, SOURCES)


def test_every_size_and_their_mean_are_reported() -> None:
    said = climb_words.totals(on_gpu())
    assert "720 TFLOP/s" in said[0] and "1.029x cuBLAS" in said[0] and "90% of the peak" in said[0]
    assert "8192" in said[1] and "1.016x cuBLAS" in said[1]
    assert "Over these 2 sizes the geometric mean is 1.022x cuBLAS, the least 1.016x" in said[2]
    text = worklog(on_gpu(), SOURCES)
    assert "| geometric mean |" in text and "a multiple of 128; 2 sizes of the verification" in text
    assert "torch.mm(A, B.t(), out=C)" in text and "658" not in text and "660 TFLOP/s after a second" in text


def test_a_format_that_moves_fewer_bytes_lies_further_right(ceilings: Peaks) -> None:
    record = on_memory(ceilings)
    assert "as bf16 or 0.400 MB as q8_0" in climb_words.limit(record)
    assert "flop per byte of memory" in roofline(record) and "% of the peak" in stairs(record)


# ---------------------------------------------------------------- evidence


def test_what_a_block_takes_is_told_in_words() -> None:
    one = on_gpu().rungs[0]
    said = climb_evidence.resources(one)
    assert "256 threads with 121 registers each and 36 KiB of shared memory" in said and "clusters of 2" in said
    assert "holds 2 at a time, 16 warps of 64 (25%); for more it lacks registers." in said and "Nothing spills" in said
    spilled = dataclasses.replace(one, resources=one.resources | {"local_bytes": 16})
    assert "16 bytes a thread spill" in climb_evidence.resources(spilled)


def test_instructions_and_counters_say_what_they_mean() -> None:
    record = on_gpu()
    one = record.rungs[0]
    assert climb_evidence.loop(one).endswith("4 HGMMA.64x256x16, 2 LDS.128; outside of it 2 UTMALDG")
    assert climb_evidence.meaning("LDS.128").endswith("16 bytes a thread")
    counted = dict(climb_evidence.counters(record, one))
    assert counted["moved through L2"] == "2.00 GB: 68.7 flop for each byte"
    assert counted["accesses of shared memory"] == "1,000,000, 10% of them for bank conflicts"
    assert counted["how busy the units were"] == "matrix units 80%, L2 40%"
    assert counted["what warps spend their cycles on"] == "waiting for wgmma 60%"


def test_a_long_loop_is_counted_and_not_dumped(ceilings: Peaks) -> None:
    one = on_cpu(ceilings).rungs[0]
    long = dataclasses.replace(one, assembly=one.assembly * 20)
    assert len(climb_evidence.excerpt(long)) == 13 and climb_evidence.excerpt(one) == list(one.assembly)
    assert climb_evidence.loop(long) == "60 instructions: 20 vmovups ymm, 20 vfmadd231ps ymm"


# ---------------------------------------------------------------- what changed in the code


def test_indentation_and_moves_are_no_changes() -> None:
    assert changes("a1\n  b\nccc\n", "b\nccc\n") == [Line("+", "a1"), Line(" ", "  b"), Line(" ", "ccc")]
    one, other = "for (int i = 0; i < count; ++i) total += i;\n", "call_with_a_long_name();\n"
    assert {x.mark for x in changes(one + other, other + one)} == {" "}


def test_what_is_gone_is_shown() -> None:
    found = changes("keep();\nnew_call(1);\n}\n", "keep();\nold_call(2);\n}\n")
    assert [x.mark for x in found] == [" ", "-", "+", " "]
    assert not rewritten(found) and rewritten(changes("one();\ntwo();\n", "other();\n"))


def test_hunks_name_the_function_that_they_lie_in() -> None:
    before = "static void pack(int n) {\n" + "".join(f"    step({i});\n" for i in range(9)) + "}\n"
    (name, run), *others = hunks(changes(before.replace("step(7)", "other(7)"), before))
    assert name == "pack" and [x.mark for x in run] == [" ", " ", "-", "+", " ", " "] and not others
