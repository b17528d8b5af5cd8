"""Configurations of GPU kernels: the ``[[config]]`` tables of an op package's tuning.toml.

    [[config]]
    op_kernel = "triton"
    kernel = "forward"
    when = { N = [1, 1024], dtype = ["bfloat16"] }
    set = { BLOCK = 1024, num_warps = 4 }
    evidence = "what was measured, where and when"

``autotune --configs`` writes ``measured`` instead, a list of what it saw: case, us, used_us (of what was used before),
gpu, driver, date. The first entry whose ``when`` holds is taken: ranges are inclusive, a name that is left out may be
anything. Nothing is searched when an op is called.

    [[space]]
    op_kernel = "triton"
    kernel = "forward"
    set = { BLOCK = [1024, 2048], num_warps = [4, 8] }

says what ``autotune --configs`` may try, every combination of the values; it enters no hash. An op package of an op
template says ``template = "pointwise"`` and has the entries of that op template (``tile/pointwise.toml``) behind its
own. What ``tune`` found better on this user's GPU lies in a table of the same layout in the cache folder, which is read
first; its entries enter the hash of the kernel like the others, so they need a verification of their own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelworks.machine import environment, gpu, has_gpu

__all__ = [
    "Configs",
    "Point",
    "RecordingConfigs",
    "clear_configs",
    "configs",
    "execute_with_configs",
    "substitute_configs",
    "table_of",
    "with_configs",
    "write_tuned",
]


TEMPLATES_FOLDER = Path(__file__).resolve().parent.parent / "tile"
MEASUREMENT_KEYS = ("evidence", "measured")
ENTRY = re.compile(r"^\[\[config\]\]\n(?:(?!\[|#).*\n?)*", re.M)  # of a table's text

Point = tuple[str, tuple[tuple[str, int], ...], torch.dtype | None]  # kernel, dims, dtype of one pick


class Configs:
    """The configurations of one op package, in the order of its table.

    Read when they are first asked for: op packages hold theirs from import on, which must neither look for a GPU nor
    read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.picked: set[int] = set()  # entries that something ran with, for the verification

    @functools.cached_property
    def user_entries(self) -> list[dict[str, Any]]:
        """This user's own, which come first."""
        return table_of(self.path)

    @functools.cached_property
    def entries(self) -> list[dict[str, Any]]:
        return [*self.user_entries, *_read(self.path)]

    @functools.cached_property
    def spaces(self) -> list[dict[str, Any]]:
        return _read(self.path, "space")

    def pick(
        self, kernel: str, *, op_kernel: str = "triton", dtype: torch.dtype | None = None, **dims: int
    ) -> dict[str, Any]:
        """The constants and options of the first entry that fits. Raises LookupError where none does."""
        for number, entry in enumerate(self.entries):
            if (
                entry["op_kernel"] == op_kernel
                and entry["kernel"] == kernel
                and _holds(entry.get("when", {}), dtype, dims)
            ):
                self.picked.add(number)
                return dict(entry["set"])
        raise LookupError(f"{self.path} has no configuration of {op_kernel}.{kernel} for dtype {dtype}, {dims}")

    def candidates(
        self, kernel: str, *, op_kernel: str = "triton", dtype: torch.dtype | None = None, **dims: int
    ) -> list[dict[str, Any]]:
        """What may be tried for a pick: every combination of the values that its ``[[space]]`` tables list."""
        found: list[dict[str, Any]] = []
        for space in self.spaces:
            if (
                space["op_kernel"] == op_kernel
                and space["kernel"] == kernel
                and _holds(space.get("when", {}), dtype, dims)
            ):
                values = (v if isinstance(v, list) else [v] for v in space["set"].values())
                made = [dict(zip(space["set"], chosen, strict=True)) for chosen in itertools.product(*values)]
                found += [m for m in made if m not in found]
        return found

    def unused_entries(self, op_kernel: str) -> list[str]:
        """The entries of a kernel that nothing has picked in this process."""
        return [
            f"{entry['kernel']} {json.dumps(entry.get('when', {}))}"
            for number, entry in enumerate(self.entries)
            if entry["op_kernel"] == op_kernel and number not in self.picked
        ]

    def text(self, op_kernel: str) -> str:
        """What enters the hash of a kernel: its entries without what was measured of them."""
        own = [
            {k: v for k, v in e.items() if k not in MEASUREMENT_KEYS}
            for e in self.entries
            if e["op_kernel"] == op_kernel
        ]
        return json.dumps(own, sort_keys=True)


class RecordingConfigs(Configs):
    """An op package's configurations that note what is picked for a kernel, and answer a point with a candidate where
    one is set."""

    def __init__(self, base: Configs, op_kernel: str, forced: Mapping[Point, dict[str, Any]] | None = None) -> None:
        self.base, self.op_kernel = base, op_kernel
        self.points: dict[Point, dict[str, Any]] = {}
        self.forced: dict[Point, dict[str, Any]] = dict(forced or {})

    def pick(
        self, kernel: str, *, op_kernel: str = "triton", dtype: torch.dtype | None = None, **dims: int
    ) -> dict[str, Any]:
        point: Point = (kernel, tuple(dims.items()), dtype)
        found = self.forced.get(point) or self.base.pick(kernel, op_kernel=op_kernel, dtype=dtype, **dims)
        if op_kernel == self.op_kernel:
            self.points[point] = found
        return dict(found)


