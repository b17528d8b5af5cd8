"""Slow paths are said, with the line and the factor; programs that look like them and are not say nothing.

Which of two is quicker decides whether it is worth a word, so a stand-in says how long each takes.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from printed import printed
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import kernelworks as kw
from kernelworks.diagnose.record import with_alarms
from kernelworks.diagnose.slow_paths import (
    WATCHERS,
    arrays_in_lists,
    denormals,
    generation_without_cache,
    math_attention,
    missing_packages,
    narrow_products,
    rows_of_tensors,
    unread_maps,
)
from kernelworks.diagnose.slow_paths.look import slow_paths
from kernelworks.diagnose.slow_paths.slow_path import Watcher
from kernelworks.records import Peaks
from kernelworks.report import diagnose as report

Program = Callable[[], Any]


@pytest.fixture(autouse=True)
def a_stand_in_for_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two that are timed takes 4 ms, the second 1 ms."""
    for file in (denormals, math_attention, narrow_products, unread_maps, arrays_in_lists, rows_of_tensors):
        times = iter([4e-3, 1e-3] * 100)
        monkeypatch.setattr(
            file, "seconds_of", lambda run, *args, times=times, **kwargs: (run(*args, **kwargs), next(times))[1]
        )


def said(program: Program, kind: type[Watcher], wall_s: float = 1e-6) -> tuple[str, ...]:
    with torch.no_grad():
        return slow_paths(program, wall_s, [kind])


def _attention(**more: Any) -> Program:
    heads = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    return lambda: heads(x, x, x, **more)[0]


def _read() -> Any:
    heads, x = nn.MultiheadAttention(16, 2, batch_first=True).train(), torch.randn(2, 5, 16)

    def program() -> Tensor:
        out, maps = heads(x, key=x, value=x)
        return out.sum() + maps.mean()  # type: ignore[no-any-return]

    return program


def _returned() -> Any:
    heads, x = nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(2, 5, 16)
    kept: list[Any] = []

    def program() -> None:
        kept.append(heads(x, x, x)[1])

    return program


def _sdpa(**more: Any) -> Program:
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(q, k, v, **more)


def _linear(dtype: torch.dtype, *, autocast: bool = False) -> Program:
    layer = nn.Linear(8, 8).to(torch.float32 if autocast else dtype)
    x = torch.randn(4, 8, dtype=torch.float32 if autocast else dtype)

    def program() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return layer(x)

    return program


def _loader(**more: Any) -> Program:
    data = TensorDataset(torch.randn(32, 3), torch.arange(32))
    return lambda: [batch[0].sum() for batch in DataLoader(data, **more)]


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embedding(ids).cumsum(1))  # type: ignore[no-any-return]


def _generated(*, whole: bool, keyword: bool = False) -> Program:
    model = Language().eval()

    def program() -> Tensor:
        ids = torch.zeros(1, 5, dtype=torch.int64)
        for _ in range(6):
            given = ids if whole else ids[:, -1:]
            logits = model(ids=given) if keyword else model(given)
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        return ids

    return program


def _filter(scale: float) -> Program:
    x = torch.full((8192,), 1e-30)
    return lambda: x * scale


