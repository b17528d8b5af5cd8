"""What a second ``autotune`` races: what changed since the first, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_autotune import KERNELS, apart, graded, outcome, taken  # noqa: F401  a fixture for all

import kernelworks as kw
from kernelworks.diagnose.explain import explain
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.plans import forget_all
from kernelworks.machine import environment


def test_what_is_autotuned_is_not_benchmarked_again_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, x = outcome(monkeypatch, 1.5), graded(4, 64)
    kw.autotune(lambda: kw.gelu(x))
    record = kw.autotune(lambda: kw.gelu(x))
    assert len(ended) == 3
    assert [(c.rounds, c.why.startswith("tuned before")) for c in record.calls] == [(0, True)] * 3
    kw.autotune(lambda: kw.gelu(x), again=True)
    assert len(ended) == 6


def test_a_kernel_that_came_since_is_benchmarked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch won against the rows of then says nothing of it; nor of one whose source is another now."""
    x, op = torch.randn(4, 64), OPS["gelu"]
    ended = outcome(monkeypatch, 0.5, 1.5)
    assert taken(lambda: kw.gelu(x)) == ["torch"] and len(ended) == 1
    assert taken(lambda: kw.gelu(x)) == ["torch"] and len(ended) == 1
    known = op.kernels
    for count, source in enumerate(("one", "another"), 2):
        later = replace(op.kernel(KERNELS[-1]), name="later", hashed=lambda kernel, source=source: source)
        monkeypatch.setattr(op, "kernels", (later, *known))
        forget_all()
        for _ in range(2):
            assert taken(lambda: kw.gelu(x)) == ["later"] and len(ended) == count


def test_what_only_the_package_speaks_of_is_benchmarked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 1.5)
    x = torch.randn(4, 64)
    kw.autotune(lambda: kw.gelu(x))
    (file,) = environment.cache_dir("tuning_records").glob("*/*.json")
    tuning_records.SHIPPED_DIR.mkdir()
    file.rename(tuning_records.shipped_path(file.parent.name))
    tuning_records.reread()
    forget_all()
    assert explain("gelu", x).kernel in KERNELS
    ended = outcome(monkeypatch, 0.9)
    assert taken(lambda: kw.gelu(x)) == ["torch"]
    assert ended == [0.9]
