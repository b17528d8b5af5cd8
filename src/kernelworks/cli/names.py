"""What a command line names, looked up before torch is imported: programs, files, ops, ladders, devices, words.

torch takes seconds to import, so a misspelt name is answered before that. Only what is surely wrong is refused here;
whoever does the work looks at names again.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelworks.cli.console import USAGE, fail, faults

__all__ = [
    "check_arguments", "check_budget", "check_op", "check_problem", "check_program", "check_words", "is_program",
    "optimization_names", "readable_file",
]  # fmt: skip

OPTIMIZATION = re.compile(r'^class .*\n(?:(?!class |def ).*\n)*?    name = "(.+)"$', re.M)
ARGUMENT = re.compile(r"\S+ (?P<name>\w+)(?:=[^,]*)?(?:, |$)")  # of a schema of torch's


def is_program(names: Sequence[str]) -> bool:
    """Whether the first of them looks like a file, not like an op."""
    return bool(names) and (".py" in names[0] or "/" in names[0])


def check_program(target: str, *, module: bool = False) -> None:
    """Leaves if there is no such file, module or function."""
    from kernelworks.profile.target import TargetError, check_target

    with faults((TargetError,)):
        check_target(target, module=module)


def check_op(name: str | None, more: str = "") -> None:
    """Leaves if there is no such op; of ``None``, which are all ops, there always is one."""
    from kernelworks.ops import NAMES, unknown_op

    if name is not None and name not in NAMES:
        fail(f"{unknown_op(name)}{more}", USAGE)


def check_problem(name: str) -> None:
    """Leaves if it is neither a file, nor an op with perhaps a case, nor a ladder."""
    from kernelworks.climb.ladder_folders import folders
    from kernelworks.ops import NAMES

    file, known = Path(name), re.split("[:#]", name)[0] in (*NAMES, *folders())
    if not known and not file.exists() and not Path(name.rpartition("#")[0] or name).exists():
        fail(f"{name}: {os.strerror(errno.ENOENT)}, and no op or ladder of this name", USAGE)


def readable_file(path: Path) -> None:
    """Leaves if there is no such file, or it may not be read. Opens nothing: a pipe would wait. ``FILE#3`` is a part of
    a file."""
    found = path if path.exists() else Path(str(path).rpartition("#")[0] or path)
    if not found.exists():
        fail(f"{path}: {os.strerror(errno.ENOENT)}", USAGE)
    if not os.access(found, os.R_OK):
        fail(f"{path}: {os.strerror(errno.EACCES)}", USAGE)


def check_words(option: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Leaves if an option that takes words was given another one."""
    unknown = [word for word in given if word not in known]
    if unknown:
        fail(f"{option} takes {','.join(known)}, got {unknown[0]!r}", USAGE)


def check_budget(seconds: float | None) -> None:
    """Leaves if it is no time that can be spent."""
    if seconds is not None and not 0 < seconds < math.inf:
        fail(f"--budget takes a finite number of seconds above 0, got {seconds:g}", USAGE)


def optimization_names() -> list[str]:
    """The optimizations that a fix knows, as their files name them: to import those takes torch."""
    files = sorted((Path(__file__).resolve().parents[1] / "diagnose" / "optimizations").glob("*.py"))
    return [name for file in files for name in OPTIMIZATION.findall(file.read_text(encoding="utf-8"))]


def check_arguments(op: str, given: Sequence[str]) -> None:
    """Leaves if an op has no argument of a name that ``NAME=VALUE`` gives."""
    from kernelworks.ops.generated import SCHEMAS

    inside = SCHEMAS[op]["forward"].partition("(")[2].rpartition(") ->")[0]
    known = [name for name in ARGUMENT.findall(inside) if name != "op_kernel"]
    for text in given:
        name, equals, _ = text.partition("=")
        if equals and name not in known:
            fail(f"{op} has no argument {name!r}; it has {', '.join(known)}", USAGE)