def _holds(when: Mapping[str, Any], dtype: torch.dtype | None, dims: Mapping[str, int]) -> bool:
    for name, wanted in when.items():
        if name == "dtype":
            if str(dtype).removeprefix("torch.") not in wanted:
                return False
        elif name not in dims or not wanted[0] <= dims[name] <= wanted[1]:
            return False
    return True


# ---------------------------------------------------------------- this user's tables


def _tuned_path(beside: Path) -> Path | None:
    """Where this user's table for an op package and this machine's GPU lies; None without a GPU."""
    if not has_gpu():
        return None
    op_package = beside.resolve().parent
    return environment.cache_dir("tuning") / gpu().kind / f"{op_package.parent.name}.{op_package.name}.toml"


def _read(path: Path, table: str = "config") -> list[dict[str, Any]]:
    """A file's entries, and behind them those of the op template that it names."""
    try:
        said: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    entries: list[dict[str, Any]] = said.get(table, [])
    return entries + (_read(TEMPLATES_FOLDER / f"{said['template']}.toml", table) if "template" in said else [])


def table_of(beside: Path) -> list[dict[str, Any]]:
    """This user's entries for the op package that the file ``beside`` lies in; none where the table does not read."""
    path = _tuned_path(beside)
    try:
        return _read(path) if path is not None else []
    except (OSError, ValueError):
        return []


def write_tuned(beside: Path, entries: Sequence[Mapping[str, Any]], *, replace: bool = False) -> Path:
    """Puts entries before those of this user's table, in place of any for the same kernel and sizes, or (``replace``)
    in place of all. Raises OSError, and RuntimeError without a GPU."""
    path = _tuned_path(beside)
    if path is None:
        raise RuntimeError("no CUDA device to keep configurations for")
    taken = [_what(e) for e in entries]
    kept = [] if replace else [e for e in table_of(beside) if _what(e) not in taken]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".writing")
    fresh.write_text("\n".join(_toml(e) for e in (*entries, *kept)), encoding="utf-8")
    os.replace(fresh, path)
    return path


def with_configs(text: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """An op package's table with further entries before the others of the same kernel, in place of those for the same
    sizes that ``measured`` is said of."""
    for entry in entries:
        same = [one for one in ENTRY.findall(text) if _what(tomllib.loads(one)["config"][0]) == _what(entry)]
        for one in same:
            text = text.replace(one, "", 1)
        first = next((one for one in ENTRY.findall(text) if _of_kernel(one, entry)), "")
        at = text.index(first) if first else len(text)
        text = f"{text[:at]}{_toml(entry)}\n{text[at:]}"
    return text


def _of_kernel(one: str, entry: Mapping[str, Any]) -> bool:
    its = tomllib.loads(one)["config"][0]
    return (its["op_kernel"], its["kernel"]) == (entry["op_kernel"], entry["kernel"])


def _what(entry: Mapping[str, Any]) -> str:
    return json.dumps([entry["op_kernel"], entry["kernel"], entry.get("when", {})], sort_keys=True)


def _toml(entry: Mapping[str, Any]) -> str:
    """One entry as text. Values are strings, numbers, truths, lists, and tables of these."""

    def value(v: Any) -> str:
        if isinstance(v, Mapping):
            return "{ " + ", ".join(f"{k} = {value(item)}" for k, item in v.items()) + " }"
        if isinstance(v, list):
            return "[" + ", ".join(map(value, v)) + "]"
        return json.dumps(v)  # the same in TOML

    return "[[config]]\n" + "".join(f"{k} = {value(v)}\n" for k, v in entry.items())


def configs(beside: str | Path) -> Configs:
    """The configurations of the op package that the file ``beside`` lies in; one object an op package."""
    op_package = Path(beside).resolve().parent
    return _substitutes.get(op_package) or _configs(op_package)


_substitutes: dict[Path, Any] = {}


@contextlib.contextmanager
def substitute_configs(beside: Path, table: Any) -> Iterator[None]:
    """Inside, ``configs`` of an op package gives ``table``: to what is executed there, whichever op template picks for
    it."""
    op_package = beside.resolve().parent
    _substitutes[op_package] = table
    try:
        yield
    finally:
        del _substitutes[op_package]


def execute_with_configs(module: Path, table: Any) -> Any:
    """An op package's module executed once more, with ``table`` in the place of its configurations: nothing that it
    keeps of others is used."""
    spec = importlib.util.spec_from_file_location(f"kernelworks_candidate_of_{module.parent.name}", module)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    with substitute_configs(module, table):
        spec.loader.exec_module(found)
    return found


@functools.cache
def _configs(op_package: Path) -> Configs:
    return Configs(op_package / "tuning.toml")


def clear_configs() -> None:
    """Forgets all tables, for when one has changed on disk."""
    _configs.cache_clear()
