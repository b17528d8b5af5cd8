"""Stands in for the process that builds beside a fix: it says what it has built, and works on with a compiler."""

from __future__ import annotations

import os
import subprocess
import sys

from kernelworks.machine.parent_process import die_with_parent

die_with_parent()
print("the first", flush=True)
if os.environ.get("STUB") == "works":
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], process_group=0):
        pass
print("the second", flush=True)
