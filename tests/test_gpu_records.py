"""What is measured on a GPU, without one: bounds from made-up ceilings, pages, the map, tuning, generated figures."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from kernelworks import ceilings, certificates, readme, tune
from kernelworks import map as kernel_map
from kernelworks.bench import limit, predict
from kernelworks.build import configs as tables
from kernelworks.cli import app
from kernelworks.contract import Request, spec
from kernelworks.dispatch import OPS
from kernelworks.machine import Gpu
from kernelworks.records import (
    Arm,
    BenchResult,
    Candidate,
    Ceilings,
    GpuBandwidth,
    GpuCeilings,
    GpuRate,
    Proof,
    Tuned,
    _alternative,
    from_json,
    to_json,
)
from kernelworks.report import bench as bench_report
from kernelworks.report import gpu as gpu_report
from kernelworks.report import map as map_report
from kernelworks.report import page, plot, roofs
from kernelworks.report import tune as tune_report
from machines import record as cpu_record

MIB = 2**20
KIND = "sm_90-imaginary"


def record(**changes: object) -> GpuCeilings:
    """Round figures of an imaginary GPU: memory reads at 4000 GB/s once 64 MiB move, L2 at 8000."""
    cold = {"read": (1000.0, 4000.0, 4000.0), "write": (1000.0, 4000.0, 4400.0), "copy": (1000.0, 3000.0, 4000.0)}
    base = GpuCeilings(
        kind=KIND, name="Imaginary GPU", fingerprint="f", uuid="u", driver="1.2", power_limit_w=700.0,
        date="2026-01-01T00:00:00+00:00", multiprocessors=100, l2_bytes=50 * MIB, memory_bytes=100 << 30,
        bandwidth=(
            *(
                GpuBandwidth(kind, "cold", size * MIB, gbs)
                for kind, rates in cold.items()
                for size, gbs in zip((1, 64, 1024), rates, strict=True)
            ),
            GpuBandwidth("memcpy", "cold", 1024 * MIB, 4200.0),
            *(GpuBandwidth(kind, "warm", 16 * MIB, 8000.0) for kind in ("read", "write", "copy")),
            GpuBandwidth("read", "warm", 1024 * MIB, 4000.0),
        ),
        rates=(
            GpuRate("float32", "multiply-add", 60.0, 60.0), GpuRate("float32", "torch.mm", 50.0, 50.0),
            GpuRate("bfloat16", "torch.mm", 800.0, 650.0), GpuRate("tf32", "torch.mm", 400.0, 350.0),
        ),
        functions={"exp": 4000.0, "erf": 1000.0},
        launch_us=1.0, isolated_us=3.0, graph_us=0.5, host_launch_us=2.0, dispatch_us=4.0, round_trip_us=10.0,
        to_device_gbs=50.0, to_host_gbs=50.0, seconds=12.0, versions={"torch": "2"},
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def printed(table: RenderableType, width: int = 150) -> str:
    console = Console(width=width, force_terminal=False, no_color=True)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


# ---------------------------------------------------------------- bounds


def test_json_gives_the_record_back() -> None:
    assert from_json(GpuCeilings, to_json(record())) == record()


def test_each_term_names_its_regime_on_a_gpu() -> None:
    here = record()
    reading = ceilings.bound(0, 0, 4e9, math.inf, "bfloat16", 1, here)
    assert reading.seconds == pytest.approx(1e-3)
    assert (reading.regime, reading.level, reading.ceiling) == ("memory HBM", "HBM", "HBM read 4000 GB/s")
    product = ceilings.bound(8e11, 0, 1e6, math.inf, torch.bfloat16, 1, here)
    assert product.seconds == pytest.approx(1e-3) and product.ceiling == "bfloat16 torch.mm 800 TFLOP/s"
    assert ceilings.bound(6e10, 0, 0, 0, "float32", 1, here).terms["compute"] == pytest.approx(1e-3)
    assert ceilings.bound(4e11, 0, 0, 0, "tf32", 1, here).terms["compute"] == pytest.approx(1e-3)
    soft = ceilings.bound(0, 4e9, 1e3, math.inf, "float32", 1, here)
    assert soft.seconds == pytest.approx(1e-3) and soft.regime == "transcendental"
    assert ceilings.bound(0, 1e9, 0, 0, "float32", 1, here, function="erf").terms["transcendental"] == pytest.approx(
        1e-3
    )
    assert ceilings.bound(0, 4e9, 0, 0, "float32", 1, here, function="tanh").terms["transcendental"] == 1e-3
    tiny = ceilings.bound(1, 0, 64, 64, "float32", 1, here, launches=3)
    assert tiny.seconds == pytest.approx(3e-6) and tiny.regime == "launch"


def test_a_copys_rate_depends_on_its_size() -> None:
    """Between the sizes measured in a straight line over the logarithm; of two kinds of copy the faster one."""
    here = record()

    def rate(mib: float) -> float:
        bytes = mib * MIB
        return (
            bytes / ceilings.bound(0, 0, bytes, math.inf, "float32", 1, here, written_bytes=bytes / 2).terms["memory"]
        )

    assert rate(64) == pytest.approx(4200e9)  # the one size of torch's copy holds everywhere
    alone = record(bandwidth=tuple(b for b in here.bandwidth if b.kind != "memcpy"))
    here = alone
    assert rate(64) == pytest.approx(3000e9)
    assert rate(1024) == pytest.approx(4000e9) == pytest.approx(rate(4096))
    assert rate(256) == pytest.approx(3500e9)
    times = [mib / rate(mib) for mib in (0.5, 1, 2, 8, 32, 64, 100, 500, 1024, 3000)]
    assert times == sorted(times), "more bytes never take less time"


def test_reads_beyond_the_written_bytes_go_at_the_read_rate() -> None:
    bytes = 1024 * MIB
    found = ceilings.bound(0, 0, bytes, math.inf, "float32", 1, record(), written_bytes=bytes / 4)
    assert found.terms["memory"] == pytest.approx(bytes / 2 / 4200e9 + bytes / 2 / 4000e9)


@pytest.mark.parametrize(("mib", "level"), [(10, "L2"), (50, "L2"), (60, "L2"), (90, "HBM"), (200, "HBM")])
def test_the_footprint_decides_between_l2_and_memory(mib: int, level: str) -> None:
    found = ceilings.bound(0, 0, 4e9, mib * MIB, "float32", 1, record())
    assert found.level == level
    near, far = 4e9 / 8000e9, 4e9 / 4000e9
    share = min(1.0, max(0.0, mib / 50 - 1))
    assert found.terms["memory"] == pytest.approx(share * far + (1 - share) * near)


def test_traffic_that_l2_served_is_called_so_and_never_over_the_ceiling() -> None:
    here = record()
    far, near = (ceilings.bound(0, 0, 4e9, footprint, "float32", 1, here) for footprint in (math.inf, 0.0))
    for seconds, regime in ((2e-3, "latency"), (1.1e-3, "memory HBM"), (0.95e-3, "memory HBM"), (0.7e-3, "memory L2")):
        found = ceilings.settled(far, near, seconds)
        assert ceilings.regime(found, seconds) == regime
        assert found.seconds <= seconds
    impossible = ceilings.settled(far, near, 1e-6)
    assert impossible.seconds == 1e-6 and impossible.regime == "memory L2"


def rms_norm(*shape: int, device: str = "cuda") -> Request:
    x, weight = (
        torch.empty(shape, dtype=torch.bfloat16, device="meta"),
        torch.empty(shape[-1], dtype=torch.bfloat16, device="meta"),
    )
    named = {"x": spec(x), "weight": spec(weight), "eps": 1e-6, "residual": None}
    on = {n: dataclasses.replace(v, device=device) if hasattr(v, "device") else v for n, v in named.items()}
    return Request("rms_norm", "forward", on)


def test_a_bench_is_held_to_one_launch_between_two_events() -> None:
    large, small = rms_norm(1 << 16, 4096), rms_norm(16, 1024)
    found = limit(OPS["rms_norm"], large, record(), math.inf)
    bare = ceilings.bound(
        0, 0, 2 * (1 << 29) + 4096 * 2, math.inf, "float32", 1, record(), written_bytes=float(1 << 29)
    )  # fmt: skip
    assert found.seconds == pytest.approx(bare.seconds + 3e-6) and found.regime == "memory HBM"
    tiny = limit(OPS["rms_norm"], small, record(), math.inf)
    assert tiny.regime == "launch" and 3e-6 < tiny.seconds < 3.1e-6


def gpu_result(case: str = "8192x4096", **changes: Any) -> BenchResult:
    arms = (
        Arm("kernelworks", 40.0, 39.0, 42.0, 15, 0.9, 0.5, 5.0), Arm("eager", 60.0, 59.0, 61.0, 15, 0.6, 0.5, 9.0),
        Arm("inductor", 38.0, 37.0, 39.0, 15, 0.95, 0.5, 20.0), Arm("copy", 36.0, 35.0, 37.0, 15, 1.0),
    )  # fmt: skip
    base = BenchResult(
        "rms_norm", case, "bfloat16", 2, "cold", 1e8, 1.3e8, 36.0, "memory HBM", arms, "triton", "", 0, device="cuda"
    )
    return dataclasses.replace(base, **changes)


def test_a_prediction_on_a_gpu_comes_from_benches_on_a_gpu() -> None:
    request = rms_norm(8192, 4096)
    assert predict(OPS["rms_norm"], request, "triton", record(), [gpu_result(cache="warm")]) is None
    found = predict(OPS["rms_norm"], request, "triton", record(), [gpu_result()])
    assert found == pytest.approx(limit(OPS["rms_norm"], request, record(), math.inf).seconds / 0.9)


def test_without_a_gpu_no_ceilings_are_cached_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelworks.ceilings.cache.has_gpu", lambda: False)
    assert ceilings.cached("cuda") is None


# ---------------------------------------------------------------- what is shown


def test_the_machine_shows_its_gpu_beside_the_cpu() -> None:
    text = printed(gpu_report.gpu(record(), 150))
    shown = ("Imaginary GPU", "driver 1.2", "700 W", "4200", "800 TFLOP/s", "650 TFLOP/s", "4000 G/s", "1.00 us")
    for expected in (*shown, "ridge points", "50.0 GB/s"):
        assert expected in text, expected
    both = page.machine(cpu_record(), record())
    assert "Imaginary GPU" in both and "Memory pyramid" in both and both.count("<svg") == 4
    assert "<svg" in plot.roofline(record(), 1)
    assert roofs.slopes(record(), 1) == {"L2": 8000.0, "HBM": 4000.0}
    assert [r.dtype for r in roofs.best_flops(record(), 1)] == ["float32", "tf32", "bfloat16"]


def test_roofs_that_nearly_coincide_share_a_label() -> None:
    tops = [roofs.Roof("tf32", "", 4e5), roofs.Roof("float16", "", 7.7e5), roofs.Roof("bfloat16", "", 8e5)]
    assert roofs.labels(tops) == [(4e5, "tf32 400 TFLOP/s"), (8e5, "bfloat16 800 TFLOP/s, float16 770 TFLOP/s")]


def test_a_gpu_bench_shows_the_copy_and_does_not_race_it() -> None:
    text = printed(bench_report.benches([gpu_result()]))
    assert "90%" in text and "0.950x" in text
    best = bench_report.best_baseline(gpu_result())
    assert best is not None and best.name == "inductor"
    assert "5.0, 9.0" in text


# ---------------------------------------------------------------- the map


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Certificates of an imaginary kind of GPU, in a folder of the test's own."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(certificates, "SHIPPED", tmp_path)
    certificates._shipped.cache_clear()
    yield tmp_path
    certificates._shipped.cache_clear()


def certify(source_hash: str) -> None:
    row = OPS["rms_norm"].row("triton")
    held = certificates.Certificate(
        "rms_norm", "triton", source_hash, row.toolchain(), KIND, 10, 0.5, 3, "2026-01-01"
    )  # fmt: skip
    certificates.write_shipped([held], KIND)
    certificates._shipped.cache_clear()


def test_the_map_names_gpu_rows_whose_certificate_is_missing_or_stale(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_map, "has_gpu", lambda: False)
    name = "rms_norm.triton"
    assert f"{name}: not proved on any GPU" in kernel_map.stale("rms_norm")
    certify(OPS["rms_norm"].row("triton").hash())
    assert not [line for line in kernel_map.stale("rms_norm") if line.startswith(name)]
    row = next(r for r in kernel_map.kernel_map("rms_norm")[0].rows if r.name == "triton")
    assert (row.certificate, row.kind, row.reason) == ("2026-01-01", KIND, "")
    assert f"proved 2026-01-01 on {KIND}" in printed(map_report.kernel_map(kernel_map.kernel_map("rms_norm"), "here"))
    certify("another source")
    stale = next(line for line in kernel_map.stale("rms_norm") if line.startswith(name))
    assert "stale certificate: the source changed" in stale and KIND in stale


def test_the_map_lists_what_a_row_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        gpu_result(),
        gpu_result("16x1024", arms=(Arm("kernelworks", 5.0, 5.0, 5.0, 9), Arm("eager", 6.0, 6, 6, 9))),
    ]
    monkeypatch.setattr(kernel_map, "has_gpu", lambda: True)
    monkeypatch.setattr(kernel_map, "kind_of", lambda device: KIND if device == "cuda" else "cpu")
    row = kernel_map._row(OPS["rms_norm"], OPS["rms_norm"].row("triton"), KIND, results)
    assert row.losses == ("8192x4096 bfloat16 (0.95x inductor)",)
    assert row.ratio == pytest.approx((38 / 40 + 6 / 5) / 2)


def test_the_map_says_where_a_tuning_table_takes_another_row() -> None:
    entry = {
        "rows": ["torch"], "machine": KIND, "pass": "backward", "evidence": "12 us, ours 15",
        "when": {"dtype": ["bfloat16"], "M": [33, 2**62], "N": [7, 7]},
    }  # fmt: skip
    words = f"torch first (backward) on {KIND} where dtype bfloat16, M from 33, N 7: 12 us, ours 15"
    assert kernel_map._preference(entry) == words
    op = dataclasses.replace(kernel_map.kernel_map("rms_norm")[0], preferences=(words,))
    assert words in " ".join(printed(map_report.kernel_map([op], "here"), 200).split())


# ---------------------------------------------------------------- tuning


USED, OTHER, THIRD = {"num_warps": 4}, {"num_warps": 8}, {"num_warps": 16}


@pytest.mark.parametrize(
    ("times", "wrong", "chosen"),
    [
        ((10.0, 9.0, 9.5), "", OTHER),
        ((10.0, 9.9, 10.5), "", None),  # within noise of what is used
        ((10.0, 9.0, 9.5), "off", THIRD),  # the fastest is wrong
        ((10.0, 12.0, 11.0), "", None),
    ],
)
def test_the_winner_is_right_and_faster_by_more_than_noise(
    times: tuple[float, ...], wrong: str, chosen: dict[str, int] | None
) -> None:
    first, second, third = times
    candidates = [
        Candidate(USED, 0.5, "", first), Candidate(OTHER, 0.5, wrong, None if wrong else second),
        Candidate(THIRD, 0.5, "", third), Candidate({"num_warps": 32}, None, "OutOfResources", None),
    ]  # fmt: skip
    assert tune.best([candidates], USED) == (chosen or USED)


def test_nothing_is_chosen_where_what_is_used_is_wrong() -> None:
    assert tune.best([[Candidate(USED, 9.0, "off", None), Candidate(OTHER, 0.5, "", 1.0)]], USED) == USED


def test_cases_of_the_same_sizes_share_one_choice() -> None:
    """Few rows and many pick by N alone: what is best for one may not be taken where it costs the other."""
    few = [Candidate(USED, 0.5, "", 5.0), Candidate(OTHER, 0.5, "", 4.0), Candidate(THIRD, 0.5, "", 4.8)]
    many = [Candidate(USED, 0.5, "", 34.0), Candidate(OTHER, 0.5, "", 39.0), Candidate(THIRD, 0.5, "", 33.5)]
    assert tune.best([few], USED) == OTHER
    assert tune.best([few, many], USED) == THIRD
    wrong_there = [*many[:2], Candidate(THIRD, 2.0, "off", None)]
    assert tune.best([few, wrong_there], USED) == USED
    results = [dataclasses.replace(tuned(), case=str(i), candidates=tuple(c)) for i, c in enumerate((few, many))]
    assert [r.chosen for r in tune.settled(results)] == [THIRD, THIRD]
    other = dataclasses.replace(results[1], dims={"N": 7})
    assert [r.chosen for r in tune.settled([results[0], other])] == [OTHER, USED]


def tuned() -> Tuned:
    candidates = (Candidate(USED, 0.5, "", 10.0, 9.9, 10.2), Candidate(OTHER, 0.5, "", 8.0, 7.9, 8.1),
                  Candidate(THIRD, 2.0, "output 0: off", None))  # fmt: skip
    return Tuned("softmax", "triton", "forward", "8192x4096", "bfloat16", {"N": 4096}, candidates, USED, OTHER)


def test_a_tuning_is_shown_with_what_was_wrong() -> None:
    text = printed(tune_report.tuning([tuned()]))
    for expected in ("softmax.triton forward", "to be used from now on", "1.25x", "used today", "output 0: off"):
        assert expected in text, expected


@pytest.fixture
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    card = Gpu(KIND, "Imaginary GPU", (9, 0), 100, 50 * MIB, 1 << 36, "u", "1.2", 700.0)
    for module in (tables, tune):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
        monkeypatch.setattr(module, "gpu", lambda: card)
    room = tmp_path / "ops" / "reduction" / "softmax"
    room.mkdir(parents=True)
    (room / "tuning.toml").write_text(
        '[[config]]\nrow = "triton"\nkernel = "forward"\nset = { num_warps = 4 }\nevidence = "shipped"\n'
    )
    return room / "triton.py"


def test_a_winner_is_read_before_the_table_that_ships_and_changes_the_hash(own_tables: Path) -> None:
    before = tables.Configs(own_tables.parent / "tuning.toml")
    assert before.pick("forward", N=4096, dtype=torch.bfloat16) == USED
    tables.write_tuned(own_tables, [tune._entry(tuned())])
    after = tables.Configs(own_tables.parent / "tuning.toml")
    assert after.pick("forward", N=4096, dtype=torch.bfloat16) == OTHER
    assert after.pick("forward", N=4097, dtype=torch.bfloat16) == USED
    assert after.pick("forward", N=4096, dtype=torch.float32) == USED
    assert after.text("triton") != before.text("triton")
    assert "8.00 us against 10.00 us" in after.tuned[0]["evidence"]
    again = dataclasses.replace(
        tuned(), chosen=THIRD, candidates=(*tuned().candidates[:2], Candidate(THIRD, 0.5, "", 7.0))
    )
    tables.write_tuned(own_tables, [tune._entry(again)])
    assert [e["set"] for e in tables.table_of(own_tables)] == [THIRD], "one entry for one size"
    tables.write_tuned(own_tables, [], replace=True)
    assert tables.table_of(own_tables) == []


def test_winners_are_proved_and_taken_back_where_the_proof_fails(
    own_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, Any]]] = []
    certified = True

    def prove(op: str, row: str, progress: Any = None) -> list[Proof]:
        asked.append(tables.table_of(own_tables))
        return [Proof(op, row, KIND, 1, 0.5, "", (), 1, 1, {}, 1.0, certified)]

    monkeypatch.setattr(tune, "prove", prove)
    winners = [tuned(), dataclasses.replace(tuned(), case="16x4096")]
    proofs = tune._kept(OPS["softmax"], "triton", own_tables, winners, None)
    assert proofs[0].certified
    (entry,) = tables.table_of(own_tables)
    assert entry["set"] == OTHER and "16x4096" in entry["evidence"] and "8192x4096" in entry["evidence"]
    certified = False
    tune._kept(OPS["softmax"], "triton", own_tables, [dataclasses.replace(tuned(), chosen=THIRD, candidates=(
        *tuned().candidates[:2], Candidate(THIRD, 0.5, "", 7.0)))], None)  # fmt: skip
    assert [e["set"] for e in asked[-1]] == [THIRD], "the proof saw the new table"
    assert tables.table_of(own_tables) == [entry]


def test_every_offer_names_settings_that_a_configuration_of_its_kernel_has() -> None:
    offers = 0
    for op in OPS.values():
        table = tables.configs(op.room / "tuning.toml")
        for space in table.spaces:
            offers += 1
            same = [e for e in table.entries if (e["row"], e["kernel"]) == (space["row"], space["kernel"])]
            assert any(set(e["set"]) == set(space["set"]) for e in same), f"{op.name}: {space}"
            assert any(isinstance(v, list) and len(v) > 1 for v in space["set"].values()), f"{op.name}: one candidate"
    assert offers


def test_a_candidate_answers_only_the_pick_that_it_is_for() -> None:
    watched = tune._module(OPS["softmax"], "triton", {})[1]
    offered = watched.base.candidates("forward", N=4096, dtype=torch.bfloat16)
    assert len(offered) > 3 and all(type(v) is int for c in offered for v in c.values())
    watched.forced["forward", (("N", 4096),), torch.bfloat16] = offered[0]
    assert watched.pick("forward", N=4096, dtype=torch.bfloat16) == offered[0]
    assert watched.pick("forward", N=1024, dtype=torch.bfloat16) == watched.base.pick(
        "forward", N=1024, dtype=torch.bfloat16
    )
    assert len(watched.points) == 2


# ---------------------------------------------------------------- generated figures


def line(row: str, source_hash: str | None, **changes: Any) -> dict[str, Any]:
    base = {
        "op": "rms_norm", "pass": "forward", "shape": "8192x4096", "row": row, "source_hash": source_hash,
        "ms": {"copy": 0.036, "eager": 0.06, "ours": 0.037}, "share_of_copy": 0.973, "of_1_gib_copy": False,
        "tflops": None, "best": "eager", "over_best": 1.62, "wrong": False,
    }  # fmt: skip
    return {**base, **changes}


def test_figures_of_changed_source_are_left_out(tmp_path: Path) -> None:
    head = {
        "machine": {"name": "Imaginary GPU", "driver": "1.2"}, "date": "2026-01-01", "commit": "c",
        "versions": {"torch": "2"},
    }  # fmt: skip
    rows = [
        line("triton", "current"),
        line("triton", "old", op="softmax", over_best=9.99),
        line("torch", "", op="attention", share_of_copy=None, tflops=612.0, over_best=1.0),
        {"op": "gelu", "pass": "forward", "shape": "1", "failed": "it raised"},
    ]
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "h200-ops.json").write_text(json.dumps({**head, "rows": rows, "small_calls": []}))
    page_text = "".join(f"<!-- generated: {name} -->\n<!-- end generated -->\n" for name in ("gpu_ops", "gpu_cases"))
    (tmp_path / "README.md").write_text(page_text)
    hashes = {"rms_norm.triton": "current", "softmax.triton": "changed since"}
    text = readme.generate(tmp_path, "README.md", hashes)
    assert "| `rms_norm` | forward | triton | 1 | **97%** of a copy of the same bytes | 1.62x |" in text
    assert "612 TFLOP/s" in text and "driver 1.2" in text
    assert "9.99" not in text
    assert "Left out, since the source changed after it was measured: `softmax.triton`." in text
    assert "9.99" in readme.generate(tmp_path, "README.md", hashes | {"softmax.triton": "old"})


def test_models_are_shown_while_no_gpu_row_has_changed(tmp_path: Path) -> None:
    step = {
        "parameters": 1.2e9, "rows": 8, "length": 2048, "ms": {"eager": 900.0, "swapped": 600.0},
        "peak_gb": {"eager": 50.0, "swapped": 45.5},
    }  # fmt: skip
    decode = [{"batch": 32, "ms_a_token": {"eager": 20.0, "swapped": 10.0}}]
    record = {
        "machine": {"name": "Imaginary GPU"}, "date": "2026-01-01", "commit": "c", "versions": {"torch": "2"},
        "sources": {"rms_norm.triton": "current"}, "figures": {"train": step, "decode": decode},
    }  # fmt: skip
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "h200-models.json").write_text(json.dumps(record))
    (tmp_path / "README.md").write_text("<!-- generated: gpu_models -->\n<!-- end generated -->\n")
    text = readme.generate(tmp_path, "README.md", {"rms_norm.triton": "current"})
    assert (
        "| training step, 1.20B parameters, 8 x 2048 tokens | 900 ms, 50.0 GB | 600 ms, 45.5 GB | **1.50x** |" in text
    )
    assert "| decode, batch 32, a token | 20.0 ms | 10.0 ms | **2.00x** |" in text
    text = readme.generate(tmp_path, "README.md", {"rms_norm.triton": "changed"})
    assert "1.50x" not in text and "Left out" in text


def test_a_union_of_records_takes_the_one_that_fits() -> None:
    assert _alternative((Ceilings, GpuCeilings), json.loads(to_json(record()))) is GpuCeilings
    assert _alternative((Ceilings, GpuCeilings), json.loads(to_json(cpu_record()))) is Ceilings


# ---------------------------------------------------------------- the kernels that measure

WALKS = """
import torch
from kernelworks.ceilings import gpu_kernels as kernels
tiles, programs = 10, 4
source = torch.rand(tiles * kernels.TILE)
target, sums = torch.zeros_like(source), torch.zeros(programs)
kernels.COPY((programs, 1, 1), source, target, tiles, 1)
assert torch.equal(source, target)
kernels.READ((programs, 1, 1), source, sums, tiles, 3)
assert abs(sums.sum().item() / (3 * source.double().sum().item()) - 1) < 1e-5
kernels.WRITE((programs, 1, 1), target, 2.0, tiles, 3)
assert bool((target == 2).all())
out = torch.zeros(kernels.LANES)
for kernel in kernels.FUNCTION.values():
    kernel((1, 1, 1), out, 2)
    assert bool(out.isfinite().all())
