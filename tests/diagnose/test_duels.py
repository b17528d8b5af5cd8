"""Two of one place benchmarked in turns: on the inputs of the module that both change, with the rest in place."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimization_stands import asked, scene_of
from torch import Tensor, nn

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.duels import CLOSE, duel, is_close_rival
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Promise, Scene
from kernelworks.diagnose.optimizations import trial

clock = [0.0]


@pytest.fixture(autouse=True)
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which only the model moves: others on the machine change nothing of that."""
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: clock[0]))


class Slow(nn.Module):
    """Takes as long as it is told to."""

    takes = 0.004

    def forward(self, x: Tensor) -> Tensor:
        clock[0] += self.takes
        return x + 1


def sleeping(model: nn.Module, name: str, takes: float, *, everywhere: bool = False, group: str = "mode") -> Try:
    def put() -> Callable[[], None]:
        before, model.takes = model.takes, takes  # type: ignore[assignment]

        def back() -> None:
            model.takes = before

        return back

    class Fixed:
        def apply(self, scene: Scene, candidate: Candidate) -> Change:
            return Change(put)

    optimization: Any = Fixed()
    site = EVERYWHERE if everywhere else scene_of(asked(model)).site(model)
    return Try(optimization, Candidate("r", site, name, group=group), Promise(1 - takes / 0.004))


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_quicker_of_two_is_told_by_turns(everywhere: bool) -> None:
    model = Slow().eval()
    scene = scene_of(asked(model))
    one = sleeping(model, "one", 0.001, everywhere=everywhere)
    rival = sleeping(model, "rival", 0.002, everywhere=everywhere)
    rival.change = rival.optimization.apply(scene, rival.candidate)
    scene.taken.append(rival.change)
    saves = duel(scene, one, [rival], [])
    assert saves == pytest.approx(0.5) and one.change is not None
    assert model.takes == 0.004
    one, rival = rival, one
    scene.taken[:] = [rival.change] if rival.change else []
    assert duel(scene, one, [rival], []) == pytest.approx(-1.0)
    torch.testing.assert_close(model(torch.zeros(2)), torch.ones(2))


@pytest.mark.parametrize(
    ("left", "group", "near"),
    [(0.5, "mode", True), (0.5 * (1 + CLOSE) - 0.01, "mode", True), (0.7, "mode", False), (0.5, "other", False)],
)
def test_only_what_is_about_as_good_in_the_same_place_is_raced(left: float, group: str, near: bool) -> None:
    model = Slow().eval()
    one = sleeping(model, "one", 0.004 * left, group=group)
    rival = sleeping(model, "rival", 0.002)
    assert is_close_rival(one, rival) == near
    rival.promise = Promise(None, how="unknown on this machine")  # its benchmark said what this one's did
    rival.predicted = 0.5
    assert is_close_rival(one, rival) == near
