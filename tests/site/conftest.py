"""The site that ``make site`` builds, once for all its tests.

Its tests want what ``pip install .[site]`` brings; those in a browser want playwright, axe-playwright-python and a
Chromium besides. What cannot run is not collected, and the end of the run says which and why.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NEEDS = {"test_site.py": ("mkdocs", "material"), "test_site_in_browser.py": ("playwright", "axe_playwright_python")}


def missing(file: str) -> list[str]:
    """What is not installed of what the tests of a file want."""
    wanted = NEEDS["test_site.py"] if file == "test_site.py" else (*NEEDS["test_site.py"], *NEEDS[file])
    found = [name for name in wanted if importlib.util.find_spec(name) is None]
    has_browser = file == "test_site.py" or any(map(shutil.which, BROWSERS))
    return found if has_browser else [*found, "a Chromium on the PATH"]


collect_ignore = [file for file in NEEDS if missing(file)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for file in collect_ignore:
        terminalreporter.write_line(f"not run: tests/site/{file}: not installed: {', '.join(missing(file))}")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The site, built in strict mode, once for all workers of a run: a warning fails it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if hasattr(request.config, "workerinput") else base
    folder, whole = base / "site", base / "site.whole"
    with (base / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            _build(folder)
            whole.touch()
    return folder


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
