"""What is measured on a GPU, without one: bounds from made-up measured peaks, pages, the map, tuning, generated
figures."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from machines import GPU_KIND as KIND
from machines import MIB
from machines import gpu_record as record
from machines import record as cpu_record
from printed import printed
from typer.testing import CliRunner

import readme
from kernelworks.cli import app
from kernelworks.contract import Request, spec
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.measure import peaks
from kernelworks.measure.bench import kernel_map, limit, predict
from kernelworks.measure.roofline import bound as roofline
from kernelworks.measure.roofline.kernel_time import estimate_kernel_time
from kernelworks.records import BenchResult, GpuPeaks, Peaks, Variant, from_json, to_json
from kernelworks.records.json_text import _alternative
from kernelworks.report import bench as bench_report
from kernelworks.report import gpu as gpu_report
from kernelworks.report import map as map_report
from kernelworks.report import page, plot, roofs

# ---------------------------------------------------------------- bounds


def test_json_gives_the_record_back() -> None:
    assert from_json(GpuPeaks, to_json(record())) == record()


def test_each_term_names_its_bottleneck_on_a_gpu() -> None:
    here = record()
    reading = roofline.bound(0, 0, 4e9, math.inf, "bfloat16", 1, here)
    assert reading.seconds == pytest.approx(1e-3)
    assert (reading.bottleneck, reading.level, reading.peak) == ("memory HBM", "HBM", "HBM read 4000 GB/s")
    product = roofline.bound(8e11, 0, 1e6, math.inf, torch.bfloat16, 1, here)
    assert product.seconds == pytest.approx(1e-3) and product.peak == "bfloat16 torch.mm 800 TFLOP/s"
    assert roofline.bound(6e10, 0, 0, 0, "float32", 1, here).terms["compute"] == pytest.approx(1e-3)
    assert roofline.bound(4e11, 0, 0, 0, "tf32", 1, here).terms["compute"] == pytest.approx(1e-3)
    soft = roofline.bound(0, 4e9, 1e3, math.inf, "float32", 1, here)
    assert soft.seconds == pytest.approx(1e-3) and soft.bottleneck == "transcendental"
    assert roofline.bound(0, 1e9, 0, 0, "float32", 1, here, function="erf").terms["transcendental"] == pytest.approx(
        1e-3
    )
    assert roofline.bound(0, 4e9, 0, 0, "float32", 1, here, function="tanh").terms["transcendental"] == 1e-3
    tiny = roofline.bound(1, 0, 64, 64, "float32", 1, here, launches=3)
    assert tiny.seconds == pytest.approx(3e-6) and tiny.bottleneck == "launch"


def test_a_copys_rate_depends_on_its_size() -> None:
    """Between the sizes measured in a straight line over the logarithm; of two kinds of copy the faster one."""
    here = record()

    def rate(mib: float) -> float:
        bytes = mib * MIB
        return (
            bytes / roofline.bound(0, 0, bytes, math.inf, "float32", 1, here, written_bytes=bytes / 2).terms["memory"]
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
    found = roofline.bound(0, 0, bytes, math.inf, "float32", 1, record(), written_bytes=bytes / 4)
    assert found.terms["memory"] == pytest.approx(bytes / 2 / 4200e9 + bytes / 2 / 4000e9)


@pytest.mark.parametrize(("mib", "level"), [(10, "L2"), (50, "L2"), (60, "L2"), (90, "HBM"), (200, "HBM")])
def test_the_footprint_decides_between_l2_and_memory(mib: int, level: str) -> None:
    found = roofline.bound(0, 0, 4e9, mib * MIB, "float32", 1, record())
    assert found.level == level
    near, far = 4e9 / 8000e9, 4e9 / 4000e9
    share = min(1.0, max(0.0, mib / 50 - 1))
    assert found.terms["memory"] == pytest.approx(share * far + (1 - share) * near)


def test_traffic_that_l2_served_is_called_so_and_never_over_the_peak() -> None:
    here = record()
    far, near = (roofline.bound(0, 0, 4e9, footprint, "float32", 1, here) for footprint in (math.inf, 0.0))
    for seconds, bottleneck in (
        (2e-3, "latency"),
        (1.1e-3, "memory HBM"),
        (0.95e-3, "memory HBM"),
        (0.7e-3, "memory L2"),
    ):
        found = roofline.applicable_bound(far, near, seconds)
        assert roofline.bottleneck_of(found, seconds) == bottleneck
        assert found.seconds <= seconds
    impossible = roofline.applicable_bound(far, near, 1e-6)
    assert impossible.seconds == 1e-6 and impossible.bottleneck == "memory L2"


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
    bare = roofline.bound(
        0, 0, 2 * (1 << 29) + 4096 * 2, math.inf, "float32", 1, record(), written_bytes=float(1 << 29)
    )  # fmt: skip
    assert found.seconds == pytest.approx(bare.seconds + 3e-6) and found.bottleneck == "memory HBM"
    tiny = limit(OPS["rms_norm"], small, record(), math.inf)
    assert tiny.bottleneck == "launch" and 3e-6 < tiny.seconds < 3.1e-6


def gpu_result(case: str = "8192x4096", **changes: Any) -> BenchResult:
    variants = (
        Variant("kernelworks", 40.0, 39.0, 42.0, 15, 0.9, 0.5, 5.0),
        Variant("eager", 60.0, 59.0, 61.0, 15, 0.6, 0.5, 9.0),
        Variant("inductor", 38.0, 37.0, 39.0, 15, 0.95, 0.5, 20.0), Variant("copy", 36.0, 35.0, 37.0, 15, 1.0),
    )  # fmt: skip
    base = BenchResult(
        "rms_norm",
        case,
        "bfloat16",
        2,
        "cold",
        1e8,
        1.3e8,
        36.0,
        "memory HBM",
        variants,
        "triton",
        "",
        0,
        device="cuda",
    )
    return dataclasses.replace(base, **changes)


def test_a_prediction_on_a_gpu_comes_from_benches_on_a_gpu() -> None:
    request = rms_norm(8192, 4096)
    op = OPS["rms_norm"]
    assert predict(op, request, "torch", record(), [gpu_result(cache="warm")]) is None
    modelled = predict(op, request, "triton", record(), [gpu_result(cache="warm")])
    assert modelled == estimate_kernel_time(op, request, "triton", record()).seconds
    found = predict(OPS["rms_norm"], request, "triton", record(), [gpu_result()])
    assert found == pytest.approx(limit(OPS["rms_norm"], request, record(), math.inf).seconds / 0.9)


def test_without_a_gpu_no_peaks_are_cached_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelworks.measure.peaks.cache.has_gpu", lambda: False)
    assert peaks.cached_peaks("cuda") is None


# ---------------------------------------------------------------- what is shown


def test_the_machine_shows_its_gpu_beside_the_cpu() -> None:
    text = printed(gpu_report.gpu(record(), 150))
    shown = ("Imaginary GPU", "driver 1.2", "700 W", "4200", "800 TFLOP/s", "650 TFLOP/s", "4000 G/s", "1.00 us")
    for expected in (*shown, "ridge points", "50.0 GB/s"):
        assert expected in text, expected
    both = page.machine(cpu_record(), record())
    assert "Imaginary GPU" in both and "Memory hierarchy" in both and both.count("<svg") == 2 * 4  # wide and narrow
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
    monkeypatch.setattr(certificates, "SHIPPED_DIR", tmp_path)
    certificates._shipped.cache_clear()
    yield tmp_path
    certificates._shipped.cache_clear()


def certify(source_hash: str) -> None:
    kernel = OPS["rms_norm"].kernel("triton")
    held = certificates.Certificate(
        "rms_norm", "triton", source_hash, kernel.toolchain(), KIND, 10, 0.5, 3, "2026-01-01"
    )  # fmt: skip
    certificates.write_shipped([held], KIND)
    certificates._shipped.cache_clear()


def test_the_map_names_gpu_kernels_whose_certificate_is_missing_or_stale(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_map, "has_gpu", lambda: False)
    name = "rms_norm.triton"
    assert f"{name}: not verified on any GPU" in kernel_map.stale_kernels("rms_norm")
    certify(OPS["rms_norm"].kernel("triton").hash())
    assert not [line for line in kernel_map.stale_kernels("rms_norm") if line.startswith(f"{name}:")]
    kernel = next(r for r in kernel_map.kernel_map("rms_norm")[0].kernels if r.name == "triton")
    assert (kernel.certificate, kernel.kind, kernel.reason) == ("2026-01-01", KIND, "")
    assert f"verified 2026-01-01 on {KIND}" in printed(map_report.kernel_map(kernel_map.kernel_map("rms_norm"), "here"))
    certify("another source")
    stale = next(line for line in kernel_map.stale_kernels("rms_norm") if line.startswith(f"{name}:"))
    assert "stale certificate: the source changed" in stale and KIND in stale


def test_the_map_lists_what_a_kernel_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        gpu_result(),
        gpu_result("16x1024", variants=(Variant("kernelworks", 5.0, 5.0, 5.0, 9), Variant("eager", 6.0, 6, 6, 9))),
    ]
    monkeypatch.setattr(kernel_map, "has_gpu", lambda: True)
    monkeypatch.setattr(kernel_map, "kind_of", lambda device: KIND if device == "cuda" else "cpu")
    kernel = kernel_map._map_kernel(OPS["rms_norm"], OPS["rms_norm"].kernel("triton"), KIND, results)
    assert kernel.losses == ("8192x4096 bfloat16 (0.95x inductor)",)
    assert kernel.ratio == pytest.approx((38 / 40 + 6 / 5) / 2)


# ---------------------------------------------------------------- generated figures


def line(kernel: str, source_hash: str | None, **changes: Any) -> dict[str, Any]:
    base = {
        "op": "rms_norm", "pass": "forward", "shape": "8192x4096", "kernel": kernel, "source_hash": source_hash,
        "ms": {"copy": 0.036, "eager": 0.06, "ours": 0.037}, "share_of_copy": 0.973, "of_1_gib_copy": False,
        "tflops": None, "best": "eager", "over_best": 1.62, "wrong": False,
    }  # fmt: skip
    return {**base, **changes}


def test_figures_of_changed_source_are_left_out(tmp_path: Path) -> None:
    head = {
        "machine": {"name": "Imaginary GPU", "driver": "1.2"}, "date": "2026-01-01", "commit": "c",
        "versions": {"torch": "2"},
    }  # fmt: skip
    kernels = [
        line("triton", "current"),
        line("triton", "old", op="softmax", over_best=9.99),
        line("triton", "current", **{"pass": "backward", "wall_ms": {"copy": 0.05, "eager": 0.12, "ours": 0.1}}),
        line("torch", "", op="attention", share_of_copy=None, tflops=612.0, over_best=1.0),
        {"op": "gelu", "pass": "forward", "shape": "1", "failed": "it raised"},
    ]
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "h200-ops.json").write_text(json.dumps({**head, "rows": kernels, "small_calls": []}))
    page_text = "".join(f"<!-- generated: {name} -->\n<!-- end generated -->\n" for name in ("gpu_ops", "gpu_cases"))
    (tmp_path / "README.md").write_text(page_text)
    hashes = {"rms_norm.triton": "current", "softmax.triton": "changed since"}
    text = readme.generate(tmp_path, "README.md", hashes)
    assert "| `rms_norm` | forward | triton | 1 | **97%** of a copy of the same bytes | 1.62x |" in text
    assert "| 100 us, 50% of a copy, 1.20x eager |" in text
    assert "612 TFLOP/s" in text and "driver 1.2" in text
    assert "9.99" not in text
    assert "Left out, since the source changed after it was measured: `softmax.triton`." in text
    assert "9.99" in readme.generate(tmp_path, "README.md", hashes | {"softmax.triton": "old"})


def test_models_are_shown_while_no_gpu_kernel_has_changed(tmp_path: Path) -> None:
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
    step["ms"]["swapped, kw.AdamW"], step["peak_gb"]["swapped, kw.AdamW"] = 500.0, 45.5
    modes = {"default": {"ms": {**step["ms"], "default": 600.0}}, "another": {"failed": "cut off"}}
    steps = {"eager": 20.0, "swapped": 10.0, "swapped and captured": 5.0, "reduce-overhead, static cache": 6.0}
    run = {"batch": 32, "ms_a_token": steps, "modes": {"static-reduce-overhead": {"ms_a_token": steps}}}
    cut = {"failed": "cut off after 112 s", "modes": {"static-reduce-overhead": {"failed": "cut off after 112 s"}}}
    record["figures"] = {"train": {**step, "modes": modes}, "decode": [cut, run]}
    (results / "h200-models.json").write_text(json.dumps(record))
    newer = readme.generate(tmp_path, "README.md", {"rms_norm.triton": "current", "rms_norm.sm90": "since"})
    assert "| decode, batch 32, a token | 20.0 ms | 5.00 ms, and captured | **4.00x** |" in newer
    assert "tokens | 900 ms, 50.0 GB | 500 ms, 45.5 GB, and `kw.AdamW` | **1.80x** |" in newer
    assert "training step 600 ms, ours 1.20x over `default`; decode, batch 32 6.00 ms, ours 1.20x over `reduce" in newer
    assert "1.50x" in newer and "Measured before" in newer and "`rms_norm.sm90`." in newer
    assert "Measured before" not in text
    record["sources"] = {"rms_norm.triton": "current", "softmax.triton": "old"}
    record["figures"] = {"train": {**step, "kernels_taken": ["rms_norm.triton"]}, "decode": [cut]}
    (results / "h200-models.json").write_text(json.dumps(record))
    now = {"rms_norm.triton": "current", "softmax.triton": "new"}
    assert "1.50x" in readme.generate(tmp_path, "README.md", now)  # no program called what changed
    assert "1.50x" not in readme.generate(tmp_path, "README.md", now | {"rms_norm.triton": "new"})
    text = readme.generate(tmp_path, "README.md", {"rms_norm.triton": "changed"})
    assert "1.50x" not in text and "Left out" in text


def test_a_union_of_records_takes_the_one_that_fits() -> None:
    assert _alternative((Peaks, GpuPeaks), json.loads(to_json(record()))) is GpuPeaks
    assert _alternative((Peaks, GpuPeaks), json.loads(to_json(cpu_record()))) is Peaks


# ---------------------------------------------------------------- the kernels that measure

WALKS = """
import torch
from kernelworks.measure.clock import gpu_kernels as kernels
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
    done = forked.python(code=WALKS, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


def test_the_measuring_kernels_compile_without_spills() -> None:
    from kernelworks.build.triton import compiling
    from kernelworks.measure.clock import gpu_kernels as kernels

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
    "command", [("machine", "--device", "cuda"), ("bench", "rms_norm", "--device", "cuda"),
                ("autotune", "softmax", "--configs"),
                ("explain", "rms_norm", "--device", "cuda"), ("machine", "--device", "tpu")],
)  # fmt: skip
def test_a_device_that_is_not_there_is_usage(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kernelworks.machine", "kernelworks.measure.autotune.configs", "kernelworks.cli.arguments"):
        monkeypatch.setattr(importlib.import_module(module), "has_gpu", lambda: False)
    found = cli(*command)
    assert found.exit_code == 2, found.output
    assert "cuda" in found.stderr.lower()


def test_machine_shows_both_devices_or_the_one_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def known(progress: Any, again: bool = False, device: str = "cpu", **more: Any) -> Peaks | GpuPeaks:
        return record() if device == "cuda" else cpu_record()

    monkeypatch.setattr(importlib.import_module("kernelworks.measure.peaks"), "get_peaks", known)
    for name in ("has_gpu", "may_have_gpu"):
        monkeypatch.setattr(importlib.import_module("kernelworks.machine"), name, lambda: True)
    both = cli("machine", "--html", str(tmp_path / "machine.html"))
    assert "memory hierarchy" in both.stdout and "Imaginary GPU" in both.stdout
    assert "Imaginary GPU" in (tmp_path / "machine.html").read_text()
    assert [item["name"] for item in json.loads(cli("machine", "--json").stdout)] == ["x", "Imaginary GPU"]
    assert from_json(GpuPeaks, cli("machine", "--device", "cuda", "--json").stdout) == record()


def test_stale_kernels_are_named_and_are_no_failure(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_map, "has_gpu", lambda: False)
    certify("another source")
    found = cli("map", "rms_norm", "--stale")
    assert found.exit_code == 0
    assert f"rms_norm.triton: stale certificate: the source changed since it was verified (on {KIND})" in found.stdout


def test_measuring_a_gpu_leaves_the_precision_of_float32_products_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's one word, put back alone, has its backends say another one, which inductor's caches tell apart."""
    cache = importlib.import_module("kernelworks.measure.peaks.cache")

    def measured(progress: object, *, rough: bool) -> GpuPeaks:
        torch.set_float32_matmul_precision("high")
        torch.set_float32_matmul_precision("highest")
        return dataclasses.replace(record(), foreign_share=1.0)  # is not kept

    monkeypatch.setattr(cache.gpu, "measure", measured)
    before = cache.Float32Products.of_process()
    cache.Float32Products(before.word, ("none", "none")).restore()
    try:
        cache._measured(None, "cuda", rough=True, brief=False)
        assert cache.Float32Products.of_process().backends == ("none", "none")
    finally:
        before.restore()
