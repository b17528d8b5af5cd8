"""The page of what is on record: what speaks of another source is left out, and what nothing speaks of says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import op_records
from kernelworks.contract import Request, TensorSpec
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.certificates import Certificate
from kernelworks.dispatch.tuning_records import RaceResult, TuningRecord
from kernelworks.measure.roofline.bound import Bound
from kernelworks.ops import op_named

H200, ZEN = "sm_90-nvidia_h200", "x86_64-amd-family25-model17-avx512_bf16"
OP = op_named("relu")
X = TensorSpec((3, 4), torch.bfloat16, (1, 3), "cpu")


def _certificate(kernel: str, kind: str) -> Certificate:
    return Certificate("relu", kernel, OP.kernel(kernel).hash(), "", kind, 1, 0.5, 1, "2026-01-01")


def _race(way: str, ours: float, theirs: float, spread: float = 0.0) -> TuningRecord:
    source = "+".join(OP.kernel(name).hash() for name in way.split("+"))
    pass_ = "training" if "+" in way else "forward"
    race = RaceResult(ours, theirs, (theirs / ours, theirs / ours), spread)
    backward = race if "+" in way else None
    place = f"{ZEN}-2cores"
    return TuningRecord("relu", pass_, way, "", str(ours), place, 2, source, "", "2.13.0", race, backward, "2026-01-01")


@pytest.fixture
def on_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the records of one op from certificates, races and lines of the GPU's figures."""

    def made(held: list[Certificate] = (), races: list[TuningRecord] = (), rows: list[dict[str, Any]] = ()) -> str:
        kinds = {c.kind for c in held}
        monkeypatch.setattr(certificates, "shipped_kinds", lambda: sorted(kinds))
        monkeypatch.setattr(certificates, "shipped_certificates", lambda kind: [c for c in held if c.kind == kind])
        monkeypatch.setattr(tuning_records, "SHIPPED_DIR", tmp_path)
        (tmp_path / f"{ZEN}-2cores.json").write_text(tuning_records._text(races), encoding="utf-8")
        results = tmp_path / op_records.RESULTS
        results.mkdir(parents=True, exist_ok=True)
        (results / "h200-ops.json").write_text(
            json.dumps({"machine": {"kind": H200}, "rows": list(rows)}), encoding="utf-8"
        )
        records = op_records.Records(tmp_path, [OP])
        return "\n".join([*op_records.lines_of(OP, records), *op_records.lines_of_families(records, [OP])])

    return made


def _row(**changed: Any) -> dict[str, Any]:
    return {
        "op": "relu", "pass": "forward", "kernel": "triton", "source_hash": OP.kernel("triton").hash(), "wrong": False,
        "share_of_copy": 0.9, "of_1_gib_copy": False, "over_best": 1.25, "best": "compile", "work": {},
    } | changed  # fmt: skip


def test_kinds_of_machine_have_short_names() -> None:
    assert [op_records.short(kind) for kind in (H200, ZEN)] == ["H200", "AMD 25.17"]
    assert op_records.short("x86_64-intel-family6-model167-avx512_bf16") == "Intel 6.167"


def test_which_kernels_a_kind_of_machine_can_run() -> None:
    able = {k.name for k in OP.kernels if k.source is not None and op_records.fits(k, ZEN.replace("512_bf16", "2"))}
    assert able == {"avx2", "scalar"}
    assert {k.name for k in OP.kernels if op_records.fits(k, H200)} == {"triton"}


def test_kernels_of_which_nothing_is_on_record_say_so_in_one_line(on_record: Any) -> None:
    first, second, *families = on_record().splitlines()
    assert first.startswith("| [relu](ops.md#relu)<br>`triton`, ") and first.endswith("| none | none | none | none |")
    assert second == "| `torch` | needs none | none | none | none |"
    kernels = len([k for k in OP.kernels if k.source is not None])
    assert f"| all | 1 | {kernels} | 0 | 0 | 0 | 1 |" in families


def test_a_certificate_counts_for_the_source_it_was_made_of(on_record: Any) -> None:
    held = _certificate("avx2", ZEN)
    assert "| `avx2` | AMD 25.17 | none | none | none |" in on_record([held])
    for wrong in ({"source_hash": "another"}, {"format": 1}, {"worst": 1.5}, {"worst": float("nan")}):
        assert "AMD" not in on_record([dataclasses.replace(held, **wrong)])


