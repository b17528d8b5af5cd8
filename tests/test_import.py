"""What ``import kernelworks`` loads, and what the package shows."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch

import kernelworks as kw

LATER = ("bench", "ceilings", "climb", "diagnose", "explanation", "models", "observe", "prove", "report", "work")

FRESH = f"""
import gc, sys
gc.disable()
import kernelworks as kw
assert not gc.isenabled()
gc.enable()

loaded = [name for name in {LATER} if f"kernelworks.{{name}}" in sys.modules]
assert not loaded, loaded

import kernelworks.bench, kernelworks.diagnose, kernelworks.machine, kernelworks.prove  # the folders, first

for name in ("bench", "diagnose", "machine", "prove", "swap", "explain"):
    assert callable(getattr(kw, name)), name
assert kw.diagnose.__module__ == "kernelworks.diagnose"
"""


def test_the_verbs_are_loaded_where_they_are_named() -> None:
    subprocess.run([sys.executable, "-c", FRESH], check=True, timeout=120)


def test_dir_is_the_public_face() -> None:
    assert dir(kw) == sorted(kw.__all__)
    for name in kw.__all__:
        assert isinstance(getattr(kw, name), types.ModuleType) is (name == "nn"), name


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'kernelworks' has no attribute 'colour'"):
        kw.colour  # type: ignore[attr-defined]  # noqa: B018


def test_a_program_that_names_the_package_compiles_whole() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return kw.gelu(kw.softmax(x, -1))

    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(program, fullgraph=True, backend="eager")(x), program(x))