TAKEN: dict[str, tuple[Program, type[Watcher], str]] = {
    "maps": (_attention(), unread_maps.Maps, "attention maps that nobody reads, 4.0x"),
    "attention with dropout": (_sdpa(dropout_p=0.5), math_attention.Attention, "math path, 4.0x as long.*dropout"),
    "bfloat16": (_linear(torch.bfloat16), narrow_products.Products, "bfloat16 products take 4.0x as long as float32"),
    "float16": (_linear(torch.float16), narrow_products.Products, "float16 products take 4.0x.*keep float32"),
    "autocast": (_linear(torch.bfloat16, autocast=True), narrow_products.Products, "bfloat16 products take 4.0x"),
    "arrays": (
        lambda: torch.tensor([np.zeros(3)] * 4), arrays_in_lists.Lists, "test_slow_paths.py:.*by number.*numpy.stack",
    ),
    "rows": (_loader(batch_size=8), rows_of_tensors.Rows, "test_slow_paths.py:.*row by row.*BatchSampler"),
    "no cache": (_generated(whole=True), generation_without_cache.Prefixes, "Language generates without .*each of 5"),
    "no cache by keyword": (_generated(whole=True, keyword=True), generation_without_cache.Prefixes, "without a cache"),
    "denormals": (_filter(1e-10), denormals.Denormals, "denormal numbers, on which arithmetic takes 4.0x"),
}  # fmt: skip
TINY = torch.full((64 * 1024,), 1e-40)
ALIKE: dict[str, tuple[Program, type[Watcher]]] = {
    "maps that are not made": (_attention(need_weights=False), unread_maps.Maps),
    "maps that are read": (_read(), unread_maps.Maps),
    "maps that are kept": (_returned(), unread_maps.Maps),
    "attention by the fused kernel": (_sdpa(is_causal=True), math_attention.Attention),
    "float32": (_linear(torch.float32), narrow_products.Products),
    "a list of numbers": (lambda: torch.tensor([[1.0, 2.0]] * 3), arrays_in_lists.Lists),
    "one array": (lambda: torch.tensor(np.zeros((3, 3))), arrays_in_lists.Lists),
    "rows with a collate of their own": (_loader(batch_size=8, collate_fn=lambda rows: rows[0]), rows_of_tensors.Rows),
    "a cache": (_generated(whole=False), generation_without_cache.Prefixes),
    "small numbers": (_filter(1e-5), denormals.Denormals),
    "zeros": (_filter(0.0), denormals.Denormals),
    "a view of denormal numbers": (lambda: TINY.view(64, -1)[1:].detach(), denormals.Denormals),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_slow_path_is_said(name: str) -> None:
    program, kind, text = TAKEN[name]
    found = said(program, kind)
    assert len(found) == 1 and re.search(text, found[0]), found


def test_memory_that_is_not_written_yet_is_no_result() -> None:
    tiny = TINY.clone()
    computing = {"empty": False, "new_empty": False, "mul": True, "mul_": True, "__imul__": True, "view": False}
    for name, computes in computing.items():
        given = {denormals._memory(tiny)} if name in ("mul_", "__imul__", "view") else set()
        assert denormals._computes(SimpleNamespace(__name__=name), tiny, given) == computes, name


@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_like_one_and_is_none_says_nothing(name: str) -> None:
    assert said(*ALIKE[name]) == ()


@pytest.mark.parametrize("name", TAKEN)
def test_what_costs_little_of_the_program_is_not_said(name: str) -> None:
    program, kind, _ = TAKEN[name]
    assert said(program, kind, wall_s=1e6) == ()


def test_what_is_no_slower_here_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine decides: bfloat16 may be quick, and denormals may cost nothing."""
    for name in ("bfloat16", "denormals", "maps", "attention with dropout"):
        program, kind, _ = TAKEN[name]
        monkeypatch.setattr(sys.modules[kind.__module__], "seconds_of", lambda run, *args, **kwargs: 1e-3)
        assert said(program, kind) == (), name


def test_a_missing_package_is_said_by_its_name_and_only_if_it_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    file = types.ModuleType("modeling_of_somebody")
    text = """
import torch
from torch import nn
selective_scan_fn, causal_conv1d_fn = None, None
is_fast_path_available = all((selective_scan_fn, causal_conv1d_fn))
class Mixer(nn.Module):
    def forward(self, x):
        if is_fast_path_available:
            return selective_scan_fn(causal_conv1d_fn(x))
        return x.cumsum(0)
"""
    exec(text, vars(file))
    file.Mixer.__module__ = file.__name__
    monkeypatch.setitem(sys.modules, file.__name__, file)
    mixer, x = file.Mixer(), torch.zeros(4, 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (found,) = said(lambda: mixer(x), missing_packages.Packages)
    assert "Mixer runs its slow pure-torch path" in found and "causal-conv1d and mamba-ssm" in found
    assert "would gain nothing here" in found
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (found,) = said(lambda: mixer(x), missing_packages.Packages)
    assert found.endswith("not installed: causal-conv1d and mamba-ssm")
    file.selective_scan_fn = file.causal_conv1d_fn = torch.relu
    assert said(lambda: mixer(x), missing_packages.Packages) == ()


@pytest.mark.parametrize("new", [True, False])
def test_a_function_that_stands_for_a_kernel_tells_its_package(new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = types.ModuleType("modeling_of_somebody")
    text = """
from torch import nn
def stands_for(package, is_new_implementation):
    def scan(x):
        return (package, is_new_implementation) and x.cumsum(0)
    return scan
class Mixer(nn.Module):
    def forward(self, x):
        return scan(x)
"""
    exec(text, vars(file))
    file.scan = file.stands_for("fla_core", new)
    file.Mixer.__module__ = file.__name__
    monkeypatch.setitem(sys.modules, file.__name__, file)
    mixer, x = file.Mixer(), torch.zeros(4, 4)
    found = said(lambda: mixer(x), missing_packages.Packages)
    assert ["fla-core" in one for one in found] == ([] if new else [True])


def test_looking_leaves_no_trace_and_a_program_that_raises_is_left_alone() -> None:
    call, tensor = nn.Module.__call__, torch.tensor
    ran: list[int] = []

    def raises() -> None:
        ran.append(1)
        raise ValueError("only once")

    assert slow_paths(raises, 1e-6) == () and ran == [1]
    assert nn.Module.__call__ is call and torch.tensor is tensor
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    got: list[Tensor] = []
    slow_paths(lambda: got.append(torch.rand(2)), 1.0)
    assert torch.equal(got[0], expected)


def test_a_report_says_them_first(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _attention()
    found = kw.diagnose(program, peaks=ceilings, budget_s=0.3, rough=True)
    assert any("maps that nobody reads" in alarm for alarm in found.alarms)
    (first,) = [line for line in printed(report.diagnosis(found, 200), 200).splitlines() if line.startswith("RESULT")]
    assert "Slow path: 1 nn.MultiheadAttention computes attention maps" in first
    noisy = dataclasses.replace(found, alarms=(), clauses=(), sentence="ambiguous: others", ambiguous="others")
    for silent in (noisy, dataclasses.replace(noisy, clauses=("runs at 38%",), ambiguous="")):
        shown = printed(report.diagnosis(with_alarms(silent, ("the long way",)), 200), 200)
        assert shown.count("the long way") == 1 and shown.count("ambiguous: others") <= 1


def test_no_advice_names_an_optimizer_that_trains_otherwise_or_a_type_that_nobody_measured() -> None:
    from kernelworks.diagnose.rules import half_without_hardware, unfused_optimizer

    assert "AdamW" not in unfused_optimizer.ACTION and "kw." not in unfused_optimizer.ACTION
    text = half_without_hardware.applies.__code__.co_consts
    assert not any("bfloat16" in str(one) for one in text)
    assert all(issubclass(kind, Watcher) for kind in WATCHERS)
