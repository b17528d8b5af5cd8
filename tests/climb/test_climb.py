"""Ladders: what is committed comes from the rungs that are committed, and the machinery tells right from wrong."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kernelworks.build.code_listing import parse_listing
from kernelworks.cli import app
from kernelworks.climb.assembly import _loops
from kernelworks.climb.climber import unmeasured_result
from kernelworks.climb.command import rewrite_documents
from kernelworks.climb.compilation import compile_rung
from kernelworks.climb.counters import METRICS, read_counters
from kernelworks.climb.driver import SILENT_S, climb
from kernelworks.climb.journey import journey
from kernelworks.climb.ladder import Ladder, Launch, Rung, ladder_named, rung_of
from kernelworks.climb.residency import resident_blocks
from kernelworks.climb.sass import loops
from kernelworks.climb.template import FILES, start
from kernelworks.machine import has_gpu
from kernelworks.records import Peaks, from_json, to_json
from kernelworks.records.climb import Climb, RungTime
from kernelworks.report.climb import page as climb_page
from kernelworks.report.climb import tile as climb_tile
from kernelworks.report.climb.worklog import worklog

LADDERS = Path(__file__).resolve().parents[2] / "ladders"
ON_GPU = sorted({path.parent.name for path in LADDERS.glob("*/*.cu") if (path.parent / "problem.py").is_file()})
NAMES = sorted(path.parent.name for path in LADDERS.glob("*/problem.py"))
ON_RECORD = [name for name in NAMES if (LADDERS / name / "results.json").is_file()]


def sources(ladder: Ladder) -> dict[str, str]:
    return {rung.path.name: rung.code() for rung in ladder.rungs}


# ---------------------------------------------------------------- what is committed


@pytest.mark.parametrize("name", ON_RECORD)
def test_the_results_are_those_of_these_rungs(name: str) -> None:
    ladder = ladder_named(str(LADDERS / name))
    record = from_json(Climb, (ladder.folder / "results.json").read_text(encoding="utf-8"))
    assert record.problem == ladder.sha256() and record.size == ladder.problem.size
    assert (record.device, record.unit) == (ladder.problem.device, ladder.problem.unit)
    assert {r.file: r.sha256 for r in record.rungs} == {r.path.name: r.sha256() for r in ladder.rungs}
    assert all(bool(r.times) == (r.status == "verified") for r in record.rungs)
    assert [r.predicted for r in record.rungs] == [r.predicts for r in ladder.rungs]


@pytest.mark.parametrize("name", NAMES)
def test_the_rungs_are_numbered_and_short(name: str) -> None:
    ladder = ladder_named(str(LADDERS / name))
    assert [r.number for r in ladder.rungs] == list(range(1, len(ladder.rungs) + 1))
    assert all(r.text().count("\n") <= 250 for r in ladder.rungs)
    assert [r.predicts is None for r in ladder.rungs] == [True] + [False] * (len(ladder.rungs) - 1)
    assert (LADDERS.parent / ladder.problem.lessons).is_file()  # the library's file that took the ideas over


# ---------------------------------------------------------------- the machinery


@pytest.fixture
def own(tmp_path: Path, quick_processes: None) -> Ladder:
    """The template as a user gets it."""
    start("mine", tmp_path)
    return ladder_named(str(tmp_path / "mine"))


def test_a_climb_verifies_and_times_every_rung(own: Ladder, ceilings: Peaks) -> None:
    record = climb(own, size={"M": 8, "N": 64}, known=ceilings, budget_s=0.01, watch=False)
    assert [r.status for r in record.rungs] == ["verified", "verified"], [r.reason for r in record.rungs]
    first, second = record.rungs
    assert first.gain is None and second.gain and second.times[0].before
    assert 0 <= (second.worst or 0) <= 1 and second.times[0].baselines["torch"] > 0
    assert from_json(Climb, to_json(record)) == record
    page = climb_page.page(record, sources(own))
    assert "Four independent accumulators" in page and 'class="line come"' in page and "https:" not in page
    assert "Predicted 4.00x" in worklog(record, sources(own))


def test_a_rung_that_came_after_the_climb_has_no_figure(own: Ladder, ceilings: Peaks) -> None:
    record = climb(own, 1, size={"M": 8, "N": 64}, known=ceilings, budget_s=0.01, watch=False)
    (own.folder / "results.json").write_text(to_json(record), encoding="utf-8")
    rewrite_documents(own.folder.parent)
    first, second = from_json(Climb, (own.folder / "results.json").read_text(encoding="utf-8")).rungs
    assert first == record.rungs[0] and (second.number, second.status, second.times) == (2, "not run", ())
    assert "written after this climb" in (own.folder / "worklog.md").read_text(encoding="utf-8")


WRONG = {
    "leaves the last element out": ("n < N; n += 4", "n < N - 1; n += 4"),
    "writes past the end": ("y[m] = (sum[0]", "y[m + 1] = 0, y[m] = (sum[0]"),
    "changes its input": ("y[m] = (sum[0]", "const_cast<float*>(x)[m] = 7, y[m] = (sum[0]"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_rung_gets_no_figure(own: Ladder, ceilings: Peaks, fault: str) -> None:
    path = own.rungs[1].path
    was, is_now = WRONG[fault]
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, is_now), encoding="utf-8")
    record = climb(ladder_named(str(own.folder)), 2, size={"M": 8, "N": 64}, known=ceilings, watch=False)
    (rung,) = record.rungs
    assert rung.status == "wrong" and rung.reason and not rung.times and rung.gain is None
    assert "**wrong**" in worklog(record, sources(own))


def test_a_rung_that_does_not_compile_says_so(own: Ladder, ceilings: Peaks) -> None:
    path = own.rungs[0].path
    path.write_text(path.read_text().replace("float sum = 0;", "flote sum = 0;"), encoding="utf-8")
    record = climb(ladder_named(str(own.folder)), 1, size={"M": 8, "N": 64}, known=ceilings, watch=False)
    assert record.rungs[0].status == "not run" and "flote" in record.rungs[0].reason


CRASHES = {
    "raise(SIGSEGV);": "crashed with signal 11 (SIGSEGV)",
    "exit(5);": "ended its process with code 5",
}


@pytest.mark.parametrize("fault", CRASHES)
def test_a_rung_that_crashes_is_wrong_and_the_climb_goes_on(own: Ladder, ceilings: Peaks, fault: str) -> None:
    path = own.rungs[0].path
    text = path.read_text().replace("float sum = 0;", f"if (M == 3) {fault}\n        float sum = 0;")
    path.write_text(text.replace("#include", "#include <csignal>\n#include <cstdlib>\n#include", 1), encoding="utf-8")
    record = climb(
        ladder_named(str(own.folder)), size={"M": 8, "N": 64}, known=ceilings, budget_s=0.01, watch=False
    )  # fmt: skip
    first, second = record.rungs
    assert (first.status, first.reason, first.times) == ("wrong", CRASHES[fault], ())
    assert second.status == "verified" and second.times and second.gain is None


def test_a_rung_that_hangs_is_wrong(own: Ladder, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SILENT_S, "cpu", 8.0)
    path = own.rungs[1].path
    path.write_text(
        path.read_text().replace("    for (", '    for (;;) asm volatile("");\n    for (', 1), encoding="utf-8"
    )
    record = climb(ladder_named(str(own.folder)), 2, size={"M": 8, "N": 64}, known=ceilings, watch=False)
    assert [(r.status, r.reason) for r in record.rungs] == [("wrong", "did not come back within 8 s")]


def test_a_result_that_changes_is_a_data_race(own: Ladder, ceilings: Peaks) -> None:
    path = own.rungs[1].path
    text = path.read_text().replace(
        "y[m] = (sum[0]", "static int calls; y[m] = (calls++ % 2 ? 1.0000002f : 1) * ((sum[0]"
    )
    path.write_text(text.replace("sum[3]);", "sum[3]));"), encoding="utf-8")
    record = climb(ladder_named(str(own.folder)), 2, size={"M": 8, "N": 64}, known=ceilings, watch=False)
    assert record.rungs[0].status == "wrong" and "two different results" in record.rungs[0].reason


HALVES = """
from kernelworks.climb.problem import Format

