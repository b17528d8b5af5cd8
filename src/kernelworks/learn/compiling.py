"""A learner's C++ as a library, twice: one to find faults with, one to time. What the compiler says, by line."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelworks.build.cache import BuildError, entry
from kernelworks.build.compiler import compile_source, identity, toolchain
from kernelworks.build.cpp import TARGETS
from kernelworks.learn.compiler_words import in_plain_words, integer_quotients
from kernelworks.learn.exercise import Exercise
from kernelworks.machine import machine

__all__ = [
    "CompilerMessage",
    "NotCompiled",
    "build_all",
    "build_signals",
    "build_to_check",
    "build_to_time",
    "build_with_zeros",
    "compiler_notes",
]

SIGNALS = Path(__file__).resolve().parent / "signals.cpp"
LIBRARY_FLAGS = ("-std=gnu++20", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
# A local that nobody set has a value that nobody expects, an index of a local array is looked at, and what C++ leaves
# undefined ends the call at its line.
CHECK_FLAGS = (
    "-O1", "-g", "-D_GLIBCXX_ASSERTIONS", "-fno-omit-frame-pointer", "-ftrivial-auto-var-init=pattern",
    "-Werror=uninitialized", "-Werror=return-type",
    "-fsanitize=bounds,integer-divide-by-zero,shift,signed-integer-overflow,float-cast-overflow",
    "-fno-sanitize-recover=all", "-nodefaultlibs",
)  # fmt: skip
CHECK_LIBRARIES = ("-lstdc++", "-lm", "-lgcc_s", "-lgcc", "-lc")  # all but libubsan: signals.cpp has what it would call
PATTERN_INIT, ZERO_INIT = "-ftrivial-auto-var-init=pattern", "-ftrivial-auto-var-init=zero"
NOTE_FLAGS = ("-Wall", "-Wextra", "-Wshadow", "-Wfloat-conversion", "-Wformat", "-Wno-unknown-pragmas", "-Werror")
ROUNDING_MESSAGE = re.compile(
    r"conversion .*to .float. may change value"
)  # what every double sum does when it is stored
TIME_FLAGS = ("-O3", "-g", "-fno-math-errno", "-fno-trapping-math")
MESSAGE = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.M)
INCLUDE = re.compile(r"^\s*#\s*include\s*<[^>]+>", re.M)
OPTION = re.compile(r" \[-[\w=-]+\]$")  # of the compiler, behind what it says
GUESS = re.compile(r"; did you mean .*\?$")  # g++'s, among all the names that it knows
ADDRESS = re.compile(r" \S\*\(.*sizetype.*$")  # an element as g++ computes its address
GRAMMAR = re.compile(r"expected |stray ")  # behind such an error g++ has lost the thread
MISSING_END = re.compile(r"expected .*; ?\S? before ")
MOST_MESSAGES = 5


@dataclass(frozen=True)
class CompilerMessage:
    """What the compiler says of one line; line 0 where it names none."""

    line: int
    text: str
    code: str = ""  # the line itself
    plain: str = ""  # the same in a learner's words, where there are such


class NotCompiled(Exception):
    """The compiler refuses a learner's file."""

    def __init__(self, messages: Sequence[CompilerMessage]) -> None:
        super().__init__(messages[0].text if messages else "")
        self.messages = tuple(messages)


def _messages(text: str, source: Path) -> list[CompilerMessage]:
    """What the compiler says, one message a line of the file, and none behind an error of grammar."""
    whole = source.read_text(encoding="utf-8", errors="replace")
    lines, found = whole.splitlines(), dict[int, CompilerMessage]()
    for match in MESSAGE.finditer(text):
        number = int(match["line"]) if Path(match["file"]).name == source.name else 0
        said = OPTION.sub("", match["text"])
        number = _line_of_missing_end(said, number, lines)
        code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        plain = in_plain_words(said, code, whole, number)
        said = ADDRESS.sub("", GUESS.sub("", said) if plain else said)
        message, first = CompilerMessage(number, said, code, plain), found.get(number)
        is_grammar = bool(GRAMMAR.match(said))
        if first is None or (is_grammar and "not declared" not in first.text):
            found[number] = message
        if is_grammar:
            break
    undefined = re.findall(r"undefined reference to [`'](.+?)'", text)
    messages = [*found.values(), *(CompilerMessage(0, f"{name} is called and defined nowhere") for name in undefined)]
    last = text.strip().splitlines()[-1:] or ["no reason"]
    return messages[:MOST_MESSAGES] or [CompilerMessage(0, last[0])]


