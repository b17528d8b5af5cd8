"""What a diagnosis says that a program changed in its process."""

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import kernelworks as kw
from kernelworks.profile.process_state import Surroundings, read_settings


def test_what_an_optimization_sets_is_not_said_of_the_program() -> None:
    """A compiler sets the limit of recursion, and a optimization the number of threads: put back, and no finding."""
    before = read_settings()
    with Surroundings() as around:
        torch.use_deterministic_algorithms(True)
        around.mark()
        sys.setrecursionlimit(5000)
        said = around.look()
    assert read_settings() == before
    assert [line.partition(" from ")[0] for line in said] == ["the program set deterministic algorithms"]


SET: dict[str, Callable[[], Any]] = {
    "the default device": lambda: torch.set_default_device("meta"),
    "autocast's dtype on the CPU": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "the search for anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "denormal numbers": lambda: torch.set_flush_denormal(True),
    "the paths of attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "oneDNN": lambda: torch.backends.mkldnn.set_flags(False),
    "the collection of garbage": gc.disable,
    "the cores that it may use": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
}


@pytest.mark.parametrize("name", SET)
def test_each_setting_is_put_back_and_said(name: str) -> None:
    before = read_settings()
    with Surroundings() as around:
        SET[name]()
        said = around.look()
    assert read_settings() == before and [line.partition(" from ")[0] for line in said] == [f"the program set {name}"]


def test_arguments_within_containers_are_put_back_too() -> None:
    """A step that takes the labels out of its batch, and writes to a tensor in it."""
    x, held = torch.ones(3), torch.zeros(2)
    batch = {"x": x, "labels": held, "seen": [1]}
    kept = (batch, [x, (held,)])
    with Surroundings(kept) as around:
        batch.pop("labels").add_(1)
        batch["x"] = x + 1
        batch["seen"].append(2)  # type: ignore[union-attr]
        around.mark()
        said = around.look()
    assert batch["x"] is x and batch["labels"] is held and batch["seen"] == [1]
    assert list(batch) == ["x", "labels", "seen"] and not held.any()
    assert said == (
        "the program writes its tensor argument 0['labels'], so each run saw another: put back",
        "the program changes what its argument 0, 0['seen'] holds: put back",
    )


def test_generators_among_the_arguments_go_on_from_where_they_were() -> None:
    given = {"torch": torch.Generator().manual_seed(1), "more": [random.Random(2), np.random.default_rng(3)]}
    held = given["torch"], *given["more"], np.random.RandomState(4)  # type: ignore[misc]

    def drawn() -> list[float]:
        return [float(torch.rand((), generator=held[0])), *(each.random() for each in held[1:3]), held[3].rand()]

    with Surroundings((given, held[3])) as around:
        first = drawn()
        assert drawn() != first and around.look() == ()
    assert drawn() == first


def test_a_name_of_the_package_draws_no_number_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it imports may: a library that numbers its links."""
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(drawn=random.random()))
    monkeypatch.setitem(kw._HOMES, "drawn", "draws")
    random.seed(5)
    before = random.getstate()
    assert isinstance(kw.drawn, float) and random.getstate() == before  # type: ignore[attr-defined]
    del kw.drawn  # type: ignore[attr-defined]


def test_arguments_that_nobody_changes_are_left_alone() -> None:
    batch = {"x": torch.ones(3), "more": [torch.ones(1), {"n": {1, 2}}]}
    with Surroundings((batch,)) as around:
        float(batch["x"].sum())  # type: ignore[attr-defined]
        assert around.look() == ()


def test_a_program_that_is_the_first_to_use_a_gpu_has_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with Surroundings() as around:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
        assert not around.look()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (lambda: torch.set_float32_matmul_precision("medium"), "from highest to medium"),
        (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), "from highest to high"),
        (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), "from highest to tf32 on a GPU"),
        (lambda: torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16"), "from highest to bf16 on a CPU"),
        (lambda: torch.set_float32_matmul_precision("highest"), ""),
    ],
)
def test_the_precision_of_products_is_put_back_to_the_word_of_each_backend(sets: Callable[[], Any], said: str) -> None:
    """Also where nobody had set it, which torch's word does not tell apart, and inductor's caches do."""
    kept = torch.backends.cuda.matmul.fp32_precision, torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    before = read_settings()
    with Surroundings() as around:
        sets()
        assert read_settings() == read_settings() != before
        lines = around.look()
    assert lines == ((f"the program set the precision of float32 products {said}: put back",) if said else ())
    assert (torch.backends.cuda.matmul.fp32_precision, torch._C._get_fp32_precision_getter("mkldnn", "matmul")) == kept
    assert torch.get_float32_matmul_precision() == "highest" and read_settings() == before
