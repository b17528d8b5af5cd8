"""What the other verbs print at 60 and 80 columns: no line is wider, and no word stands upright."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import machines
import pytest
from printed import printed

from kernelworks.records import (
    AutotunedCall,
    AutotuneResult,
    BenchResult,
    Explanation,
    MapOp,
    Peaks,
    SwapRecord,
    Verification,
    from_json,
)
from kernelworks.records.climb import Climb
from kernelworks.records.compare import ComparedFigure, Comparison
from kernelworks.report.record_view import record_view

LADDERS = Path(__file__).resolve().parents[2] / "ladders"


@pytest.fixture
def several(
    ceilings: Peaks, benches: list[BenchResult], proofs: list[Verification], map_ops: list[MapOp]
) -> dict[str, list[Any]]:
    head = {"file": "a.json", "program": "examples/minilm.py:embed", "machine": "AMD EPYC", "date": "2026-01-01"}
    figures = (
        ComparedFigure("wall clock", 1.0, 1.2, 0.02),
        ComparedFigure(
            "linear BertModel.encoder.layer.*.output.dense modeling_bert.py:348", 0.1, 0.3, 0.01, judged=False
        ),
    )
    explanation = Explanation(
        "rms_norm", "x float32[4, 1024], weight float32[1024], eps 1e-06", "avx512", "1.8x torch, by its tuning record",
        (("triton", "it runs on CUDA tensors, and these are on the CPU"),), 2, 1e4, 3e4, 0.5, 0.9, "memory DRAM",
        "DRAM read 83 GB/s",
    )  # fmt: skip
    call = AutotunedCall("gelu", "forward", "x float32[4, 8]", "avx512", "torch", "torch is faster", 3.0, 4.0, 0.7)
    return {
        "bench": benches,
        "verify": proofs,
        "map": map_ops,
        "explain": [explanation],
        "compare": [Comparison("diagnoses", (head, head), figures, ((), ()), ())],
        "machine": [ceilings],
        "GPU": [machines.gpu_record()],
        "autotune": [AutotuneResult(("kind",), 2, (call,), 0.4)],
        "swap": [SwapRecord(("replaced 1 of 2 modules:", "  12 x LayerNorm: kernelworks.layer_norm"), (), ())],
        "climb": [from_json(Climb, (LADDERS / "cpu-sgemm" / "results.json").read_text(encoding="utf-8"))],
    }


NAMES = ("bench", "verify", "map", "explain", "compare", "machine", "GPU", "autotune", "swap", "climb")


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_wider_and_no_word_stands_upright(name: str, width: int, several: dict[str, list[Any]]) -> None:
    text = printed(record_view(several[name], width), width)
    assert max(map(len, text.splitlines())) <= width
    unlimited = printed(record_view(several[name], width), 400)
    words = {word for word in re.findall(r"[A-Za-z]{4,}", unlimited) if len(word) < 24}
    whole = re.findall(r"[A-Za-z]{4,}", text)
    cut = sorted(words - set(whole))
    assert not cut, cut
