"""Advice on a DataLoader that a program waits for: seen in a run, with the line that asks for batches."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimization_stands import Case, OnGpu, candidates, scene_of
from torch import Tensor, nn
from torch.utils.data import DataLoader

from kernelworks.diagnose.optimizations import loaded_input
from kernelworks.diagnose.optimizations.loaded_input import loadings
from kernelworks.diagnose.sites.modules import Roots
from kernelworks.profile.program import Program


class Slow(torch.utils.data.Dataset[Tensor]):
    def __init__(self, takes: float) -> None:
        self.takes = takes

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.takes)
        return torch.zeros(4)


def case(takes: float) -> Case:
    model, loader = nn.Linear(4, 4), DataLoader(Slow(takes), batch_size=4)

    def run() -> None:
        for batch in loader:
            model(batch)

    return Case(model, run)


def test_what_a_program_waits_for_is_seen_with_its_line() -> None:
    next_one = loaded_input.loadings.__module__ and torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    (found,) = loadings(case(0.002).run)
    assert found.batches == 2 and found.workers == 0 and not found.pinned and found.seconds > 0.01
    name, _, line = found.source.partition(":")
    assert (
        name == Path(__file__).name and "for batch in loader" in Path(__file__).read_text().splitlines()[int(line) - 1]
    )
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is next_one
    assert loadings(lambda: nn.Linear(2, 2)(torch.zeros(2))) == []


@pytest.mark.parametrize(("takes", "wall", "said"), [(0.002, 0.02, True), (0.0, 1.0, False)])
def test_advice_names_the_line_and_what_to_write(takes: float, wall: float, said: bool) -> None:
    its = case(takes)
    scene = scene_of(its)
    scene.walls = (wall,)
    assert any(call.name.startswith("DataLoader") for call in scene.forecaster.timeline.calls)  # type: ignore[union-attr]
    found = candidates(loaded_input.OPTIMIZATION, scene)
    assert bool(found) == said
    if found:
        assert found[0].code == "DataLoader(..., num_workers=2, persistent_workers=True)"
        assert f"{Path(__file__).name}:" in found[0].advice and "batches; it makes them itself" in found[0].advice


@pytest.mark.parametrize(
    ("workers", "pinned", "code"),
    [
        (0, False, "num_workers=2, persistent_workers=True, pin_memory=True)\nbatch = batch.to("),
        (2, True, "num_workers=4, prefetch_factor=4, persistent_workers=True)"),
    ],
)
def test_on_a_gpu_memory_is_to_be_pinned(workers: int, pinned: bool, code: str) -> None:
    side: Any = SimpleNamespace(timeline=SimpleNamespace(calls=[SimpleNamespace(name="DataLoader, in this process")]))
    scene = OnGpu(Roots((), (), fresh=False), Program("p", lambda: None), forecaster=side, walls=(0.1,))
    scene._kept["what is loaded"] = [loaded_input.Loading("train.py:3", workers, pinned, 4, 0.05)]
    (candidate,) = loaded_input.OPTIMIZATION.candidates(scene)
    said = "train.py:3: the program waits 50 of 100 ms a run for 4 batches"
    assert code in candidate.code and said in candidate.advice and "train.py" not in candidate.says


def test_programs_that_load_nothing_are_not_run_for_it() -> None:
    ran: list[None] = []
    model = nn.Linear(4, 4)
    scene = scene_of(Case(model, lambda: (ran.append(None), model(torch.zeros(4)))))
    before = len(ran)
    assert candidates(loaded_input.OPTIMIZATION, scene) == [] and len(ran) == before
