"""The choice among kernels: what is taken, what is said, and that nothing falls back in silence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from operators import Seen

import kernelworks as kw
from kernelworks.build.cpp import TARGETS
from kernelworks.build.kernels import python_kernel
from kernelworks.dispatch import certificates, plans
from kernelworks.dispatch import op as ops
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.op import OPS
from kernelworks.machine import machine

OP = OPS["rms_norm"]


def _request(**changed: object) -> object:
    x = torch.ones(4, 64)
    return OP.request("forward", (changed.get("x", x), torch.ones(64), 1e-6, None))


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates for every kernel that runs here, in a cache of their own."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(certificates, "_shipped", lambda kind: {})
    for kernel in OP.kernels:
        if kernel.source is not None:
            certificates.write(_certificate(kernel))


def _certificate(kernel: object, **changed: object) -> certificates.Certificate:
    return certificates.Certificate(
        **{
            "op": OP.name, "kernel": kernel.name, "source_hash": kernel.hash(), "toolchain": kernel.toolchain(),
            "kind": kw.machine().kind, "cases": 1, "worst": 0.5, "mutants_rejected": 1, "date": "2026-01-01",
        } | changed
    )  # fmt: skip


def test_the_first_certified_kernel_is_taken(certified: None) -> None:
    best = next((kernel for kernel in ("avx512", "avx2") if TARGETS[kernel].needs <= machine().features), "torch")
    assert choose(OP, _request()).kernel.name == best


def test_the_scalar_kernel_is_chosen_by_name_only(certified: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP, "kernels", tuple(r for r in OP.kernels if r.name in ("scalar", "torch", "reference")))
    choice = choose(OP, _request())
    assert choice.kernel.name == "torch"
    assert choice.declined == (("scalar", "plain code, for reading and checking; runs when asked for by name"),)
    assert choose(OP, _request(), kernel="scalar").kernel.name == "scalar"


def test_a_kernel_without_a_certificate_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(certificates, "_shipped", lambda kind: {})
    choice = choose(OP, _request())
    assert choice.kernel.name == "torch"
    assert any("kernelworks verify rms_norm" in reason for _, reason in choice.declined)


def test_a_stale_certificate_is_named(certified: None) -> None:
    for kernel in OP.kernels:
        if kernel.source is not None:
            certificates.write(_certificate(kernel, source_hash="0" * 64))
    choice = choose(OP, _request())
    assert choice.kernel.name == "torch"
    assert any("stale certificate" in reason for _, reason in choice.declined)


def test_another_toolchain_is_not_trusted(certified: None) -> None:
    kernel = OP.kernel("scalar")
    certificates.write(_certificate(kernel, toolchain="g++ 0.0.0"))
    assert "verified with g++ 0.0.0" in (certificates.invalid_reason(OP.name, kernel) or "")


@pytest.mark.parametrize("worst", [1.01, float("inf"), float("nan")])
def test_a_certificate_of_an_error_beyond_the_bound_does_not_hold(certified: None, worst: object) -> None:
    kernel = OP.kernel("scalar")
    certificates.write(_certificate(kernel, worst=worst))
    assert f"an error of {worst} times the bound" in (certificates.invalid_reason(OP.name, kernel) or "")


@pytest.mark.parametrize("worst", [None, "0.5", True])
def test_a_certificate_whose_error_is_no_number_is_none(certified: None, worst: object) -> None:
    kernel = OP.kernel("scalar")
    certificates.write(_certificate(kernel, worst=worst))
    assert "cannot be read" in (certificates.invalid_reason(OP.name, kernel) or "")


def test_a_damaged_certificate_is_none(certified: None, tmp_path: Path) -> None:
    path = next(tmp_path.rglob("rms_norm.scalar.json"))
    path.write_text(path.read_text()[:40])
    assert "cannot be read" in (certificates.invalid_reason(OP.name, OP.kernel("scalar")) or "")


def test_a_kernel_asked_for_by_name_really_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    kernels = tuple(
        dataclasses.replace(
            kernel, load=lambda pass_, kernel=kernel: seen.append(kernel.name) or kernel.load.__call__(pass_)
        )
        for kernel in OP.kernels
    )
    monkeypatch.setattr(OP, "kernels", kernels)
    x = torch.ones(3, 7)
    for name in ("scalar", "reference", "torch"):
        OP.forget()
        seen.clear()
        kw.rms_norm(x, None, eps=1e-6, kernel=name)
        assert set(seen) == {name}
    OP.forget()


def test_a_kernel_that_cannot_run_raises_and_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    declining = dataclasses.replace(OP.kernel("scalar"), guard=lambda request: "not today")
    monkeypatch.setattr(OP, "kernels", (declining, OP.kernel("torch"), OP.kernel("reference")))
    OP.forget()
    with pytest.raises(RuntimeError, match=r"kernel 'scalar' of rms_norm cannot run: not today"):
        kw.rms_norm(torch.ones(3, 7), None, eps=1e-6, kernel="scalar")
    with pytest.raises(ValueError, match="kernel must be one of"):
        kw.rms_norm(torch.ones(3, 7), None, eps=1e-6, kernel="no such kernel")
    OP.forget()


def test_torch_and_reference_come_last() -> None:
    for op in OPS.values():
        assert [r.name for r in op.kernels][-2:] == ["torch", "reference"]
    with pytest.raises(ValueError, match="last two kernels"):
        ops.Op(OP.contract, [python_kernel("torch", lambda x: x)], op_package=__file__, forward=OP.passes["forward"])


def test_out_is_checked_before_anything_is_written() -> None:
    x = torch.ones(4, 8)
    for out, kind, text in (
        (torch.zeros(4, 9), ValueError, "out must have shape"),
        (torch.zeros(4, 8, dtype=torch.float64), TypeError, "out must have dtype"),
        (torch.zeros(8, 4).t(), ValueError, "out must be contiguous"),
    ):
        with pytest.raises(kind, match=text):
            kw.rms_norm(x, None, eps=1e-6, out=out)
        assert not out.any()
    good = torch.zeros(4, 8)
    assert kw.rms_norm(x, None, eps=1e-6, out=good) is good
    assert good.all()


def test_plans_are_dropped_not_hoarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 8)
    for n in range(1, 30):
        kw.rms_norm(torch.ones(1, n), None, eps=1e-6, kernel="reference")
    assert len(OP.plans) <= 8


def test_explain_says_what_would_run() -> None:
    from kernelworks.diagnose.explain import explain

    x, weight = torch.ones(4, 64), torch.ones(64)
    told = explain("rms_norm", x, weight, eps=1e-6)
    assert told.kernel == choose(OP, _request()).kernel.name
    assert told.bytes == 2 * x.nbytes + weight.nbytes
    assert "x float32[4, 64]" in told.call
    assert explain(kw.rms_norm, x, weight, eps=1e-6, kernel="scalar").kernel == "scalar"
    with pytest.raises(ValueError, match="op must be one of"):
        explain("no_such_op", x)
    with pytest.raises(ValueError, match="weight must have shape"):
        explain("rms_norm", x, torch.ones(3), eps=1e-6)


def test_torch_sees_our_op_under_modes_grad_and_compile() -> None:
    x = torch.randn(3, 16)
    with Seen() as seen:
        kw.rms_norm(x, None, eps=1e-6)
    assert seen.names == ["kernelworks.rms_norm.default"]
    with torch.profiler.profile() as profile:
        kw.rms_norm(x, None, eps=1e-6)
    assert "kernelworks::rms_norm" in {event.key for event in profile.key_averages()}
    compiled = torch.compile(lambda v: kw.rms_norm(v * 2, None, eps=1e-6) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), kw.rms_norm(x * 2, None, eps=1e-6) + 1)
    found = torch.func.grad(lambda v: kw.rms_norm(v, None, eps=1e-6).sum())(x)
    want = torch.func.grad(lambda v: torch.nn.functional.rms_norm(v, (16,), None, 1e-6).sum())(x)
    torch.testing.assert_close(found, want)
