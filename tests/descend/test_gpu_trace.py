"""A recorded trace of a GPU's program, followed from the module to the machine code of its kernels."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kernelworks import records
from kernelworks.cli import app
from kernelworks.descend.gpu_trace import TraceError, descend_trace, read_peaks
from kernelworks.ops import op_named
from kernelworks.records.descent import Descent

ROOT = Path(__file__).resolve().parents[2]
PEAKS = ROOT / "benchmarks/results/h200-machine.json"
PRODUCT = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
DEVICE = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


@pytest.fixture(scope="module")
def norm() -> tuple[str, int]:
    """Name and threads of the kernel that our norm launches for these shapes."""
    build: Any = importlib.import_module("kernelworks.build.triton")
    with build.compiling() as made:
        x, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((1, 1, 1024), (1024,)))
        op_named("rms_norm").kernel("triton").load("forward")(x, weight, 1e-5, None)
    return made[0].name, made[0].threads


def trace(norm: tuple[str, int]) -> dict[str, Any]:
    """Two layers: a norm of ours, and a product of cuBLAS's; each launched from its operator."""
    events: list[dict[str, Any]] = []

    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 7, "ts": ts, "dur": dur, "args": args})

    def kernel(name: str, number: int, ts: float, dur: float, grid: int, threads: int) -> None:
        event("cuda_runtime", "cuLaunchKernel", ts, 1, correlation=number)
        launch = {"grid": [grid, 1, 1], "block": [threads, 1, 1], "registers per thread": 40, "shared memory": 64}
        event("kernel", name, ts + 20, dur, correlation=number, device=0, stream=3, **launch)

    event("python_function", "run.py(9): decode", 0, 1000)
    for layer in range(2):
        at = 100 + 400 * layer
        event("python_function", f"nn.Module: Layer_{layer}", at, 300)
        event("python_function", f"nn.Module: RMSNorm_{layer}", at + 10, 80)
        event("python_function", "run.py(4): forward", at + 11, 78)
        event("python_function", "/site/kernelworks/dispatch/op.py(452): call", at + 12, 70)
        shapes = {"Input Dims": [[1, 1, 1024], [1024], [], [], []], "Input Strides": [[1024, 1024, 1], [1], [], [], []],
                  "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar", "", ""],
                  "Concrete Inputs": ["", "", "1e-05", "", ""]}  # fmt: skip
        event("cpu_op", "kernelworks::rms_norm", at + 20, 50, **shapes)
        kernel(norm[0], 2 * layer + 1, at + 30, 3, 1, norm[1])
        event("python_function", f"nn.Module: Linear_{layer}", at + 100, 90)
        event("python_function", "run.py(5): forward", at + 101, 80)
        shapes = {"Input Dims": [[1, 1, 1024], [2816, 1024], []], "Input Strides": [[1024, 1024, 1], [1024, 1], []],
                  "Input type": ["c10::BFloat16", "c10::BFloat16", ""], "Concrete Inputs": ["", "", ""]}  # fmt: skip
        event("cpu_op", "aten::linear", at + 110, 60, **shapes)
        kernel(PRODUCT, 2 * layer + 2, at + 120, 6, 44, 384)
    return {"deviceProperties": [DEVICE], "traceEvents": events}


