"""What is killed leaves nothing behind: a compiler's temporary files go with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelworks.machine.process_state import process_state
from kernelworks.machine.process_tree import ProcessTree, group_members, kill_processes

NEVER_S = 60.0  # what does not happen in this time does not happen


@pytest.fixture(params=["g++", "g++-12"])
def compiler(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One that waits for more of its source, and has a temporary file by then."""
    named = tmp_path / request.param
    named.symlink_to(shutil.which("g++") or "g++")
    command = [str(named), "-x", "c++", "-c", "-", "-o", str(tmp_path / "made.o")]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0,
        env=os.environ | {"TMPDIR": str(scratch), "KERNELWORKS_TEST_TREE": str(tmp_path)},
    ) as driver:  # fmt: skip
        until = time.monotonic() + NEVER_S
        while len(group_members(driver.pid)) < 2 or not list(scratch.iterdir()):
            assert time.monotonic() < until
            time.sleep(0.01)
        yield driver, scratch
        kill_processes(lambda: group_members(driver.pid))


@pytest.mark.parametrize("halted", [False, True])
def test_a_compilers_temporary_files_go_with_it(
    halted: bool, compiler: tuple[subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    driver, scratch = compiler
    tree = ProcessTree(f"KERNELWORKS_TEST_TREE={tmp_path}", lambda: [driver.pid])
    if halted:
        assert tree.halt(NEVER_S)
    tree.end(NEVER_S)
    assert not list(scratch.iterdir()) and driver.wait(NEVER_S)


def test_a_driver_that_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    stubborn = tmp_path / "g++"
    stubborn.symlink_to("/bin/sleep")
    ignored = lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)  # noqa: E731
    with subprocess.Popen([stubborn, "600"], preexec_fn=ignored, process_group=0) as process:
        kill_processes(lambda: [process.pid], NEVER_S)
        assert process.wait(NEVER_S) == -signal.SIGKILL
    assert process_state(process.pid) is None
