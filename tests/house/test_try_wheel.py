"""What a user is left with after uninstalling: the tool that looks finds what it must."""

from __future__ import annotations

from pathlib import Path

import pytest

import try_wheel


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("work/kernelworks-out/train.json", False), ("work/kernelworks-out/train.html", False),
        ("home/.cache/kernelworks/build/a.so", True), ("home/.config/other", True), ("work/core", True),
        ("venv/lib/python3/site-packages/kernelworks/ladders/x.cpp", True), ("venv/bin/kernelworks", True),
        ("venv/bin/pip", False),
    ],
)  # fmt: skip
def test_what_is_left_is_found(path: str, left: bool, tmp_path: Path) -> None:
    for folder in ("home", "venv", "work"):
        (tmp_path / folder).mkdir()
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("")
    found = list(try_wheel.left_behind(tmp_path / "home", tmp_path / "venv", tmp_path / "work"))
    assert found == ([tmp_path / path] if left else [])
