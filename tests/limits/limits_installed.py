"""What hangs on how the package lies and is imported, each with a call that shows it; the table is in ``limits.py``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from limit import Limit

import kernelworks

__all__ = ["INSTALLED"]


def from_a_zip() -> str:
    """What an import from a zip says."""
    folder = Path(kernelworks.__file__).parent
    with tempfile.TemporaryDirectory() as beside:
        path = Path(beside) / "all.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.rglob("*.py"):
                archive.write(file, file.relative_to(folder.parent))
        run = [sys.executable, "-c", "import kernelworks, torch; kernelworks.gelu(torch.ones(2))"]
        env = {**os.environ, "PYTHONPATH": str(path)}
        return subprocess.run(run, env=env, capture_output=True, text=True, cwd=beside, check=False).stderr


def as_a_name() -> None:
    exec("import kernelworks.diagnose.optimizations.swap as swap", {})


INSTALLED = [
    Limit("kernelworks lies in a folder: it is not imported from a zip.", from_a_zip, says="NotADirectoryError"),
    Limit(
        "A verb has the name of its package: `from kernelworks.diagnose.optimizations import swap` imports what lies "
        "below, `import kernelworks.diagnose.optimizations.swap as swap` asks the verb for it.", as_a_name, ImportError,
        "cannot import name 'optimizations'",
    ),
]  # fmt: skip