@pytest.fixture(scope="module")
def path(norm: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("trace") / "decode.json"
    found.write_text(json.dumps(trace(norm)), encoding="utf-8")
    return found


def test_every_layer_is_shown(path: Path, norm: tuple[str, int]) -> None:
    found = descend_trace(path, peaks=read_peaks(PEAKS))
    product, ours = found.operators
    assert (found.machine, found.whole) == ("NVIDIA H200", 2)
    assert (product.operator, product.calls, product.module) == ("aten::linear", 2, "Layer.Linear")
    assert product.seconds == pytest.approx(12e-6) and product.share == pytest.approx(12 / 18)
    assert product.flop == 2 * 2 * 1024 * 2816 and product.bound_s is not None and product.peak
    (kernel,) = product.kernels
    assert (kernel.maker, kernel.runs, kernel.code, kernel.loop) == ("cuBLAS", 2, "", None)
    assert any("44 blocks for 132 multiprocessors" in said for said in kernel.said)
    assert product.kernel and product.because and "linear" in product.op
    assert all("cannot be asked here" in why for name, why in product.declined if name.startswith("sm90"))

    assert (ours.operator, ours.module, ours.source) == ("kernelworks::rms_norm", "Layer.RMSNorm", "run.py:4")
    (kernel,) = ours.kernels
    assert (kernel.name, kernel.maker, kernel.code) == (norm[0], "kernelworks", "compiled here")
    assert kernel.source == ours.kernel_source == "ops/norm/rms_norm/triton.py"
    assert kernel.block == (norm[1], 1, 1) and kernel.registers == 40
    assert kernel.loop is not None and kernel.loop.lines and kernel.loop.counts["load"] >= 1
    assert records.from_json(Descent, records.to_json(found)) == found
    assert any("1 kernel by cuBLAS without code" in note for note in found.notes)


def test_only_what_was_asked_for(path: Path) -> None:
    assert [one.operator for one in descend_trace(path, op="nvjet").operators] == ["aten::linear"]
    assert len(descend_trace(path, most=1).operators) == 1
    with pytest.raises(LookupError, match="has 'conv' in its name; there are"):
        descend_trace(path, op="conv")


def test_a_trace_of_a_cpu_is_refused(norm: tuple[str, int], tmp_path: Path) -> None:
    events = [event for event in trace(norm)["traceEvents"] if event["cat"] != "kernel"]
    written = tmp_path / "cpu.json"
    written.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    with pytest.raises(TraceError, match="holds no kernels of a GPU"):
        descend_trace(written)


def test_peaks_are_read_from_a_record(tmp_path: Path) -> None:
    assert read_peaks(PEAKS).multiprocessors == 132
    other = tmp_path / "other.json"
    for text in ("{}", "[]", '{"peaks": {}}', "3"):
        other.write_text(text)
        with pytest.raises(ValueError, match="no measured peaks of a GPU"):
            read_peaks(other)


def test_the_command_line(path: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["descend", "--trace", str(path), "--peaks", str(PEAKS), "--op", "rms", "--json"])
    assert done.exit_code == 0, done.output
    record = tmp_path / "record.json"
    record.write_text(done.stdout, encoding="utf-8")
    shown = runner.invoke(app, ["show", str(record)]).stdout
    for layer in ("module", "operator", "dispatcher", "roofline", "kernel", "launch", "source", "hot loop"):
        assert f"\n  {layer}" in shown, layer
    assert "(compiled here)" in " ".join(shown.split()) and ("LDG" in shown or "STG" in shown)
    wrong = {
        ("descend",): "a program, or --trace FILE",
        ("descend", "program.py", "--trace", str(path)): "instead of a program",
        ("descend", "program.py", "--cache", str(tmp_path)): "go with --trace",
        ("descend", "--trace", str(tmp_path / "none.json")): "none.json",
        ("descend", "--trace", str(path), "--cache", str(tmp_path / "none")): "is no folder",
        ("descend", "--trace", str(path), "--op", "conv"): "has 'conv' in its name",
    }
    for words, said in wrong.items():
        failed = runner.invoke(app, list(words))
        assert failed.exit_code in (1, 2) and said in " ".join(failed.stderr.split()), (words, failed.stderr)


# ---------------------------------------------------------------- recorded on an H200 by examples/trace_decode.py

TRACES = Path(__file__).with_name("traces")


def recorded(name: str, **asked: Any) -> Descent:
    return descend_trace(TRACES / f"{name}.json.gz", peaks=read_peaks(PEAKS), **asked)


def unpacked(folder: Path) -> Path:
    """What Triton had compiled when the traces were recorded, as files."""
    held = json.loads(gzip.decompress((TRACES / "cache.json.gz").read_bytes()))
    for key, files in held.items():
        (folder / key).mkdir()
        stem = folder / key / files["name"]
        stem.with_suffix(".cubin").write_bytes(base64.b64decode(files["cubin"]))
        for kind in ("json", "ttir", "ptx"):
            stem.with_suffix(f".{kind}").write_text(files[kind], encoding="utf-8")
    return folder


def test_a_decode_of_torchs_own_functions() -> None:
    found = recorded("eager", most=50)
    assert found.machine == "NVIDIA H200" and found.whole == 34 and len(found.operators) == 34
    assert sum(one.share for one in found.operators) == pytest.approx(1)
    head = next(one for one in found.operators if "[32000, 1024]" in one.shapes)
    assert (head.operator, head.calls, head.module) == ("aten::linear", 4, "Decoder.Linear")
    (kernel,) = head.kernels
    assert (kernel.maker, kernel.grid, kernel.block) == ("cuBLAS", (2, 63, 1), (384, 1, 1))
    attention = found.operators[0]
    assert attention.operator == "aten::scaled_dot_product_attention" and attention.calls == 16
    assert [one.maker for one in attention.kernels] == ["cuDNN", "torch", "cuDNN", "torch"]
    assert attention.module == "Decoder.Layer.Attention" and attention.source == "trace_decode.py:59"


def test_a_decode_with_our_kernels_is_compiled_here() -> None:
    found = recorded("ours", op="kernelworks::", most=9)
    by_op = {one.operator: one for one in found.operators}
    assert by_op.keys() == {"kernelworks::rms_norm", "kernelworks::silu_mul"}
    for one in found.operators:
        (kernel,) = one.kernels
        assert (kernel.maker, kernel.code) == ("kernelworks", "compiled here") and kernel.source
        assert kernel.loop is not None and kernel.loop.counts["load"] >= 1 and kernel.ir["tt.load"] >= 1
        assert any(name.startswith("ld.global") for name in kernel.ptx)
        assert "triton" in {name for name, _ in one.declined} | {one.kernel}


def test_a_compiled_decode_is_read_from_the_cache_of_its_recording(tmp_path: Path) -> None:
    bare = recorded("compiled", op="triton_", most=30)
    assert all(kernel.code == "" for one in bare.operators for kernel in one.kernels)
    assert any("--cache FOLDER" in note for note in bare.notes)
    found = recorded("compiled", op="triton_", most=30, cache=unpacked(tmp_path))
    kernels = [kernel for one in found.operators for kernel in one.kernels if kernel.maker == "inductor"]
    assert len(kernels) == len(bare.operators) >= 12
    for kernel in kernels:
        assert kernel.code == "recorded" and kernel.loop is not None and kernel.source.endswith(".py"), kernel.name
        assert sum(kernel.loop.counts.values()) == len(kernel.loop.lines)
    rotary = next(kernel for kernel in kernels if "cos" in kernel.name)
    assert rotary.ir["math.cos"] == 2 and rotary.loop is not None
    assert any("accesses of local memory" in said for said in rotary.loop.explained)
    several = [kernel for kernel in kernels if any("of the cache have this name" in said for said in kernel.said)]
    assert 0 < len(several) < len(kernels)
