"""The tutorial's programs are those of its page: as it stands there, and with the change that it asks for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("tutorial", ROOT / "benchmarks" / "tutorial.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_change_of_the_tutorial_changes_no_result() -> None:
    sources = loaded().programs((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    results = {}
    for name, source in sources.items():
        scope: dict[str, Any] = {"__name__": "encode"}
        exec(compile(source, f"{name}.py", "exec"), scope)
        results[name] = scope["encode"]()
    assert "scores" in sources["before"] and "scores" not in sources["after"]
    assert results["before"].shape == (16, 256)
    torch.testing.assert_close(results["after"], results["before"])
