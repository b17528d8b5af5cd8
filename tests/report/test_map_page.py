"""The kernel map as a page."""

from __future__ import annotations

import re
from html import unescape

from kernelworks.ops import FAMILIES
from kernelworks.records import MapKernel, MapOp
from kernelworks.report.family_readings import family_readings
from kernelworks.report.html import render_page
from kernelworks.report.map_page import kernel_state

KERNELS = (
    MapKernel("avx512", "avx512", "2026-11-21", "", 0.42, 0.9, 1.5, "torch", "x86_64-some"),
    MapKernel("triton", "cuda", "", "not verified on this kind of machine; run `kernelworks verify softmax.triton`"),
    MapKernel("torch", "torch", "", ""),
)
SOFTMAX = MapOp(
    "softmax", "reduction", "exp(x - max) / sum", "a paper", KERNELS, "ops/reduction/softmax", ("kw.softmax(x)",),
    exercises=("softmax",),
)  # fmt: skip
OTHER = MapOp("<b>", "zzz", "a < b", "", ())


def test_every_family_is_read_in_three_ways() -> None:
    assert family_readings().keys() == FAMILIES.keys()
    assert all(
        all((part and part[0].islower()) or part[0].isupper() for part in one) for one in family_readings().values()
    )


def test_kernels_are_told_by_whether_a_certificate_holds() -> None:
    assert [kernel_state(kernel) for kernel in KERNELS] == ["verified", "unverified", "plain"]


def test_the_page_has_each_op_with_its_kernels_and_exercises() -> None:
    page = render_page([SOFTMAX, OTHER])
    assert "2 ops in 2 families; 1 of 2 kernels are verified" in page
    assert re.findall(r'<span class="kernel (\w+)">(\w+)</span>', page) == [
        ("verified", "avx512"),
        ("unverified", "triton"),
    ]
    text = unescape(re.sub(r"<[^>]+>", "", page))
    for said in (
        "exp(x - max) / sum",
        "avx512: verified 2026-11-21 on x86_64-some, worst error 0.42 of its bound, 90% of its roofline",
        "triton: not verified on this kind of machine",
        "torch: plain torch, needs no certificate",
        "learn it: kernelworks learn start softmax",
        family_readings()["reduction"].failure,
        "a < b",
    ):
        assert said in text, said
    assert "<b>" not in page and "map-filter" in page
