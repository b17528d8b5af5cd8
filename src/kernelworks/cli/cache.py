"""What kernelworks keeps on this machine: where, how much, and how to be rid of it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import USAGE, fail, print_json, show, warn
from kernelworks.cli.options import Json

__all__ = ["KINDS", "VERBS"]

# The folders of the cache, and what is lost with each. ``machine/environment.py`` knows where they lie.
KINDS = {
    "build": "compiled kernels, and what could not be compiled; built again when needed, seconds to minutes",
    "peaks": "what this machine was measured to do; measured again by the next diagnosis, some 10 s",
    "certificates": "kernels verified on this machine; `kernelworks verify --missing` makes them again",
    "tuning_records": "which kernel is fastest for a call; `kernelworks autotune` makes them again",
    "tuning": "configurations of GPU kernels that `kernelworks autotune --configs` found",
    "compile": "what torch.compile(backend=\"kernelworks\") chose for a region; chosen again when needed",
    "bench": "the last results of `kernelworks bench`, which `map` shows",
    "history": "predicted and got of every fix, from which predictions learn; lost for good",
    "search": "searches, with every candidate; lost for good",
    "launching": "what was read of our source files; read again",
    "openblas": "a library that a ladder is compared with; unpacked again",
    "farm": "which cores searches use now",
    "locks": "who measures or builds now",
}  # fmt: skip


@dataclass(frozen=True)
class CacheKind:
    """One folder of the cache."""

    kind: str
    files: int
    bytes: int
    holds: str


@dataclass(frozen=True)
class CacheContents:
    """The cache folder. ``cleared`` are the kinds that were removed now."""

    path: str
    kinds: tuple[CacheKind, ...]
    cleared: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.kinds)


def cache(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="Only these, by the names that the table has.", metavar="[KIND]...")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove them; all of them without a KIND.")] = False,
    json: Json = False,
) -> None:
    """What kernelworks keeps on this machine, where it lies, how much it is, and how to be rid of it.

    Nothing else is kept outside your own folders. `kernelworks cache --clear` before `pip uninstall kernelworks`
    leaves nothing behind. torch's own caches (torch.compile, Triton) are torch's.

    Example: kernelworks cache --clear build peaks
    """
    unknown = [kind for kind in kinds or () if kind not in KINDS]
    if unknown:
        fail(f"no part of the cache is named {unknown[0]!r}; there are {', '.join(KINDS)}", USAGE)
    others = _others()
    if clear and not kinds and others:
        fail(f"{_root()} holds {', '.join(others[:3])} too, which is not ours: name the kinds to clear", USAGE)
    chosen = kinds or list(KINDS)
    before = _contents(chosen)
    cleared = tuple(_clear(chosen)) if clear else ()
    found = CacheContents(before.path, before.kinds, cleared)
    if json:
        print_json(found)
        return
    _print(found, clear=clear)


def _root() -> Path:
    from kernelworks.machine.environment import cache_dir

    return cache_dir("build").parent


def _others() -> list[str]:
    """What lies in the cache folder and is none of ours: somebody has set KERNELWORKS_CACHE to a folder in use."""
    try:
        return sorted(path.name for path in _root().iterdir() if path.name not in KINDS)
    except OSError:
        return []


def _contents(kinds: list[str]) -> CacheContents:
    root = _root()
    found = []
    for kind in kinds:
        sizes = list(_sizes(root / kind))
        if sizes or (root / kind).is_dir():
            found.append(CacheKind(kind, len(sizes), sum(sizes), KINDS[kind]))
    return CacheContents(str(root), tuple(sorted(found, key=lambda one: -one.bytes)))


def _sizes(folder: Path) -> Iterator[int]:
    """Of the files below a folder; a link is not followed."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            stat = path.lstat()
            if not path.is_dir() or path.is_symlink():
                yield stat.st_size


def _clear(kinds: list[str]) -> Iterator[str]:
    """Removes these folders, and the cache folder if nothing is left in it: what is not ours stays."""
    root = _root()
    for kind in kinds:
        folder = root / kind
        if not folder.exists() and not folder.is_symlink():
            continue
        try:
            folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
            yield kind
        except OSError as error:
            warn(f"could not remove {folder}: {error.strerror or error}")
    with contextlib.suppress(OSError):
        root.rmdir()


def _print(found: CacheContents, *, clear: bool) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from kernelworks.report import quantity

    if not found.kinds:
        show(Text(f"{found.path}: nothing is kept"))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("kind", no_wrap=True)
    for heading in ("files", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("removed" if clear else "what it is")
    for one in found.kinds:
        said = ("yes" if one.kind in found.cleared else "no") if clear else one.holds
        table.add_row(one.kind, str(one.files), quantity.size(one.bytes), said)
    table.add_row("all", str(sum(one.files for one in found.kinds)), quantity.size(found.bytes), "")
    show(Text(found.path, style="bold"))
    show(table)


VERBS: dict[str, Callable[..., None]] = {"cache": cache}
