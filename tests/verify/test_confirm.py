"""A verification carried over from another kind of CPU: when it may be, what it takes, and what is refused."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest
from op_kernels import ALL_OPS, asked_kernels, label

from kernelworks.build.cpp import DIFFERING, build_library
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import machine
from kernelworks.records import Parity
from kernelworks.verify import confirmation, verify_missing

OP = OPS["rms_norm"]
ELSEWHERE = f"{machine().architecture}-maker-family1-model1-avx512f"


def _verified_elsewhere(op: Op, kernel: str, **changed: str) -> certificates.Certificate:
    held = certificates.Certificate(
        op=op.name, kernel=kernel, source_hash=op.kernel(kernel).hash(), toolchain=op.kernel(kernel).toolchain(),
        kind=ELSEWHERE, cases=696, worst=0.9, mutants_rejected=9, date="2026-01-01",
    )  # fmt: skip
    return dataclasses.replace(held, **changed)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No certificates at all: neither shipped nor made here before."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(certificates, "SHIPPED_DIR", tmp_path)
    certificates._shipped.cache_clear()
    yield
    certificates._shipped.cache_clear()


def _ship(*held: certificates.Certificate) -> None:
    certificates.write_shipped(held, ELSEWHERE)
    certificates._shipped.cache_clear()


@pytest.mark.parametrize(
    "changed", [{"source_hash": "0" * 64}, {"toolchain": "g++ 0.0.0"}, {"verified_on": "x86_64-another"}]
)
def test_another_source_or_toolchain_or_a_mere_confirmation_is_not_carried_over(
    nowhere: None, changed: dict[str, str]
) -> None:
    _ship(_verified_elsewhere(OP, "avx2", **changed))
    assert certificates.transferable_certificate(OP.name, OP.kernel("avx2")) is None
    assert "not verified on this kind" in (certificates.invalid_reason(OP.name, OP.kernel("avx2")) or "")


def test_kernels_whose_results_are_each_makers_own_are_verified_on_every_kind(nowhere: None) -> None:
    """The kernels whose libraries have vdpbf16ps, and only those."""
    _ship(
        *(_verified_elsewhere(op, r.name) for op in OPS.values() for r in op.kernels if r.device == "cpu" and r.source)
    )
    apart = [
        f"{op.name}.{r.name}" for op in OPS.values() for r in op.kernels
        if r.device == "cpu" and r.source and certificates.transferable_certificate(op.name, r) is None
    ]  # fmt: skip
    assert sorted(apart) == ["grouped_linear.avx512_bf16", "linear.avx512_bf16"]


@pytest.mark.usefixtures("quick_processes")
def test_a_confirmed_kernel_may_be_chosen_and_says_where_it_was_verified(nowhere: None) -> None:
    _ship(_verified_elsewhere(OP, "avx2"))
    assert f"verified on {ELSEWHERE}, not confirmed here yet" in (
        certificates.invalid_reason(OP.name, OP.kernel("avx2")) or ""
    )
    (verification,) = verify_missing([(OP.name, "avx2")])
    assert verification.certified and verification.verified_on == ELSEWHERE and 10 < verification.cases < 200, (
        verification
    )
    assert certificates.invalid_reason(OP.name, OP.kernel("avx2")) is None
    (held,) = certificates.find_certificates(OP.name, "avx2")
    assert held.verified_on == ELSEWHERE and held.kind == machine().kind


def test_a_kernel_that_is_wrong_here_is_not_confirmed(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker says what it found; one element off is enough."""
    _ship(_verified_elsewhere(OP, "avx2"))

    def wrong(kernels: object, progress: object, most_s: float) -> dict[str, object]:
        failure = Parity(OP.name, "avx2", "forward", "c", "float32", 2.0, False, "element 0 is off")
        said = {
            "op": OP.name,
            "kernel": "avx2",
            "cases": 3,
            "worst": 2.0,
            "worst_case": "c",
            "shares": {},
            "seconds": 0.1,
        }
        said["failures"] = [dataclasses.asdict(failure)]
        return {f"{OP.name}.avx2": confirmation._verification(said)}

    monkeypatch.setattr(confirmation, "_worked", wrong)
    (verification,) = confirmation.confirm([(OP.name, "avx2")])
    assert not verification.certified
    assert certificates.invalid_reason(OP.name, OP.kernel("avx2")) is not None


def _differing(path: Path) -> set[str]:
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True).stdout
    names = set(re.findall(r"^\s*[0-9a-f]+:\s+(\w+)", text, re.M))
    assert len(names) > 10, f"nothing was disassembled of {path}"
    return {name for name in names if any(re.fullmatch(pattern, name) for pattern in DIFFERING)}


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_libraries_hold_no_instruction_whose_result_is_each_makers_own_but_those_said(op: Op) -> None:
    for kernel in asked_kernels(op):
        if kernel.device != "cpu":
            continue
        assert kernel.source is not None
        sources = [kernel.source] if kernel.source.stem == "scalar" else sorted(op.op_package.glob("*.cpp"))
        if kernel.source.suffix == ".py":  # formed of a table's entries, all in one library
            sources = [kernel.load.args[0].path()]
        found = set.union(
            *(_differing(build_library(s, kernel.target)) for s in sources if s.stem != "scalar" or s == kernel.source)
        )
        assert found == ({kernel.differs()} - {""}), (op.name, kernel.name)