def test_calls_are_counted_for_whoever_their_record_takes(on_record: Any) -> None:
    lines = on_record(
        races=[
            _race("avx512", 1.0, 2.0), _race("avx512", 2.0, 3.0), _race("avx2", 3.0, 3.0),  # the last: torch's
            _race("avx512", 5.0, 20.0, spread=0.5), _race("avx512+avx2", 4.0, 8.0),
        ]
    )  # fmt: skip
    zen = "AMD 25.17"
    assert f"| `avx512` | none | {zen} forward 2/4<br>training 1/1 | none |" in lines
    assert f"| `avx2` | none | {zen} training 1/1 | none | {zen} forward 1.00x torch<br>training 2.00x" in lines
    assert f"| `torch` | needs none | {zen} forward 2/4 | none | none |" in lines
    assert "| all | 1 | 5 | 0 | 1 | 0 | 0 |" in lines
    assert "| all | 1 | 5 | 0 | 0 | 1 | 0 |" in on_record(races=[_race("avx2", 3.0, 3.0)])
    stale = dataclasses.replace(_race("avx512", 1.0, 2.0), source_hash="another")
    assert "AMD" not in on_record(races=[stale])


def test_figures_of_a_gpu_say_their_share_and_the_strongest_baseline(on_record: Any) -> None:
    rows = [_row(), _row(over_best=0.75, best="eager"), _row(over_best=0.75, best="eager")]
    expected = (
        "| none | none | H200 forward 90% of a copy | H200 forward 0.750x (0.750x to 1.25x) torch, torch.compile |"
    )
    assert expected in on_record(rows=rows)
    for wrong in ({"source_hash": "another"}, {"wrong": True}, {"failed": "why"}, {"kernel": "no_such"}):
        assert "H200" not in on_record(rows=[_row(**wrong)])


def test_a_call_on_record_is_read_back_only_where_its_words_say_all_of_it() -> None:
    request = Request("relu", "forward", {"x": X}, 2)
    words = tuning_records.call_of(request), tuning_records.bucket_of(OP.contract, request)
    race = dataclasses.replace(_race("avx2", 1.0, 2.0), call=words[0], bucket=words[1])
    assert words[0] == "x bf16[3,4] by [1,3]" and op_records.request_of(OP, race) == request
    for other in ({"bucket": "x f32"}, {"call": "x 3 tensors 0f"}, {"call": "y bf16[3,4]"}, {"pass_": "training"}):
        assert op_records.request_of(OP, dataclasses.replace(race, **other)) is None


def test_a_peak_that_something_exceeds_is_none(monkeypatch: pytest.MonkeyPatch, on_record: Any) -> None:
    least = Bound(1e-6, "memory DRAM", "DRAM read 9 GB/s", {"dispatch": 0.0, "memory": 1e-6}, "DRAM")
    monkeypatch.setattr(op_records.Records, "_cpu_peaks", lambda self: {ZEN: object()})
    monkeypatch.setattr(op_records, "request_of", lambda op, t: Request("relu", "forward", {"x": X}, 2))
    monkeypatch.setattr(op_records, "limit_of_call", lambda *given: least)
    zen = "AMD 25.17 forward"
    lines = on_record(races=[_race("avx2", 2.0, 8.0), _race("avx512", 5.0, 4.0)])
    assert f"{zen} 1/2 | {zen} 50% of the DRAM rate | {zen} 4.00x torch |" in lines
    assert f"| {zen} 20% of the DRAM rate | {zen} 0.800x torch |" in lines
    assert f"{zen} 1/2 | {zen} 25% of the DRAM rate | none |" in lines  # torch, which runs the second
    assert "of the DRAM rate" not in on_record(races=[_race("avx2", 2.0, 8.0), _race("avx512", 0.5, 4.0)])


def test_calls_that_are_always_torchs_are_told_as_the_public_function_says() -> None:
    op = op_named("rfft")
    lines = op_records.lines_of(op, op_records.Records(Path("nowhere"), [op]))
    assert any(line.startswith("| `torch`, always of lengths above 2^20 and those with a prime") for line in lines)


def test_long_op_packages_are_named_until_a_kernel_of_theirs_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "contract.py").write_text("x = 1\n" * 200, encoding="utf-8")
    (tmp_path / "op" / "README.md").write_text("word\n" * 200, encoding="utf-8")
    monkeypatch.setattr(OP, "op_package", tmp_path / "op")
    records = op_records.Records(tmp_path, [OP])
    assert op_records.long_packages(records, set()) == []
    (tmp_path / "op" / "simd.cpp").write_text("\n" * 101, encoding="utf-8")
    assert op_records.long_packages(records, set()) == [f"{tmp_path.name}/op"]
    assert op_records.long_packages(records, {"relu"}) == []
