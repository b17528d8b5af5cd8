"""``kernelworks cache``: what is kept, and how to be rid of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from typer.testing import CliRunner, Result

from kernelworks.cli import app
from kernelworks.cli.cache import KINDS
from kernelworks.machine.environment import cache_dir

SOURCE = Path(__file__).resolve().parents[2] / "src"


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cache", *arguments])


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("KERNELWORKS_CACHE", str(root))
    for name, size in (("build/a.so", 3000), ("build/sub/b.so", 1000), ("peaks/p.json", 10)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    return root


def test_every_folder_of_the_cache_is_listed() -> None:
    used = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"(?<!user_)cache_dir\(['\"](\w+)['\"]\)", path.read_text())
    }
    assert used == set(KINDS)


def test_what_is_kept_by_kind(kept: Path) -> None:
    found = json.loads(cli("--json").stdout)
    assert found["path"] == str(kept)
    assert [(one["kind"], one["files"], one["bytes"]) for one in found["kinds"]] == [
        ("build", 2, 4000), ("peaks", 1, 10),
    ]  # fmt: skip
    shown = cli().stdout
    assert str(kept) in shown.replace("\n", "") and "3.9 KiB" in shown


def test_one_kind_is_cleared_and_then_all(kept: Path) -> None:
    assert json.loads(cli("--clear", "build", "--json").stdout)["cleared"] == ["build"]
    assert not (kept / "build").exists() and (kept / "peaks" / "p.json").is_file()
    assert cli("--clear").exit_code == 0
    assert not kept.exists()
    empty = cli("--clear")
    assert empty.exit_code == 0 and "nothing is kept" in empty.stdout


def test_what_is_not_ours_stays(kept: Path, tmp_path: Path) -> None:
    (kept / "thesis.tex").write_text("", encoding="utf-8")
    result = cli("--clear")
    assert result.exit_code == 2 and "thesis.tex" in result.stderr
    assert (kept / "build" / "a.so").is_file()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("", encoding="utf-8")
    (kept / "search").symlink_to(tmp_path / "elsewhere")
    (kept / "build" / "link").symlink_to(tmp_path / "elsewhere")
    assert cli("--clear", "build", "search").exit_code == 0
    assert sorted(path.name for path in kept.iterdir()) == ["peaks", "thesis.tex"]
    assert (tmp_path / "elsewhere" / "kept").is_file()


def test_a_kind_that_is_not_there_is_usage(kept: Path) -> None:
    result = cli("--clear", "nonsense")
    assert result.exit_code == 2 and "no part of the cache is named 'nonsense'" in result.stderr
    assert (kept / "build" / "a.so").is_file()


# ---------------------------------------------------------------- where it lies

WHERE = "from kernelworks.machine.environment import cache_dir; print(cache_dir('build'))"


def where(**variables: str) -> str:
    kept = {name: v for name, v in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "KERNELWORKS_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", WHERE], env={**kept, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_cache_follows_the_variables(tmp_path: Path) -> None:
    assert where(XDG_CACHE_HOME="/x", HOME="/h") == "/x/kernelworks/build"
    assert where(HOME="/h") == "/h/.cache/kernelworks/build"
    assert where(KERNELWORKS_CACHE="/k", XDG_CACHE_HOME="/x", HOME="/h") == "/k/build"
    assert where().endswith("/.cache/kernelworks/build") and where().startswith("/")  # the user's, without HOME


def test_a_home_that_cannot_be_written_is_said_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "prog.py").write_text("import torch\nx = torch.ones(64, 64)\ndef f():\n    return x @ x\n")
    kept = {name: v for name, v in os.environ.items() if name not in ("XDG_CACHE_HOME", "KERNELWORKS_CACHE")}
    done = subprocess.run(
        [forked.interpreter(), "-m", "kernelworks", "diagnose", "prog.py:f", "--rough"], cwd=tmp_path,
        env={**kept, "HOME": str(tmp_path / "file")}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "prog.py:4" in shown and "KERNELWORKS_CACHE" in shown
    assert (tmp_path / "kernelworks-out" / "prog-f.json").is_file()


def test_the_folder_is_not_made_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    assert cli().exit_code == 0
    assert not cache_dir("build").parent.exists()
