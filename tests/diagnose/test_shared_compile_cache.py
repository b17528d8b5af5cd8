"""A cache of inductor's that two kinds of CPU share gives neither of them the other's graphs."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config

from kernelworks.diagnose.optimizations import compiler_settings
from kernelworks.diagnose.optimizations.compiler_settings import install_impls, vector_bits

UNWRITTEN = -7.0


def test_a_kind_of_cpu_does_not_run_the_graphs_that_another_has_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the width in its key inductor takes loops for AVX-512 from the cache and compiles them for AVX2."""
    factor = 1.0 + time.time_ns() % 1_000_000 / 1e6  # a graph that no cache has yet

    def scaled(x: Tensor) -> Tensor:
        return (x + 1) * factor

    x, module = torch.arange(4096.0), nn.Identity()
    for kind in ("", "avx2"):  # the widest vectors of this CPU, then no more than AVX2's
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", kind) if kind else monkeypatch.delenv(
            "ATEN_CPU_CAPABILITY", raising=False
        )
        torch._dynamo.reset()
        back = install_impls([(module, torch.compile(scaled))])
        with torch.no_grad():
            kept = [torch.full_like(x, UNWRITTEN) for _ in range(50)]
            del kept  # memory that is left unwritten shows
            assert torch.allclose(module(x), scaled(x)), f"compiled for {kind or 'this CPU'}"
        back()


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_the_width_of_vectors_is_said_while_something_is_compiled(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vector_bits() is None or vector_bits() in (128, 256, 512)
    monkeypatch.setattr(compiler_settings, "vector_bits", lambda: bits)
    module, before = nn.Linear(2, 2), config.cpp.simdlen
    back = install_impls([(module, lambda x: x + (config.cpp.simdlen or 0))])
    assert module(torch.zeros(1)).item() == bits
    back()
    assert config.cpp.simdlen == before and module(torch.zeros(1, 2)).shape == (1, 2)