kernels.MULTIPLY_ADD((1, 1, 1), out, 0.5, 1.0, 1)
x = torch.arange(kernels.LANES).float() * 0.5**16
assert torch.allclose(out, x + 2 * (1 - 0.5**16))
"""


def test_the_measuring_kernels_move_what_is_counted() -> None:
    """In Triton's interpreter: every tile is walked on every pass, and chains of functions stay finite."""
    run = [sys.executable, "-c", WALKS]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False)
    assert done.returncode == 0, done.stderr


def test_the_measuring_kernels_compile_without_spills() -> None:
    from kernelworks.build.triton import compiling
    from kernelworks.ceilings import gpu_kernels as kernels

    x = torch.empty(1 << 20, device="meta")
    with compiling() as found:
        for walk in (kernels.READ, kernels.COPY):
            walk((4, 1, 1), x, x, 128, 3)
        kernels.WRITE((4, 1, 1), x, 1.0, 128, 3)
        for kernel in kernels.FUNCTION.values():
            kernel((4, 1, 1), x, 1024)
        kernels.MULTIPLY_ADD((4, 1, 1), x, 0.5, 0.5, 1024)
        kernels.NOTHING((1, 1, 1), x)
    assert len(found) == 5 + len(kernels.FUNCTION)
    assert all(made.resources()["local"] == 0 for made in found)


