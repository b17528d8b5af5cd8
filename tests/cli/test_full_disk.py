"""A disk that is full: what was there stays, nothing is named that is not there, and it is no fault of the package."""

from __future__ import annotations

import contextlib
import importlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.cli.files import write
from kernelworks.records import Diagnosis, to_document


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As on a disk that has so much left: a longer write raises."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_is_as_it_was_or_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with no_file_above(4096):
        assert not write(page, "x" * 5000)
        assert not list(tmp_path.iterdir())
        page.write_text("before")
        assert not write(page, "x" * 5000)
        assert page.read_text() == "before" and list(tmp_path.iterdir()) == [page]
    page.chmod(0o640)
    assert write(page, "after")
    assert page.read_text() == "after" and page.stat().st_mode & 0o777 == 0o640
    link = tmp_path / "link.html"
    link.symlink_to(page)
    assert write(link, "through the link")
    assert link.is_symlink() and page.read_text() == "through the link"


def test_show_names_no_page_that_it_could_not_write(tmp_path: Path, diagnosis: Diagnosis) -> None:
    record, page = tmp_path / "program.json", tmp_path / "program.html"
    record.write_text(to_document(diagnosis))
    with no_file_above(64):
        result = CliRunner().invoke(app, ["show", str(record), "--html", str(page)])
    assert result.exit_code == 1
    assert "RESULT" in result.stdout and str(page) not in result.stdout
    assert f"could not write {page}" in result.stderr and not page.exists()


@pytest.mark.parametrize(("size", "code"), [(64, 1), (1 << 30, 0)])
def test_a_diagnosis_whose_files_could_not_be_written_says_so_by_its_code(
    size: int, code: int, tmp_path: Path, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("kernelworks.diagnose"), "diagnose_script", lambda *given, **options: diagnosis
    )
    program = tmp_path / "program.py"
    program.write_text("")
    with no_file_above(size):
        result = CliRunner().invoke(app, ["diagnose", str(program), "--out", str(tmp_path)])
    assert (result.exit_code, "could not write" in result.stderr) == (code, bool(code))


@pytest.mark.parametrize("arguments", [("--version",), ("cache", "--json")])
def test_an_output_that_is_full_is_no_fault_of_the_package(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "kernelworks", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "kernelworks: could not write the output: No space left on device\n"
