"""Exports of Nsight Systems and Nsight Compute: databases, reports and pages, whole and strange."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_traces import written

from kernelworks.diagnose.foreign_trace import diagnose_trace
from kernelworks.profile.foreign import sums
from kernelworks.profile.foreign.events import TraceError

TRACES = Path(__file__).parent / "traces"


@pytest.mark.parametrize("page", ["details", "raw"])
def test_both_pages_of_nsight_compute(page: str) -> None:
    found = diagnose_trace(TRACES / f"ncu_{page}.csv")
    assert found.format == "Nsight Compute" and found.events == 5 and found.time_breakdown == {}
    assert len(found.kernels) == 4 and found.wall_s == pytest.approx(88.3e-6, rel=0.01)
    first = found.kernels[0]
    assert (
        "xmma_gemm" in first.name
        and first.bottleneck == "memory L1"
        and first.achieved == pytest.approx(0.87, abs=0.02)
    )
    assert "below the roofline, cause unknown" in {kernel.bottleneck for kernel in found.kernels}
    assert any("time between kernels" in line for line in found.unknown)


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("1,234.5", 1234.5), ("1.234,5", 1234.5), ("9,00", 9.0), ("1,234", 1234.0), ("3,164,062,500", 3164062500.0),
        ("12", 12.0), (" 7 ", 7.0), ("n/a", None), ("", None), (None, None), ("1e400", None), ("nan", None),
        ("-", None), ("1\u202f234,5", 1234.5),
    ],
)  # fmt: skip
def test_figures_as_tools_print_them(printed: str | None, value: float | None) -> None:
    assert sums.figure(printed) == value


def test_a_kernel_that_took_no_time(tmp_path: Path) -> None:
    head = '"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"'
    found = diagnose_trace(written(tmp_path, f'{head}\n"","","ns","%"\n"0","k","0","50"\n', "it.csv"))
    assert found.kernels[0].seconds == 0 and found.kernels[0].achieved is None


SUMMARY = (
    "Generating SQLite file x.sqlite from x.nsys-rep\nProcessing [x.sqlite] with [cuda_gpu_kern_sum.py]... \n\n"
    '"Time (%)","Total Time (ns)","Instances","Avg (ns)","Med (ns)","Min (ns)","Max (ns)","StdDev (ns)","Name"\n'
    '60.0,"6,000",3,2000.0,2000.0,1,1,0.0,"void gemm<float>(float*, int)"\n40.0,4000,2,2000,2000,1,1,0,other\n'
)
MEMORY = (
    '\n"Time (%)","Total Time (ns)","Count","Avg (ns)","Operation"\n100.0,500,1,500.0,[CUDA memcpy Host-to-Device]\n'
)
API = '\n"Time (%)","Total Time (ns)","Num Calls","Avg (ns)","Name"\n100.0,900,5,180,cudaLaunchKernel\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_summaries_of_nsight_systems(encoding: str, end: str, tmp_path: Path) -> None:
    body = (SUMMARY + API + MEMORY).replace("\n", end)
    found = diagnose_trace(written(tmp_path, body.encode(encoding), "it.csv"))
    assert [(k.name, k.runs) for k in found.kernels] == [("gemm", 3), ("other", 2), ("[CUDA memcpy Host-to-Device]", 1)]
    assert found.wall_s == pytest.approx(10.5e-6) and found.time_breakdown == {}
    old = SUMMARY.replace('"Time (%)"', '"Time(%)"')
    assert diagnose_trace(written(tmp_path, old, "old.csv")).events == 5


def test_the_timeline_of_nsight_systems(tmp_path: Path) -> None:
    rows = ["100,30,11,NVIDIA A100 (0),1,7,void gemm<float>()", "150,50,12,NVIDIA A100 (0),1,7,[CUDA memcpy HtoD]"]
    body = "\n".join(["Start (ns),Duration (ns),CorrId,Device,Ctx,Strm,Name", *rows, "x,y,,,,,k", "1,2"])
    found = diagnose_trace(written(tmp_path, body, "it.csv"))
    assert found.devices == ("NVIDIA A100 (0)",) and found.skipped == 1
    assert found.time_breakdown == {
        "kernels": pytest.approx(30e-9), "copies, not overlapped": pytest.approx(50e-9),
        "GPU idle: Python and framework": pytest.approx(20e-9),
    }  # fmt: skip
    assert any("no launches" in line for line in found.unknown)


def database(path: Path, change: Callable[[sqlite3.Connection], Any] = lambda d: None) -> Path:
    """An export of ``nsys export --type sqlite``, with the columns that are read and some more."""
    made_of = sqlite3.connect(path)
    made_of.executescript("""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'void gemm<float>(float*)'), (2, 'gemm'), (3, 'cudaLaunchKernel_v7000'),
            (4, 'cudaStreamSynchronize_v3020');
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
            streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (28000, 40000, 0, 1, 7, 1, 0, 1, 2),
            (45000, 60000, 0, 1, 7, 2, 0, 1, 2);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, copyKind INTEGER, bytes INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (50000, 70000, 0, 8, 3, 2, 100);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
            nameId INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (15000, 25000, 1, 1, 3), (26000, 28000, 1, 2, 3),
            (80000, 90000, 1, 4, 4);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
            globalTid INTEGER);
        INSERT INTO NVTX_EVENTS VALUES (10000, 30000, 59, 'aten::mm, seq = 3, op_id = 7', NULL, 1),
            (0, 100000, 59, 'step', NULL, 1), (5, NULL, 34, 'a mark', NULL, 1);
    """)
    change(made_of)
    made_of.commit()
    made_of.close()
    return path


def test_the_database_of_nsight_systems(tmp_path: Path) -> None:
    found = diagnose_trace(database(tmp_path / "it.sqlite"))
    assert found.format == "Nsight Systems" and found.devices == ("NVIDIA A100",)
    (gemm, *_) = found.hotspots
    assert gemm.op == "mm" and gemm.seconds == pytest.approx(27e-6) and gemm.kernels == ("gemm",)
    assert found.time_breakdown["GPU idle: between queued kernels"] == pytest.approx(5e-6)
    assert found.time_breakdown["GPU idle: synchronization"] == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'"), ""),
        (lambda d: d.execute("UPDATE StringIds SET value = NULL"), ""),
        (lambda d: d.execute("DROP TABLE StringIds"), ""),
        (lambda d: d.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1"), ""),
        (lambda d: d.execute("UPDATE NVTX_EVENTS SET text = x'ff00'"), ""),
        (lambda d: d.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN correlationId"), ""),
        (lambda d: [d.execute(f"DROP TABLE {name}") for name in (
            "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS",
        )], "without CUDA events"),
        (lambda d: d.executescript("""
            DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;
            CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE endless(start, end) AS
                (SELECT 1, 2 UNION ALL SELECT start + 1, end + 1 FROM endless) SELECT * FROM endless;
        """), ""),
    ],
)  # fmt: skip
def test_strange_databases(change: Callable[[sqlite3.Connection], Any], words: str, tmp_path: Path) -> None:
    path = database(tmp_path / "it.sqlite", change)
    if words:
        with pytest.raises(TraceError, match=words):
            diagnose_trace(path)
        return
    found = diagnose_trace(path)
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)


def test_a_database_that_ends_in_the_middle(tmp_path: Path) -> None:
    whole = database(tmp_path / "it.sqlite").read_bytes()
    for share in (0.3, 0.6, 0.9):
        path = written(tmp_path, whole[: int(len(whole) * share)], "cut.sqlite")
        try:
            found = diagnose_trace(path)
        except TraceError as error:
            assert "SQLite" in str(error)
        else:
            assert any("in the middle" in line for line in found.findings)
