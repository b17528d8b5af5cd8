"""The kernel map of one model, from the record of a diagnosis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from kernelworks import records
from kernelworks.diagnose.model_map import model_map
from kernelworks.records import Diagnosis, MapKernel, MapOp
from kernelworks.records.model_map import ModelMap
from kernelworks.report.html import render_page, text


@pytest.fixture
def found(diagnosis: Diagnosis) -> ModelMap:
    first, second, *rest = diagnosis.hotspots
    ours = dataclasses.replace(first, op="linear", op_kernel="kw.linear: avx512", seconds=0.2, share=0.5, achieved=0.25)
    plain = dataclasses.replace(second, op="_softmax", op_kernel="", seconds=0.1, share=0.25)
    spots = (plain, ours, *(dataclasses.replace(one, op="nothing of ours", op_kernel="") for one in rest))
    kernels = (MapKernel("avx512", "avx512", "2026-01-01", ""), MapKernel("torch", "torch", "", ""))
    ops = [
        MapOp("linear", "linear", "y = x w'", "", kernels, exercises=("gemm",)),
        MapOp("softmax", "reduction", "e / sum e", "", kernels),
    ]
    return model_map(dataclasses.replace(diagnosis, hotspots=spots), ops)


def test_each_hotspot_has_its_op_family_kernel_and_certificate(found: ModelMap) -> None:
    by_name = {one.operator: one for one in found.calls}
    ours, plain = by_name["linear"], by_name["_softmax"]
    assert (ours.op, ours.family, ours.kernel, ours.verified, ours.exercises) == (
        "linear", "linear", "avx512", True, ("gemm",),
    )  # fmt: skip
    assert (plain.op, plain.family, plain.kernel, plain.verified) == ("softmax", "reduction", "", False)
    assert [one.seconds for one in found.calls] == sorted((one.seconds for one in found.calls), reverse=True)
    assert records.from_json(ModelMap, records.to_json(found)) == found


@pytest.mark.parametrize("shown", [text, lambda record: render_page([record])], ids=["terminal", "page"])
def test_what_is_shown_says_share_kernel_and_where_to_learn_it(
    found: ModelMap, shown: Callable[[ModelMap], str]
) -> None:
    said = " ".join(shown(found).split())
    for expected in ("50%", "25%", "avx512", "verified", "kernelworks learn start gemm", "no op of kernelworks"):
        assert expected in said
