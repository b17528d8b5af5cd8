"""Python text that is formed at run time, executed so that a traceback and a debugger show its lines."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any

__all__ = ["run_generated_code"]


def run_generated_code(text: str, scope: dict[str, Any], name: str) -> None:
    """``exec(text, scope)``; frames of it are in the file ``<kernelworks NAME DIGEST>``, whose lines Python knows.

    One text is one file, however often it is executed.
    """
    file = f"<kernelworks {name} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # without a time it is not checked
    exec(compile(text, file, "exec"), scope)
