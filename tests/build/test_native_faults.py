"""Builds of the way in through C++ that fail, hang, lie or are cut short: calls go through Python, and that is said."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked
import pytest
from compilers import compiler

from kernelworks.build import native

CALLS = """
import json, sys, time, torch
import kernelworks as kw
from kernelworks.build import native
from kernelworks.dispatch.op import OPS
start = time.monotonic()
if "provide" in sys.argv:
    native.provide()
x = torch.randn(3, 8, requires_grad=True)
y = kw.gelu(x, kernel="torch")
y.sum().backward()
want = torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x)[0]
right, in_cpp, reason = torch.allclose(x.grad, want), OPS["gelu"].entry.in_cpp, native.fallback_reason()
print(json.dumps([right, in_cpp, reason, time.monotonic() - start]))
"""


def run(*args: str, **env: str) -> tuple[bool, bool, str, float]:
    """Whether a process's answers are right, whether it called through C++, why not, and its seconds."""
    done = forked.python(*args, code=CALLS, **env)
    assert done.returncode == 0, done.stderr
    right, in_cpp, why, seconds = json.loads(done.stdout)
    return right, in_cpp, why, seconds


@pytest.fixture(scope="module")
def built() -> Path:
    """The extension of this machine's cache."""
    assert native.find_extension() is not None, native.fallback_reason()
    return Path(str(native.find_extension().__file__))  # type: ignore[union-attr]


FAULTS = {
    "no compiler": (None, "is not on the PATH"),
    "fails": ("echo broken >&2; exit 1", "broken"),
    "hangs": ("sleep 600", "in 1 s"),
    "writes nothing": ("exit 0", "cannot compile a function of one line"),
    "writes junk": ('echo junk > "$out"', "it is no ELF file"),
    "another library": ('case "$out" in *native*) g++ -shared -fPIC -x c++ /dev/null -o "$out";; esac', "PyInit"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_built_is_done_in_python(fault: str, tmp_path: Path) -> None:
    body, text = FAULTS[fault]
    command, log = ("no-such-g++", None) if body is None else compiler(tmp_path, body)
    env = {
        "KERNELWORKS_CXX": command, "KERNELWORKS_CACHE": str(tmp_path / "cache"), "KERNELWORKS_NATIVE": "build",
        "KERNELWORKS_COMPILE_SECONDS": "1",
    }  # fmt: skip
    asked = []
    for _ in range(2):
        right, in_cpp, why, seconds = run("provide", **env)
        assert right and not in_cpp and text in why, why
        assert seconds < 60  # a compiler that hangs sleeps for ten minutes, and is not waited for
        asked.append(len(log.read_text().splitlines()) if log else 0)
    assert asked[0] == asked[1] <= 3  # with and without what changes most, and one line to tell whose fault it is


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "no note", "gone"])
def test_a_damaged_file_is_not_loaded(damage: str, built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    for path in (built, built.with_suffix(".json")):
        shutil.copy(path, folder)
    made = folder / built.name
    env = {"KERNELWORKS_CACHE": str(tmp_path), "KERNELWORKS_NATIVE": "found"}
    assert run(**env)[:3] == (True, True, "")
    if damage == "cut short":
        made.write_bytes(made.read_bytes()[:50_000])
        note = {"sha256": hashlib.sha256(made.read_bytes()).hexdigest()}
        made.with_suffix(".json").write_text(json.dumps(note))
    elif damage == "other bytes":
        made.write_bytes(made.read_bytes()[:-1] + b"!")
    else:
        (made.with_suffix(".json") if damage == "no note" else made).unlink()
    right, in_cpp, why, _ = run(**env)
    assert right and not in_cpp
    assert ("cut short" if damage == "cut short" else "not built yet") in why


def test_it_is_left_alone_where_that_is_asked_for(built: Path) -> None:
    right, in_cpp, why, _ = run(KERNELWORKS_NATIVE="0")
    assert right and not in_cpp and why == "KERNELWORKS_NATIVE is 0"


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    right, in_cpp, why, _ = run("provide", KERNELWORKS_CACHE=str(file), KERNELWORKS_NATIVE="build")
    assert right and not in_cpp and "cannot be used" in why


def test_processes_that_start_at_once_build_it_once(built: Path, tmp_path: Path) -> None:
    command, log = compiler(tmp_path, f'case "$out" in *native*) sleep 1; cp {built} "$out";; esac')
    env = os.environ | {
        "KERNELWORKS_CXX": command, "KERNELWORKS_CACHE": str(tmp_path / "cache"), "KERNELWORKS_NATIVE": "build",
    }  # fmt: skip
    program = "from kernelworks.build import native; print(native.provide() is not None)"

    def one(_: int) -> str:
        return subprocess.run([forked.interpreter(), "-c", program], env=env, capture_output=True, text=True).stdout

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, range(3))) == ["True\n"] * 3
    assert len(log.read_text().splitlines()) == 1
