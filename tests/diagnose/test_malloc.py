"""What the allocator optimization does to malloc: each in a process that has run nothing (`malloc_runs.py`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import pytest

RUNS = Path(__file__).with_name("malloc_runs.py")


@pytest.mark.parametrize("run", ["keeps_what_is_freed_while_it_is_told_to", "needs_no_module_to_be_compared"])
def test_in_a_process_that_has_run_nothing(run: str) -> None:
    subprocess.run([forked.interpreter(), str(RUNS), run], check=True)
