"""A judge that runs nothing: what it finds of a text follows from the text, in no time."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar

from kernelworks.judge.formats import kernelbench
from kernelworks.judge.problem import Problem
from kernelworks.records import Peaks
from kernelworks.records.judgement import Charge, Judgement, Pace, Speed
from kernelworks.search.space import space_in

__all__ = ["PARENT", "PROBLEM", "TEXT", "Pretended", "judgement"]

TEXT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""
PROBLEM: Problem = kernelbench.problem_in(Path("twice.py"), TEXT)

# What it costs: a bowl, lowest at TILE 32 and UNROLL 4.
PARENT = """
import torch

TILE = 8
UNROLL = 1
SPACE = {"TILE": [8, 16, 32, 64, 128], "UNROLL": [1, 2, 4, 8]}


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
"""
EAGER_S = 1e-3


def judgement(verdict: str = "right", ratio: float = 1.5, half: float = 0.02, why: str = "", **more: Any) -> Judgement:
    """One whose candidate is ``ratio`` times as quick as eager, give or take ``half`` of that."""
    right = verdict == "right"
    seconds = EAGER_S / ratio
    paces = (Pace("eager", EAGER_S, EAGER_S, EAGER_S, 30), Pace("candidate", seconds, seconds, seconds, 30))
    speed = Speed("eager", ratio, ratio * (1 - half), ratio * (1 + half), False)
    plain = Judgement(
        candidate="candidate", problem="twice", format="kernelbench", language="torch", verdict=verdict,
        reasons=() if right else (Charge("wrong answer", why or "an element is 1, must be 2"),), remarks=(),
        worst=0.5, calls=40, elements=1000, draws=("given",), shapes=("own",), bound=("a product",),
        paces=paces if right else (), speeds=(speed,) if right else (), limit_s=1e-4, bound_by="memory L2",
        peak="L2 read 400 GB/s", weights="none", kernels=(), kept_from=(), open_to=(), threads=1, build_s=0.1,
        seconds=0.2, date="2026-01-01T00:00:00Z",
    )  # fmt: skip
    return dataclasses.replace(plain, **more)


def _bowl(source: str) -> Judgement:
    """Of a text with a SPACE by its point; of another by the number behind QUICK, 1 without one."""
    if "WRONG" in source:
        return judgement("refused")
    space = space_in(source)
    if space is None:
        said = re.search(r"QUICK ([0-9.]+)", source)
        return judgement(ratio=float(said[1]) if said else 1.0)
    off = [list(values).index(space.at[name]) for name, values in space.choices.items()]
    return judgement(ratio=4.0 / (1 + 0.4 * (abs(off[0] - 2) + abs(off[1] - 2))))


class Pretended:
    """In the place of ``Sitting``. ``judged`` has every text that one of them was asked of, in order."""

    judged: ClassVar[list[str]] = []
    coming: ClassVar[list[list[str]]] = []  # what each was told that comes next
    finds: ClassVar[Callable[[str], Judgement]] = staticmethod(_bowl)
    allows = ""  # why the problem allows no verdict

    def __init__(self, problem: Problem, **settings: Any) -> None:
        self.say = settings["progress"]
        self.nothing = self.allows or None
        limit = SimpleNamespace(seconds=1e-4, whole=SimpleNamespace(peak="L2 read 400 GB/s"))
        ceilings: Peaks = settings["peaks"]
        self.work = None if self.allows else SimpleNamespace(
            limit=limit, limit_on=lambda threads: limit, flop=2e5, bytes=1e5, peaks=ceilings
        )  # fmt: skip

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def judge_text(
        self, name: str, source: str, language: str, coming: Sequence[tuple[str, str, str]] = ()
    ) -> Judgement:
        type(self).judged.append(source)
        type(self).coming.append([text for _, text, _ in coming])
        return type(self).finds(source)
