"""Configurations of GPU kernels: the ``[[config]]`` tables of a room's tuning.toml.

    [[config]]
    row = "triton"
    kernel = "forward"
    when = { N = [1, 1024], dtype = ["bfloat16"] }
    set = { BLOCK = 1024, num_warps = 4 }
    evidence = "what was measured, where and when"

The first entry whose ``when`` holds is taken: ranges are inclusive, a name that is left out may be anything. Nothing is
searched when an op is called.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["Configs", "configs"]


class Configs:
    """The configurations of one room, in the order of its table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("config", [])
        except FileNotFoundError:
            self.entries = []
        self.picked: set[int] = set()  # entries that something ran with, for the proof

    def pick(
        self, kernel: str, *, row: str = "triton", dtype: torch.dtype | None = None, **dims: int
    ) -> dict[str, Any]:
        """The constants and options of the first entry that fits. Raises LookupError where none does."""
        for number, entry in enumerate(self.entries):
            if entry["row"] == row and entry["kernel"] == kernel and _holds(entry.get("when", {}), dtype, dims):
                self.picked.add(number)
                return dict(entry["set"])
        raise LookupError(f"{self.path} has no configuration of {row}.{kernel} for dtype {dtype}, {dims}")

    def missed(self, row: str) -> list[str]:
        """The entries of a row that nothing has picked in this process."""
        return [
            f"{entry['kernel']} {json.dumps(entry.get('when', {}))}"
            for number, entry in enumerate(self.entries)
            if entry["row"] == row and number not in self.picked
        ]

    def text(self, row: str) -> str:
        """What enters the hash of a row: its entries without their evidence."""
        own = [{k: v for k, v in e.items() if k != "evidence"} for e in self.entries if e["row"] == row]
        return json.dumps(own, sort_keys=True)


def _holds(when: Mapping[str, Any], dtype: torch.dtype | None, dims: Mapping[str, int]) -> bool:
    for name, wanted in when.items():
        if name == "dtype":
            if str(dtype).removeprefix("torch.") not in wanted:
                return False
        elif name not in dims or not wanted[0] <= dims[name] <= wanted[1]:
            return False
    return True


@functools.cache
def configs(beside: str | Path) -> Configs:
    """The configurations of the room that the file ``beside`` lies in."""
    return Configs(Path(beside).resolve().parent / "tuning.toml")
