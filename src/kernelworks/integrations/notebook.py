"""``%load_ext kernelworks``: ``%diagnose STATEMENT`` and ``%%diagnose`` in IPython and in notebooks.

A statement or a cell runs several times in the user's own namespace, as ``%timeit`` runs it. What comes back is the
record, so that the notebook draws it and ``_`` holds it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import dis
import io
import linecache
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NoReturn, cast

from kernelworks.diagnose import diagnose
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.records import Diagnosis, Hotspot
from kernelworks.report import terminal

__all__ = ["diagnose_cell", "diagnose_statement", "register_magics"]

PAGE = "notebook"  # the files that --out writes
CHANGES_HELP = "changes of numbers to try with --fix, by comma: tf32,bf16,int8,fp8"

USAGE = "%%diagnose [--fix] [--budget SECONDS] [--allow WORDS] [--rough] [--out FOLDER] STATEMENT"


class Refusal(Exception):
    """What a user can mend: the magics say it in one line."""


class UserError(Exception):
    """What the user's own code raised, with the part of its traceback that is his."""

    def __init__(self, error: BaseException, trace: TracebackType | None) -> None:
        super().__init__(str(error))
        self.error, self.trace = error, trace


class OptionParser(argparse.ArgumentParser):
    """One that never ends the process: IPython's would be gone."""

    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message}; {' '.join(self.format_usage().split())}")

    def print_help(self, file: Any = None) -> NoReturn:
        raise Refusal(self.format_help().strip())


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _make_parser() -> OptionParser:
    parser = OptionParser(prog="%diagnose", add_help=False, allow_abbrev=False, usage=USAGE)
    parser.add_argument("--fix", action="store_true", help="also try optimizations")
    parser.add_argument("--budget", type=_seconds, metavar="SECONDS", help="seconds for a fix")
    parser.add_argument("--allow", default="", metavar="WORDS", help=CHANGES_HELP)
    parser.add_argument("--rough", action="store_true", help="give figures even on a busy machine")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the page and the record there")
    parser.add_argument("-h", "--help", action="help", help="this text")
    return parser


def _split_line(line: str) -> tuple[argparse.Namespace, str]:
    """The options before a statement, and the statement as it was typed: its own quotes and dashes are its own."""
    parser, rest = _make_parser(), line.strip()
    words: list[str] = []
    takes = {word for action in parser._actions if action.nargs is None for word in action.option_strings}
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if word == "--":
            break
        words.append(word)
        if word in takes:
            value, rest = _next_word(rest)
            words += value
    return parser.parse_args(words), rest