def _line_of_missing_end(said: str, number: int, lines: Sequence[str]) -> int:
    """The line whose ; is missing: g++ names the next one, if that is where it meets something else."""
    if not MISSING_END.match(said) or not 0 < number <= len(lines):
        return number
    met = re.search(r"before \W*(\w+|\S)", said)
    if met is None or not lines[number - 1].strip().startswith(met[1]):
        return number
    above = [at for at in range(1, number) if lines[at - 1].split("//")[0].strip()]
    return above[-1] if above else number


def _build(source: Path, text: str, flags: Sequence[str], kind: str) -> Path:
    """A library of a source as its text was read. Raises BuildError."""
    whole = (*LIBRARY_FLAGS, *flags)
    key = hashlib.sha256("\0".join((text, str(source), *whole, toolchain())).encode()).hexdigest()[:20]
    stem = f"learn-{source.stem}-{kind}-{key}"

    def make(output: Path) -> None:
        compile_source(whole, source, kind, output, CHECK_LIBRARIES if flags[0] == CHECK_FLAGS[0] else ("-ldl",))

    return entry(stem, ".so", make, {"source": source.name, "target": kind}, attempt=f"{stem}-{identity()}")


def _of_learner(source: Path, flags: Sequence[str], kind: str) -> Path:
    text = source.read_text(encoding="utf-8", errors="replace")
    try:
        return _build(source, text, flags, kind)
    except BuildError as error:
        if str(source) in error.about or source.name in str(error):
            raise NotCompiled(_messages(str(error), source)) from error
        raise


def build_signals() -> Path:
    """The library that names what a learner's function touched. Raises BuildError."""
    return _build(SIGNALS, SIGNALS.read_text(encoding="utf-8"), ("-O1",), "signals")


def build_to_check(source: Path) -> Path:
    """Raises NotCompiled, and BuildError if there is no compiler."""
    return _of_learner(source, CHECK_FLAGS, "check")


def build_with_zeros(source: Path) -> Path:
    """As ``build_to_check``, with 0 in every local that nobody set: what comes out otherwise depends on one."""
    flags = [ZERO_INIT if flag == PATTERN_INIT else flag for flag in CHECK_FLAGS]
    return _of_learner(source, flags, "zeros")


def compiler_notes(source: Path) -> tuple[CompilerMessage, ...]:
    """What the compiler warns of in a learner's file, and quotients of integers, one message a line."""
    whole = source.read_text(encoding="utf-8", errors="replace")
    lines, found = whole.splitlines(), list[CompilerMessage]()
    found += [CompilerMessage(at, said, lines[at - 1].strip(), said) for at, said in integer_quotients(whole)]
    with tempfile.TemporaryDirectory(prefix="kernelworks-learn-") as folder:
        try:
            compile_source((*LIBRARY_FLAGS, *NOTE_FLAGS), source, "notes", Path(folder) / "notes.so", ("-ldl",))
        except BuildError as error:
            found += [m for m in _messages(str(error), source) if m.line and not ROUNDING_MESSAGE.search(m.text)]
    return tuple({message.line: message for message in reversed(found)}.values())[::-1]


def build_to_time(source: Path) -> Path:
    """Compiled as a kernel would be, for the widest vectors of this machine. Raises as ``build_to_check`` does."""
    return _of_learner(source, (*TIME_FLAGS, *TARGETS[widest_target()].flags), "time")


def widest_target() -> str:
    """The widest target for which plain C++ is compiled here."""
    here = machine()
    return [name for name in ("scalar", "avx2", "avx512") if TARGETS[name].needs <= here.features][-1]


def build_all(exercise: Exercise, texts: Sequence[str]) -> Path:
    """One library of several attempts, each under its own symbol: ``symbol_0``, ``symbol_1`` and so on. Raises
    BuildError.

    A compiler takes far longer to start and to read its headers than for the attempts themselves.
    """
    headers = sorted({line for text in texts for line in INCLUDE.findall(text)})
    symbol = exercise.symbol
    with tempfile.TemporaryDirectory(prefix="kernelworks-learn-") as folder:
        source = Path(folder) / f"{symbol}.cpp"
        parts = "".join(
            f"\nnamespace attempt_{at} {{\n#define {symbol} {symbol}_{at}\n#line 1 \"{at}.cpp\"\n"
            f"{INCLUDE.sub('', text)}\n#undef {symbol}\n}}\n"
            for at, text in enumerate(texts)
        )  # fmt: skip
        source.write_text("\n".join(headers) + parts, encoding="utf-8")
        flags = (*LIBRARY_FLAGS, *CHECK_FLAGS)
        key = hashlib.sha256("\0".join((source.read_text("utf-8"), *flags, toolchain())).encode()).hexdigest()[:20]

        def make(output: Path) -> None:
            compile_source(flags, source, "check", output, CHECK_LIBRARIES)

        return entry(f"learn-{symbol}-{key}", ".so", make, {"source": exercise.name, "target": "check"})
