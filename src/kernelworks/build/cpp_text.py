"""C++ and CUDA C++ without what a compiler does not see: comments, the shape of white space, where a header lies.

Strings, characters and raw strings stay to the byte. A directive keeps its line, since it ends there. An ``#include``
of a file of ours says which of the included files it is, by a number, so that files may move and be called otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kernelworks.build.sources import text_of, with_includes

__all__ = ["bare", "strip_source"]

TOKEN = re.compile(
    r"""
    (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^\s()\\"]{0,16})\((?:.|\n)*?\)(?P=mark)")
  | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\(?:.|\n))*")
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<character>(?:u8|[uUL])?'(?:[^'\\\n]|\\(?:.|\n))*')
  | (?P<word>[A-Za-z_]\w*)
  | (?P<comment>//(?:[^\n\\]|\\(?:.|\n))*|/\*(?:.|\n)*?\*/)
  | (?P<splice>\\[ \t]*\r?\n)
  | (?P<line>\r?\n)
  | (?P<space>[ \t\f\v\r]+)
  | (?P<other>(?:.|\n))
    """,
    re.X,
)
INCLUDE = re.compile(r'# ?include ?"([^"]+)"')


def bare(text: str, include: Callable[[str], str] = lambda name: name.split("/")[-1]) -> str:
    """A source without comments and layout; ``include`` says what stands for a header of ours."""
    lines: list[list[str]] = [[]]
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "line":
            lines.append([])
        elif kind not in ("space", "comment", "splice"):
            lines[-1].append(match[0])
        elif lines[-1] and lines[-1][-1] != " ":
            lines[-1].append(" ")
    found: list[str] = []
    code: list[str] = []
    for line in ("".join(parts).strip() for parts in lines):
        if line.startswith("#"):
            named = INCLUDE.match(line)
            found += [" ".join(code), f'#include "{include(named[1])}"' if named else line]
            code = []
        elif line:
            code.append(line)
    return "\0".join(filter(None, [*found, " ".join(code)]))


def strip_source(source: Path, shared: Path, text_of: Callable[[Path], str] = text_of) -> str:
    """A source and all of ours that it includes, in the order of ``with_includes``, each bare. Names and paths of the
    files do not enter."""
    files = with_includes(source, shared, text_of)
    texts = []
    for path in files:

        def number(name: str, path: Path = path) -> str:
            places = [(folder / name).resolve() for folder in (path.parent, shared)]
            return next((str(files.index(place)) for place in places if place in files), name.split("/")[-1])

        texts.append(bare(text_of(path), number))
    return "\0\0".join(texts)
