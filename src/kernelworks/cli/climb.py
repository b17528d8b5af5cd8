"""Climbs a ladder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, USAGE, fail, faults, measuring
from kernelworks.cli.files import writable_folder
from kernelworks.cli.names import check_words
from kernelworks.cli.options import Json, Rough

__all__ = ["VERBS"]


def climb(
    ladder: Annotated[
        str | None, typer.Argument(help="A ladder's name or folder; `new` starts one, `tile` draws one tile's journey.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="After `new`: the name of your ladder.")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Name the ladders: hardware, minutes, exercises, rungs.")
    ] = False,
    rung: Annotated[int | None, typer.Option("--rung", min=1, help="Only this rung.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only compile, and interpret Triton's rungs: what each takes, its hot loop. Needs no GPU.",
        ),
    ] = False,
    watched: Annotated[
        bool, typer.Option("--watch", help="Again whenever a rung's file is written, until Ctrl-C.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="After `new`: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the results, the worklog and the page, by default kernelworks-out.",
            metavar="FOLDER",
        ),
    ] = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """Climbs a ladder on this machine, from naive code to the vendor's rate, and writes its worklog.

    Each rung says what it expects, is verified against float64, and is then benchmarked against the rung before and the
    vendors' libraries, beside what the machine was measured to do. A rung that is wrong gets no figure (exit code 1),
    nor does one that was benchmarked while the machine was busy (exit code 3); with --rough it gets a wide one,
    marked, and no verdict on what it predicted.
    """
    if name is not None and ladder != "new":
        fail(f"one ladder at a time; {name!r} is one more", USAGE)
    if watched and (ladder in (None, "new", "tile") or listed or check or json):
        fail("--watch goes with a ladder, and not with --list, --check or --json", USAGE)
    with faults((ValueError,)):
        _check(ladder, name, device, listed=listed)
    from kernelworks.climb import command

    with faults((ValueError, RuntimeError), rough=True):
        if ladder == "new":
            typer.echo(command.start_ladder(name, device))
            return
        if listed or ladder is None:
            command.list_ladders(_leading_up(), json=json)
            return
        if watched:
            from kernelworks.climb.watching import watch_ladder

            watch_ladder(str(ladder), rung, lambda: measuring(f"climb {ladder}"), rough=rough)
            return
        if check:
            found = command.check_ladder(ladder, json=json)
        else:
            folder = None if json and out is None else writable_folder(out or command.OUT)
            if ladder == "tile":
                command.tile(folder, json=json)
                return
            with measuring(f"climb {ladder}") as advance:
                found = command.run_climb(ladder, rung, folder, advance, named=out is not None, json=json, rough=rough)
    if found.what:
        fail(found.said, AMBIGUOUS if found.what == "ambiguous" else FAILED)


def _check(ladder: str | None, name: str | None, device: str, *, listed: bool) -> None:
    """Raises ValueError for a ladder that is not there."""
    from kernelworks.climb.ladder_folders import ladder_folder

    if ladder == "new":
        if not name:
            raise ValueError("give your ladder a name: kernelworks climb new NAME")
        check_words("--device", (device,), ("cpu", "cuda"))
    elif ladder not in (None, "tile") and not listed:
        ladder_folder(str(ladder))


def _leading_up() -> dict[str, list[str]]:
    """By ladder, the exercises that name it."""
    from kernelworks.learn.exercise import exercises

    found: dict[str, list[str]] = {}
    for one in exercises().values():
        if one.ladder:
            found.setdefault(one.ladder, []).append(one.name)
    return found


VERBS: dict[str, Callable[..., None]] = {"climb": climb}
