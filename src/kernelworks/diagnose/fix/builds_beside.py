"""What is built beside a fix from its start, as its supervisor has it: the process of ``build_worker.py``.

A search that races calls of ours would wait for it, for a minute on a machine where nothing was built before. The
process is halted and ended with the compilers beside, by their mark.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from kernelworks.build import cuda, native
from kernelworks.build.cache import BuildError
from kernelworks.diagnose.fix.build_worker import cuda_sources
from kernelworks.machine import environment
from kernelworks.machine.process_tree import ProcessTree

__all__ = ["BuildsBeside"]

MODULE = "kernelworks.diagnose.fix.build_worker"
PATIENCE = {"KERNELWORKS_COMPILE_SECONDS": "600"}  # the search's compilers go before, and nobody waits for it yet
BUILDING = "building beside, once on this machine, what calls of ours need"


@dataclass
class BuildsBeside:
    """``mark`` (NAME, value) is in the environment of all that it starts. ``step`` is told when it begins and ends."""

    mark: tuple[str, str]
    step: Callable[[str], None]
    process: subprocess.Popen[bytes] | None = None
    said: IO[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Begins it, if something is to be built here."""
        if self.process is not None or not _is_wanted():
            return
        package = str(Path(__file__).resolve().parents[3])
        paths = os.pathsep.join(filter(None, (environment.variables().get("PYTHONPATH", ""), package)))
        more: Mapping[str, str] = {"PYTHONPATH": paths, "KERNELWORKS_NATIVE": "build", self.mark[0]: self.mark[1]}
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  (`_ended` closes it)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE], stdin=subprocess.DEVNULL, stdout=self.said, stderr=subprocess.DEVNULL,
            process_group=0,  # in our session: what is halted ends with us
            env={**PATIENCE, **environment.variables(), **more},
        )  # fmt: skip
        self.step(BUILDING)

    def look(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            self._ended()

    def end(self) -> None:
        """Ends it, also if it is halted: what it has not built, who needs it builds."""
        if self.process is not None:
            pid = self.process.pid
            ProcessTree("=".join(self.mark), lambda: [pid]).end()
            self._ended()

    def _ended(self) -> None:
        assert self.process is not None and self.said is not None
        self.process.wait()
        self.said.seek(0)
        built = ", ".join(self.said.read().decode(errors="replace").split("\n")[:-1])
        self.step(f"built: {built}" if built else "nothing was built")
        self.said.close()
        self.process = self.said = None


def _is_wanted() -> bool:
    """Whether something is missing that this environment lets verbs build."""
    if environment.native() not in ("background", "build"):
        return False
    if environment.is_tested() and not environment.is_native_set():
        return False  # tests build nothing unless they ask for it
    with contextlib.suppress(BuildError):
        if native.is_absent() or (torch.cuda.device_count() and any(map(cuda.is_absent, cuda_sources()))):
            return True
    return False