# ---------------------------------------------------------------- the command line


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    "command", [("machine", "--device", "cuda"), ("bench", "rms_norm", "--device", "cuda"), ("tune", "softmax"),
                ("explain", "rms_norm", "--device", "cuda"), ("machine", "--device", "tpu")],
)  # fmt: skip
def test_a_device_that_is_not_there_is_usage(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kernelworks.machine", "kernelworks.tune", "kernelworks.arguments"):
        monkeypatch.setattr(importlib.import_module(module), "has_gpu", lambda: False)
    found = cli(*command)
    assert found.exit_code == 2, found.output
    assert "cuda" in found.stderr.lower()


def test_machine_shows_both_devices_or_the_one_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def known(progress: Any, again: bool = False, device: str = "cpu") -> Ceilings | GpuCeilings:
        return record() if device == "cuda" else cpu_record()

    monkeypatch.setattr(importlib.import_module("kernelworks.ceilings"), "ceilings", known)
    monkeypatch.setattr(importlib.import_module("kernelworks.machine"), "has_gpu", lambda: True)
    both = cli("machine", "--html", str(tmp_path / "machine.html"))
    assert "memory pyramid" in both.stdout and "Imaginary GPU" in both.stdout
    assert "Imaginary GPU" in (tmp_path / "machine.html").read_text()
    assert [item["name"] for item in json.loads(cli("machine", "--json").stdout)] == ["x", "Imaginary GPU"]
    assert from_json(GpuCeilings, cli("machine", "--device", "cuda", "--json").stdout) == record()


def test_stale_rows_are_named_and_are_no_failure(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_map, "has_gpu", lambda: False)
    certify("another source")
    found = cli("map", "rms_norm", "--stale")
    assert found.exit_code == 0
    assert f"rms_norm.triton: stale certificate: the source changed since it was proved (on {KIND})" in found.stdout
