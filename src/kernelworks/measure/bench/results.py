"""Committed benchmark results: what was measured, where, when, and on which commit."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kernelworks.build import BuildError
from kernelworks.build.cpp import toolchain
from kernelworks.machine import gpu, machine
from kernelworks.records import BenchResult, from_json, to_json
from kernelworks.records.json_text import format_lines, parse_json

__all__ = ["document", "head", "read_results", "save_results"]


def _git(*command: str) -> str | None:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit() -> str:
    """The commit this package was run from, with ``+`` if its files differ from it; ``""`` outside a checkout."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _compiler() -> str:
    try:
        return toolchain()
    except BuildError:
        return "none"


def head(device: str = "cpu", packages: Sequence[str] = ()) -> dict[str, Any]:
    """Where figures come from: machine or GPU, date, commit, the versions of Python, torch and those of these packages
    that are installed."""
    here: dict[str, Any] = {"kind": machine().kind, "name": machine().name, "cores": machine().cores}
    if device == "cuda":
        card = gpu()
        here = {"kind": card.kind, "name": card.name, "driver": card.driver, "power_limit_w": card.power_limit_w}
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"machine": here, "date": date, "commit": commit(), "versions": versions}


def document(results: Sequence[BenchResult], command: str = "") -> dict[str, Any]:
    """The results with machine, date, commit and versions, ready for JSON."""
    here = head("cuda" if any(result.device == "cuda" for result in results) else "cpu")
    here["versions"]["compiler"] = _compiler()
    return {
        **here,
        "command": command,
        "gate": "every variant within the float64 bound, or the case has no figure",
        "results": [json.loads(to_json(result)) for result in results],
    }


def save_results(results: Sequence[BenchResult], path: Path, command: str = "") -> Path:
    """Write ``document`` to ``path`` through a rename. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".writing")
    fresh.write_text(format_lines(document(results, command)) + "\n", encoding="utf-8")
    os.replace(fresh, path)
    return path


def read_results(path: Path) -> list[BenchResult]:
    """The results in a saved document. Raises OSError, ValueError."""
    held = parse_json(path.read_text(encoding="utf-8"))
    try:
        return [from_json(BenchResult, json.dumps(item)) for item in held["results"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no benchmark document: {error}") from error
