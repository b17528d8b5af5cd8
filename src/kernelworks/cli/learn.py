"""Exercises in writing kernels, checked on this machine."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import FAILED, USAGE, fail, faults
from kernelworks.cli.options import Json

__all__ = ["VERBS"]

ACTIONS = ("list", "start", "show", "hint", "check", "solution", "cpp")
MEANT = {
    "next": "start", "begin": "start", "open": "start", "run": "check", "test": "check", "compile": "check",
    "submit": "check", "help": "--help", "progress": "list", "answer": "solution", "c++": "cpp",
}  # fmt: skip


def learn(
    action: Annotated[
        str, typer.Argument(help="list, start, show, hint, check, solution or cpp.", metavar="ACTION")
    ] = "list",
    exercise: Annotated[
        str | None,
        typer.Argument(
            help="An exercise's name, or its file; without it the last one, with start the next one.",
            metavar="EXERCISE",
        ),
    ] = None,
    watched: Annotated[
        bool, typer.Option("--watch", help="With check: again whenever the file is written, until Ctrl-C.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="With solution: show it before a check has passed.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            help="Where your files and progress lie; by default kernelworks-learn, here or in a folder above.",
            metavar="FOLDER",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Exercises from w x + b on: you write a kernel, a check says whether it is right, what is wrong, how fast it is.

    You know Python and no C++: that is enough. `list` shows the course. `start` prints an exercise's page and copies
    its starting file into your folder: change it in an editor. `check` compiles it, runs it guarded in a process apart,
    compares it with float64 and times it beside the solution and the measured peak. `hint` gives one hint more, `show`
    the page again, `cpp` the C++ that the exercises need, beside Python. `solution` shows the solution once a check has
    passed, or with --give-up. Nothing leaves this machine. Exit code 1 where a check refuses your file, 2 where the
    exercise does not exist or was not begun.

    Example: kernelworks learn start affine
    """
    if action not in ACTIONS:
        fail(_unknown(action), USAGE)
    if watched and (action != "check" or json):
        fail("--watch goes with check, and not with --json", USAGE)
    from kernelworks.learn import command
    from kernelworks.learn.progress import Progress, folder_of_learner

    if action == "cpp":
        command.show_language(json=json)
        return
    with faults((ValueError,)):
        progress = Progress(folder or folder_of_learner())
        if action == "list":
            command.list_exercises(progress, json=json)
            return
        chosen = command.named_or_next(exercise, progress, last=action != "start", json=json)
        if action == "start":
            command.start(chosen, progress, json=json)
        elif action == "show":
            command.show_exercise(chosen, progress, json=json)
        elif action == "hint":
            command.give_hint(chosen, progress, json=json)
        elif action == "solution":
            if not command.show_solution(chosen, progress, give_up=give_up, json=json):
                fail(f"no check of {chosen.name} has passed yet; --give-up shows the solution all the same", FAILED)
        elif watched:
            command.watch(chosen, progress)
        elif not command.check_file(chosen, progress, json=json):
            raise typer.Exit(FAILED)


def _unknown(action: str) -> str:
    """What an action that there is none of may have meant."""
    from kernelworks.learn.exercise import exercises

    said = f"learn does one of {', '.join(ACTIONS)}, got {action!r}"
    if action.replace("_", "-") in exercises():
        return f"{said}; did you mean kernelworks learn start {action}?"
    near = MEANT.get(action.lower()) or next(iter(difflib.get_close_matches(action, ACTIONS, 1)), "")
    return f"{said}; did you mean kernelworks learn {near}?" if near else said


VERBS: dict[str, Callable[..., None]] = {"learn": learn}
