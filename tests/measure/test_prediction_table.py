"""The table of predictions beside times on record: what each line says, and what stands above them."""

from __future__ import annotations

import dataclasses

from test_time_model import HERE, asked

from kernelworks.dispatch.op import OPS
from kernelworks.measure.roofline.kernel_time import ModelComparison, compare_model, manner, piece_of
from kernelworks.measure.roofline.time_model import estimate_time
from kernelworks.report import expectations


def test_the_table_says_what_it_took_beside_what_was_predicted() -> None:
    op = OPS["rms_norm"]
    request = asked(op, "x bf16[8192,4096]; weight bf16[4096]")
    piece = piece_of(op, request)
    work = {f.name: getattr(piece, f.name) for f in dataclasses.fields(piece) if f.name != "function"}
    said = estimate_time(piece, manner(op, "triton", "forward", piece.dims), HERE).seconds * 1e3
    line = {
        "op": "rms_norm", "pass": "forward", "shape": "8192x4096", "kernel": "triton", "source_hash": "h", "work": work,
    }  # fmt: skip
    lines = [{**line, "ms": {"ours": said / 1.05}}, {**line, "ms": {"ours": said * 2}}]
    torchs, failed = {**line, "kernel": "torch", "source_hash": ""}, {**line, "failed": "it raised"}
    found = compare_model([*lines, torchs, failed, {**line, "work": {}}], HERE)
    assert [round(c.off, 2) for c in found] == [0.05, -0.5]
    assert found[0].bound_us < found[0].expected_us
    table = "\n".join(expectations.table(found))
    assert "Of 2 cases of our kernels 1 were predicted within 10%" in table
    assert "| +5% | memory |" in table and "| **-50%** | memory |" in table
    assert expectations.table([]) == ["No kernel of ours is on record."]
    assert expectations.unseen_calls(None, "x.json") == []
    rows = [{"predicted_us": p, "us": 10.0} for p in (10.5, 12.0, 9.5)]
    others = expectations.unseen_calls({"rows": rows}, "x.json")[0]
    assert "Of 3 other calls" in others and " 2 were within" in others
    assert isinstance(found[0], ModelComparison)
