"""``KERNELWORKS_ISA``: the kernels, certificates and records of a CPU that has no wider instructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelworks.build.cpp import TARGETS
from kernelworks.machine import machine
from kernelworks.measure.peaks.survey import fingerprint, targets

OF = {"scalar": ["scalar"], "avx2": ["scalar", "avx2"], "avx512": ["scalar", "avx2", "avx512"]}


@pytest.fixture(autouse=True)
def read_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("KERNELWORKS_ISA", raising=False)  # the tests themselves may run under a cap
    for cached in (machine, fingerprint):
        cached.cache_clear()
    yield
    for cached in (machine, fingerprint):
        cached.cache_clear()


@pytest.mark.parametrize("cap", OF)
def test_a_cap_leaves_narrower_instructions_alone(cap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept = machine(), fingerprint()
    machine.cache_clear()
    fingerprint.cache_clear()
    monkeypatch.setenv("KERNELWORKS_ISA", cap)
    capped = machine()
    assert targets(capped) == [name for name in targets(whole) if name in OF[cap]]
    assert capped.features <= whole.features and capped.cores == whole.cores
    cut = any(TARGETS[name].needs <= whole.features for name in TARGETS if name not in OF[cap])
    assert (capped.kind != whole.kind) == (cut and capped.features != whole.features)
    assert (fingerprint() != kept) == (capped.kind != whole.kind)


def test_a_cap_that_is_no_instruction_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_ISA", "sse9")
    with pytest.raises(ValueError, match="KERNELWORKS_ISA must be scalar, avx2 or avx512, got 'sse9'"):
        machine()