def _next_word(text: str) -> tuple[list[str], str]:
    """The first word of a text, which quotes may hold together, and the rest."""
    source = io.StringIO(text)
    lexer = shlex.shlex(source, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        word = lexer.get_token()
    except ValueError as error:  # a quote that is not closed
        raise Refusal(f"{error}: {text}") from error
    return ([] if word is None else [word]), source.read().lstrip()


# ---------------------------------------------------------------- running


def diagnose_statement(shell: Any, line: str) -> Diagnosis:
    """``%diagnose [--fix] [--budget SECONDS] [--allow WORDS] [--rough] [--out FOLDER] STATEMENT``."""
    options, statement = _split_line(line)
    if not statement:
        raise Refusal("there is no statement: %diagnose model(x), or %%diagnose on top of a cell")
    return _diagnose(shell, options, statement, statement, ("%diagnose", statement))


def diagnose_cell(shell: Any, line: str, cell: str) -> Diagnosis:
    """``%%diagnose [options] [SETUP]`` on top of a cell. SETUP is a statement that runs once before."""
    options, setup = _split_line(line)
    if not cell.strip():
        raise Refusal("the cell is empty")
    if setup:
        exec(_compile(shell, setup), shell.user_ns)
    return _diagnose(shell, options, cell, "the cell", ("%%diagnose", setup))


def _diagnose(shell: Any, options: argparse.Namespace, source: str, name: str, magic: tuple[str, str]) -> Diagnosis:
    code, raised = _compile(shell, source), list[UserError]()

    def run() -> None:
        try:
            exec(code, shell.user_ns)
        except BaseException as error:
            raised.append(UserError(error, error.__traceback__.tb_next if error.__traceback__ else None))
            raise

    try:
        with terminal.progress("diagnose") as progress:
            found = diagnose(
                run, fix=options.fix, program=" ".join(name.split())[:80], progress=progress, rough=options.rough,
                fix_s=options.budget, allow=tuple(word for word in options.allow.split(",") if word),
            )  # fmt: skip
    except Ambiguous as error:
        raise Refusal(f"{error}; run it again when the machine is quiet, or with --rough") from error
    except BaseException as error:
        for own in raised:
            if own.error is error:
                raise own from None
        if isinstance(error, (RuntimeError, TypeError, ValueError)):  # ours, about what was asked
            raise Refusal(str(error).splitlines()[0]) from error
        raise
    found = dataclasses.replace(
        _name_cells(shell, found), options=_words(options), magic=magic, unfixed=options.fix and not found.fix
    )
    if options.out is not None:
        _save(found, options.out)
    return found


def _words(options: argparse.Namespace) -> tuple[str, ...]:
    """The options as they are typed, for the next line that a report names."""
    words = ["--fix"] if options.fix else []
    words += ["--budget", f"{options.budget:g}"] if options.budget is not None else []
    words += ["--allow", options.allow] if options.allow else []
    words += ["--rough"] if options.rough else []
    return (*words, *(("--out", shlex.quote(str(options.out))) if options.out is not None else ()))


def _name_cells(shell: Any, found: Diagnosis) -> Diagnosis:
    """With ``In[3]:2`` for line 2 of a cell, in place of the name that IPython gives its code."""
    format_name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if format_name is None:
        return found
    cells = {Path(name).name: said[1] for name in list(linecache.cache) if (said := format_name(name))}

    def named(hotspot: Hotspot) -> Hotspot:
        file, colon, line = hotspot.source.rpartition(":")
        return dataclasses.replace(hotspot, source=f"{cells[file]}:{line}") if colon and file in cells else hotspot

    return dataclasses.replace(found, hotspots=tuple(named(hotspot) for hotspot in found.hotspots))


def _compile(shell: Any, source: str) -> CodeType:
    """The code of a statement or a cell, in IPython's own language, known to tracebacks by its lines."""
    text = shell.transform_cell(source)
    flags, at = 0, "<diagnose>"
    compiler = getattr(shell, "compile", None)
    if compiler is not None:
        flags = compiler.flags  # `from __future__` of earlier cells
        at = compiler.cache(text, shell.execution_count)
    try:
        return cast(CodeType, compile(text, at, "exec", flags=flags, dont_inherit=True))
    except SyntaxError:
        if _is_async(text):
            raise Refusal("`await` outside a function: diagnose asyncio.run(...) or a function that does it") from None
        raise


def _is_async(text: str) -> bool:
    with contextlib.suppress(SyntaxError):
        compile(text, "<diagnose>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return True
    return False


def _save(found: Diagnosis, folder: Path) -> None:
    for ending in (".html", ".json"):
        try:
            path = found.save(folder / f"{PAGE}{ending}")
        except OSError as error:
            raise Refusal(f"could not write {folder / PAGE}{ending}: {error.strerror or error}") from error
        print(f"wrote {path}")


# ---------------------------------------------------------------- registering


def _outcome(call: Callable[[], Diagnosis]) -> Diagnosis | UserError | None:
    """What a magic returns, or what the user's own code raised. What a user can mend is a line, not a traceback."""
    try:
        return call()
    except UserError as raised:
        return raised
    except Refusal as refusal:
        print(f"kernelworks: {refusal}")
        return None


def _is_discarded(shell: Any) -> bool:
    """Whether the user's code does nothing with what a magic returns: a line of a cell that is not its last, or one in
    a loop, which IPython displays nothing of."""
    frame = sys._getframe(1)
    while frame.f_globals is not shell.user_ns:
        if frame.f_back is None:  # not called from a cell
            return False
        frame = frame.f_back
    after = (each.opname for each in dis.get_instructions(frame.f_code) if each.offset > frame.f_lasti)
    return next(after, "") == "POP_TOP"


def register_magics(shell: Any) -> None:
    """Gives a shell of IPython the magics. A second time changes nothing."""

    def line_magic(line: str) -> Diagnosis | None:
        __tracebackhide__ = True  # in IPython's tracebacks
        found = _outcome(lambda: diagnose_statement(shell, line))
        if isinstance(found, UserError):
            raise found.error.with_traceback(found.trace)
        if found is not None and _is_discarded(shell):
            shell.display_pub.publish(*shell.display_formatter.format(found))
        return found

    def cell_magic(line: str, cell: str) -> Diagnosis | None:
        __tracebackhide__ = True
        found = _outcome(lambda: diagnose_cell(shell, line, cell))
        if isinstance(found, UserError):
            raise found.error.with_traceback(found.trace)
        return found

    magics: tuple[tuple[Callable[..., Any], str], ...] = ((line_magic, "line"), (cell_magic, "cell"))
    for magic, kind in magics:
        magic.__doc__ = f"{diagnose.__doc__ or ''}\n\n{_make_parser().format_help()}"
        shell.register_magic_function(magic, magic_kind=kind, magic_name="diagnose")
