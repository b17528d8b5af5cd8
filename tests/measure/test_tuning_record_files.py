"""Tuning records as files: what processes that autotune leave behind, and what ships with the package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.op import OPS
from kernelworks.machine import environment

SCRIPT = textwrap.dedent("""
    import sys, torch
    import kernelworks as kw
    print("ready", flush=True)
    shapes = [(4, n) for n in range(*map(int, sys.argv[1:]))]
    kw.autotune(lambda: [kw.gelu(torch.ones(*s)) for s in shapes])
""")


def started(folder: Path, first: int, last: int) -> subprocess.Popen[str]:
    script = folder / "program.py"
    script.write_text(SCRIPT)
    variables = os.environ | {"KERNELWORKS_CHOOSE": "timed", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(script), str(first), str(last)], env=variables, stdout=subprocess.PIPE, text=True
    )


def whole(folder: Path) -> int:
    files = list(folder.glob("timings/*/*.json"))
    for file in files:
        assert json.loads(file.read_text())["tuning_records"]
    return len(files)


@pytest.fixture
def shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that processes share, with everything in it but timings that this machine's has."""
    own = Path(environment.cache_dir("x")).parent
    folder = tmp_path / "shared"
    folder.mkdir()
    for kind in ("build", "certificates"):
        if (own / kind).exists():
            (folder / kind).symlink_to(own / kind)
    monkeypatch.setenv("KERNELWORKS_CACHE", str(folder))
    return folder


@pytest.mark.usefixtures("quick_processes")
def test_two_processes_that_settle_at_once_leave_whole_files(shared_cache: Path) -> None:
    both = [started(shared_cache, 60, 62), started(shared_cache, 61, 63)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert whole(shared_cache) in (0, 3)  # 0 where no row is proved on this kind of machine


@pytest.mark.usefixtures("quick_processes")
def test_a_process_that_is_killed_leaves_whole_files(shared_cache: Path) -> None:
    process = started(shared_cache, 60, 300)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.6)
    process.send_signal(signal.SIGKILL)
    process.wait(120)
    whole(shared_cache)


SHIPPED = sorted((Path(tuning_records.__file__).parent / "timed").glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_timings_that_ship_are_whole(path: Path) -> None:
    found, word = tuning_records._read(path)
    assert not word
    assert {t.place for t in found} == {path.stem}
    assert all(t.op in OPS and all(OPS[t.op].kernel(name) for name in t.way.split("+")) for t in found)
    assert len({(t.op, t.key) for t in found}) == len(found)
