"""A search without a judge's processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pretended import PROBLEM, Pretended

from kernelworks.records import Peaks
from kernelworks.records.search import Search
from kernelworks.search import loop


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Pretended]]:
    """The judge, as long as a test runs."""

    class Own(Pretended):
        judged: ClassVar[list[str]] = []
        coming: ClassVar[list[list[str]]] = []

    monkeypatch.setattr(loop, "Sitting", Own)
    monkeypatch.setattr(loop, "Nursery", lambda **_: contextlib.nullcontext())
    yield Own


@pytest.fixture
def searched(pretended: type[Pretended], ceilings: Peaks, tmp_path: Path) -> Callable[..., Search]:
    """A search for the same problem in the same store."""

    def run(**given: Any) -> Search:
        return loop.search(PROBLEM, **{"store": tmp_path / "s.sqlite", "threads": 1, "peaks": ceilings} | given)

    return run
