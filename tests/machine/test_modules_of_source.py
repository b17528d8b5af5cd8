"""A file that is written anew within a second, with as many letters, is another module."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelworks.machine.source_module import execute_file


@pytest.mark.parametrize("keeps", [True, False])
def test_the_text_that_is_there_is_run(keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", not keeps)
    path = tmp_path / "sizes.py"
    for rows in (4096, 2048, 1024):
        path.write_text(f"rows = {rows}\n")
        os.utime(path, (1e9, 1e9))
        assert execute_file("sizes", path).rows == rows
    assert not (tmp_path / "__pycache__").exists()
