"""What inductor chooses by times is timed while nothing works beside; a process that works beside chooses nothing, and
what it leaves in inductor's caches can be loaded."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest
from torch._inductor.fx_passes import pad_mm
from torch._inductor.runtime.autotune_cache import AutotuneCache

from kernelworks.diagnose.optimizations import compiler_choices
from kernelworks.diagnose.optimizations.compiler_choices import choosing_nothing, choosing_undisturbed
from kernelworks.measure.clock.work_beside import WorkBeside, installed_work, untimed_section


def test_what_saves_a_choice_is_pickled_with_its_kernel() -> None:
    """As inductor keeps a kernel's autotuner with the graph that calls it."""
    with choosing_nothing():
        kept = pickle.dumps(AutotuneCache("its configurations").save)
        assert AutotuneCache("its configurations").save(object(), 0) is None
    loaded = pickle.loads(kept)
    assert loaded.__self__ == AutotuneCache("its configurations") and loaded.__func__ is AutotuneCache.save


def test_whether_to_pad_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(pad_mm, "get_do_bench", lambda: lambda fn: (fn(), 0.5)[1])
    work = WorkBeside(lambda: seen.append("halt"), lambda: seen.append("go on"))
    with installed_work(work), untimed_section(), choosing_undisturbed():
        assert pad_mm.get_do_bench()(lambda: seen.append("timed")) == 0.5
    assert seen == ["go on", "halt", "timed", "go on", "halt"]


class Chosen:
    """The choices that inductor keeps on disk for a machine."""

    def __init__(self) -> None:
        self.kept: dict[str, bool] = {}

    def lookup(self, key: str) -> bool | None:
        return self.kept.get(key)


def test_a_process_beside_takes_what_another_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Chosen()
    monkeypatch.setattr(pad_mm, "get_pad_cache", lambda: chosen)
    timer = threading.Timer(0.5, lambda: chosen.kept.update(product=False))
    with choosing_nothing():
        timer.start()
        assert pad_mm.get_cached_should_pad("product") is False
    timer.join()


def test_a_process_beside_does_not_choose_whether_to_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*_: Any, **__: Any) -> float:
        raise AssertionError("it was timed")

    monkeypatch.setattr(pad_mm, "get_pad_cache", Chosen)
    monkeypatch.setattr(pad_mm, "get_do_bench", lambda: timed)
    monkeypatch.setattr(compiler_choices, "WAITS_S", 0.4)
    monkeypatch.setattr(compiler_choices, "LOOKS_EACH_S", 0.1)
    begin = time.monotonic()
    with choosing_nothing():
        assert pad_mm.get_cached_should_pad("product") is None
        waited = time.monotonic() - begin
        assert waited >= 0.4
        assert pad_mm.get_cached_should_pad("another") is None  # nothing is left to wait
        with pytest.raises(RuntimeError, match="chosen by times"):
            pad_mm.get_do_bench()(lambda: None)
    with pytest.raises(AssertionError, match="it was timed"):
        pad_mm.get_do_bench()(lambda: None)