halves = Format(
    encode=lambda given: {"x": given["x"].half()},
    exact=lambda received: {"x": received["x"].double()},
    bytes=lambda size: 2.0 * size["M"] * size["N"] + 4.0 * size["M"],
    baselines={"torch in halves": lambda given, threads: lambda: given["x"].float().square().sum(1)},
)
PROBLEM = dataclasses.replace(PROBLEM, unit="GB/s", formats={"half": halves}, also=({"M": 5, "N": 32},))
"""


def test_a_rung_may_take_its_inputs_in_another_format(own: Ladder, ceilings: Peaks) -> None:
    problem, rung = own.folder / "problem.py", own.rungs[1].path
    problem.write_text(problem.read_text().replace("import ctypes", "import ctypes\nimport dataclasses") + HALVES)
    text = rung.read_text().replace("// next:", "// format: half\n// multiples: N 4\n// next:")
    rung.write_text(text.replace("const float* x", "const _Float16* x").replace("x[m", "(float)x[m"))
    ladder = ladder_named(str(own.folder))
    record = climb(ladder, known=ceilings, budget_s=0.01, watch=False)
    first, second = record.rungs
    assert [r.status for r in record.rungs] == ["verified", "verified"], [r.reason for r in record.rungs]
    assert (record.unit, first.format, second.format, second.skipped) == ("GB/s", "", "half", 3)
    assert [t.size for t in second.times] == [ladder.problem.size, {"M": 5, "N": 32}] and len(first.times) == 1
    here = second.times[0]
    assert here.rate == pytest.approx((2 * 256 * 4096 + 4 * 256) / here.median_s / 1e9)
    assert list(here.baselines) == ["torch in halves"] and second.gain == pytest.approx(here.rate / (here.before or 0))


def test_headers_must_say_what_they_test(own: Ladder) -> None:
    path = own.rungs[0].path
    path.write_text(path.read_text().replace("// next:", "// after:"), encoding="utf-8")
    with pytest.raises(ValueError, match="header must give"):
        rung_of(path)


def test_the_inner_loop_is_the_one_with_the_arithmetic() -> None:
    lines = [
        ("10", "vmovups zmm0,ZMMWORD PTR [rsi]"),
        ("14", "vfmadd231ps zmm1,zmm0,zmm2"),
        ("18", "jne    10 <sgemm+0x10>"),
        ("1c", "add    rax,0x1"),
        ("20", "jne    1c <sgemm+0x1c>"),
    ]
    (work, _, body), other = _loops(parse_listing("\n".join(f"{at}:\t{text}" for at, text in lines)))
    assert (work, len(body), other[0]) == (16.0, 3, 0.0)


# ---------------------------------------------------------------- GPUs, as far as it goes without one

CUDA = [rung for name in ON_GPU for rung in ladder_named(str(LADDERS / name)).rungs]


EVERY = 8  # of the rungs that ran on a GPU as they stand


@functools.cache
def climbed(folder: Path) -> dict[str, str]:
    """By file, the hashes of the rungs that a record says were verified."""
    record = from_json(Climb, (folder / "results.json").read_text(encoding="utf-8"))
    return {rung.file: rung.sha256 for rung in record.rungs if rung.status == "verified"}


@pytest.mark.parametrize("rung", CUDA, ids=lambda rung: f"{rung.path.parent.name}-{rung.path.stem}")
def test_a_rung_compiles_and_can_be_launched(rung: Rung, request: pytest.FixtureRequest) -> None:
    """Every rung that no record speaks for, or with ``--all``; of the others some."""
    ladder = ladder_named(str(rung.path.parent))
    ran = climbed(rung.path.parent).get(rung.path.name) == rung.sha256()
    if ran and rung.number % EVERY and not request.config.getoption("--all"):
        return
    found = compile_rung(ladder, rung)
    assert not found.error
    assert rung.launch is not None and rung.launch.threads % 32 == 0 and rung.launch.threads <= 1024
    assert resident_blocks(rung.launch.threads, found.resources["registers"], found.resources["shared_bytes"]) >= 1
    inputs = ladder.problem.inputs(ladder.problem.verification_sizes[0], torch.Generator())
    assert rung.maps.keys() <= {*inputs, ladder.problem.output}
    assert all(rung.takes(size) for size in (ladder.problem.size,))
    assert any(rung.takes(size) for size in ladder.problem.verification_sizes)
    assert found.loop and found.instructions


def test_the_grid_covers_the_output() -> None:
    shape = (300, 520)
    assert Launch(256, (128, 128)).blocks(shape, 132) == (5, 3, 1)
    assert Launch(256, (128, 128), cluster=2).blocks(shape, 132) == (6, 3, 1)
    assert Launch(256, (128, 128), grid="tiles").blocks(shape, 132) == (15, 1, 1)
    assert Launch(256, (128, 128), cluster=2, grid="multiprocessors").blocks(shape, 132) == (16, 1, 1)
    assert Launch(256, (1, 8), cluster=4, grid="multiprocessors").blocks(shape, 134) == (132, 1, 1)
    assert Launch(256, (64, 1), grid="tiles").blocks((1000,), 132) == (16, 1, 1)
    assert Launch(256, (64, 1), grid="multiprocessors", each=2).blocks((1 << 20,), 132) == (264, 1, 1)
    assert Launch(256, (4, 8)).blocks((2, 3, 16), 132) == (2, 2, 1)


def test_a_launch_must_mean_something(tmp_path: Path) -> None:
    folder = start("mine", tmp_path, "cuda")
    path = folder / "01_naive.cu"
    for wrong in ("threads 256", "threads 256, tile 64", "threads 256, tile 1 x 1, grid wide", "threads = 256"):
        path.write_text(re.sub("// launch: .*", f"// launch: {wrong}", path.read_text()))
        with pytest.raises(ValueError, match="01_naive"):
            rung_of(path)


def test_what_spills_is_said(tmp_path: Path) -> None:
    folder = start("mine", tmp_path, "cuda")
    path = folder / "01_naive.cu"
    kept = "float kept[64]; for (int i = 0; i < 64; ++i) kept[i] = x[i]; float sum = kept[N % 64];"
    path.write_text(path.read_text().replace("float sum = 0;", kept))
    ladder = ladder_named(str(folder))
    assert "local memory" in compile_rung(ladder, ladder.rungs[0]).error
    path.write_text(path.read_text().replace("// hypothesis", "// spills: 256\n// hypothesis"))
    ladder = ladder_named(str(folder))
    assert compile_rung(ladder, ladder.rungs[0]).error == ""


def test_the_hot_loop_is_the_dense_one() -> None:
    text = ("S2R R0", "LDG.E.128 R4, desc", "FFMA R1", "FFMA R2", "@!P0 BRA 0x10", "FFMA R1", "IADD R2", "IADD R2",
            "@P1 BRA 0x50", "SYNCS.TRYWAIT P0", "@!P0 BRA 0x90", "BRA 0x10")  # fmt: skip
    best, others = loops([(16 * i, line) for i, line in enumerate(text)])
    assert [line for _, line in best] == list(text[1:5]) and [len(loop) for loop in others] == [4, 2]
    text = ("UBLKCP [UR4]", "@P0 BRA 0x0", "LDG.E.64 R2, desc", "FADD R1", "@P0 BRA 0x20", "LDG.E R2, desc", "FADD R1",
            "FADD R1", "FADD R1", "@P0 BRA 0x50")  # fmt: skip
    lines = [(16 * i, line) for i, line in enumerate(text)]
    assert loops(lines)[0] == lines[5:] and loops(lines, moving=True)[0] == lines[2:5]


def test_counters_become_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = ladder_named(str(start("mine", tmp_path, "cuda")))
    time = RungTime(0, ladder.problem.size, 1e-3, 1e-3, 1e-3, 12, 100.0, 4000.0, {}, None, 0)
    blank = [unmeasured_result(rung, "verified", "") for rung in ladder.rungs]
    results = [blank[0], dataclasses.replace(blank[1], times=(time,), resources={"shared_bytes": 64})]
    table = {"seconds": "1,000", "L1 and shared memory": "75", "issuing": "1", "waiting for global memory": "3"}
    lines = (["Kernel Name", *(METRICS[name] for name in table)], ["", "ns", "%", "", ""], ["k", *table.values()])
    done = subprocess.CompletedProcess([], 0, "\n".join(",".join(f'"{x}"' for x in line) for line in lines), "")
    monkeypatch.setattr("shutil.which", lambda name: "/ncu")
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: done)
    (first, second), why = read_counters(ladder, ladder.problem.size, results)
    assert not why and not first.counters
    assert second.counters == pytest.approx(
        {"seconds": 1e-6, "L1 and shared memory": 0.75, "issuing": 0.25, "waiting for global memory": 0.75}
    )
    assert second.shares == {"shared": 0.75} and second.bottleneck == "memory shared"
    done.stdout, done.stderr = "", "==ERROR== ERR_NVGPUCTRPERM - no permission"
    found, why = read_counters(ladder, ladder.problem.size, results)
    assert found == results and "ERR_NVGPUCTRPERM" in why


def test_without_a_gpu_a_climb_of_one_says_so(tmp_path: Path) -> None:
    if has_gpu():
        return
    done = CliRunner().invoke(app, ["climb", str(start("mine", tmp_path, "cuda"))])
    assert done.exit_code == 2 and "needs a CUDA GPU" in done.stderr


@pytest.mark.parametrize("change", [("n < N;", "n < N - 1;"), ("y[m] =", "y[m + (1ll << 40)] =")])
def test_on_a_gpu_right_is_timed_and_wrong_is_not(tmp_path: Path, change: tuple[str, str]) -> None:
    if not has_gpu():
        return
    path = start("mine", tmp_path, "cuda") / "02_warp_a_row.cu"
    path.write_text(path.read_text().replace(*change))
    record = climb(ladder_named(str(path.parent)), budget_s=0.05)
    assert [r.status for r in record.rungs] == ["verified", "wrong"] and record.rungs[0].times


# ---------------------------------------------------------------- one tile's journey


def test_the_journey_counts_what_the_loops_do() -> None:
    record = journey((8, 16, 8), (2, 4), (4, 8))
    counted = dict.fromkeys((move.what for move in record.moves), 0)
    for _ in range(2 * 2):  # blocks of B: 16 / 8 of columns, 8 / 4 of k
        counted["a block of B"] += 1
        for _ in range(4):  # panels of A
            counted["a panel of A"] += 1
            for _ in range(2):  # tiles of the block
                counted["a panel of B"] += 1
                for _ in range(4):
                    counted["a step of A"] += 1
                    counted["a step of B"] += 1
                counted["a tile of C, and back"] += 2
    assert {move.what: move.trips for move in record.moves} == counted
    assert all(move.bytes == 4 * move.shape[0] * move.shape[1] for move in record.moves)
    assert "<svg" in climb_tile.page(record)


def test_a_journey_of_parts_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples"):
        journey((10, 16, 8), (4, 4), (4, 8))


# ---------------------------------------------------------------- the command


def test_the_command_lists_and_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["climb", "new", "mine"]).exit_code == 0
    assert {p.name for p in (tmp_path / "ladders" / "mine").iterdir()} == set(FILES["cpu"])
    listed = CliRunner().invoke(app, ["climb", "--list"])
    assert "cpu-sgemm" in listed.stdout and "mine" in listed.stdout and "Stream-K: equal shares" in listed.stdout
    assert CliRunner().invoke(app, ["climb", "new", "mine"]).exit_code == 2
    assert CliRunner().invoke(app, ["climb", "new", "gpu", "--device", "cuda"]).exit_code == 0
    checked = CliRunner().invoke(app, ["climb", "gpu", "--check"])
    assert checked.exit_code == 0 and "registers" in checked.stdout and "LDG" in checked.stdout
    assert CliRunner().invoke(app, ["climb", "nowhere"]).exit_code == 2
    assert "flop for each byte" in CliRunner().invoke(app, ["climb", "tile", "--out", str(tmp_path)]).stdout
