"""The tutorial's programs are those of its page: as it stands there, and with the change that it asks for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("tutorial", ROOT / "benchmarks" / "tutorial.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_change_of_the_tutorial_changes_no_result() -> None:
    tutorial, losses = loaded(), {}
    before = tutorial.program(PAGE)
    sources = {"before": before, "after": tutorial.changed_by_hand(before, PAGE)}
    for name, source in sources.items():
        scope: dict[str, Any] = {"__name__": "classify"}
        exec(compile(source, f"{name}.py", "exec"), scope)
        losses[name] = [scope["epoch"]() for _ in range(2)]
    assert "BatchSampler" in sources["after"] and "BatchSampler" not in before
    assert losses["after"] == pytest.approx(losses["before"], rel=1e-4)


def test_a_change_that_the_program_does_not_have_is_no_change() -> None:
    with pytest.raises(ValueError, match="has 0 lines 'batches ="):
        loaded().changed_by_hand("x = 1\nfrom torch.utils.data import DataLoader, TensorDataset\n", PAGE)


@pytest.mark.parametrize("fix", ['{"fix": null}', '{"fix": {"patch": "p", "gain_s": 1.0, "noise_s": 2.0}}'])
def test_a_fix_that_gains_nothing_makes_no_page(fix: str) -> None:
    with pytest.raises(SystemExit, match="nothing is written"):
        loaded().patch_of(fix)
