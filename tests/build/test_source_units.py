"""How a source is read for its hash: what a compiler or Python does not see of it counts for nothing."""

from __future__ import annotations

import hashlib
import json

from kernelworks.build import source_units
from kernelworks.build.cpp_text import bare

READ = '''
import math
import torch.nn.functional as F
from kernelworks.build import cuda

SIZE: int = 0x10
TABLE = {"a": 1e3, "b": (2, None, ...), **{}}
TABLE["c"] = b"x"


@cuda.kernel
def kernel(x: "pointer", *rest, BLOCK: constexpr = 128, **named) -> None:
    """words"""
    match x:
        case [1, *more] if (n := len(more)) > 2:
            return f"{n!r:>{BLOCK}} {n=}" "joined"
        case {"k": v, **left} | v:
            pass
    return [i + j for i in range(SIZE) for j in x if i != j]


class Launch(cuda.Kernel, metaclass=type):
    "words"
    stride: int = 3

    @property
    def grid(self) -> tuple[int, ...]:
        from kernelworks.lines import lines

        return lines(F.relu(self.x), dim=-1) + (math.ceil(SIZE / 3),)


async def later(a, /, b=lambda y, z=2: y @ z, *, c):
    async with a as d:
        yield await d
    try:
        del d
    except* (ValueError, TypeError) as error:
        raise OSError from error
'''
SAID = "0a0a7b225f32d0e212bbd354bd417c0b032e731ca7f2306a7ec214b6d5252e74"


def test_a_file_is_read_the_same_on_every_version_of_python() -> None:
    """What is said here was said on 3.11, 3.12 and 3.13."""
    told = source_units.read_units(READ, "kernelworks.some.module", "kernelworks")
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest() == SAID


def test_layout_is_not_read_and_meaning_is() -> None:
    def said(text: str) -> str:
        return str(source_units.read_units(text, "kernelworks.some.module", "kernelworks")["whole"])

    as_it_is = said("def f(x):\n    return g(x, 1, step=16)\n")
    assert said("def f(\n    x,  # words\n):\n    'words'\n\n    return g(x, 1, step=0x10,)  \n") == as_it_is
    others = "g(x, step=16)", "g(1, x, step=16)", "g(x, 1, step=16.0)", "g(x, 1, pace=16)", "g(x, True, step=16)"
    assert as_it_is not in {said(f"def f(x):\n    return {call}\n") for call in others}


SOURCE = r"""#include "shared/kernel.hpp"  // words
#define ROUND(x) ((x) + \
    1)
/* words
   and more */ int f(const char* s) { return s[0] == '"' ? 1'000 : g("// no words", R"x(
  /* nor here */ )x"); }
"""


def test_cpp_is_stripped_of_what_a_compiler_does_not_see() -> None:
    raw = 'R"x(\n  /* nor here */ )x"'
    code = f"""int f(const char* s) {{ return s[0] == '"' ? 1'000 : g("// no words", {raw}); }}"""
    assert bare(SOURCE) == f'#include "kernel.hpp"\0#define ROUND(x) ((x) + 1)\0{code}'
    assert bare(SOURCE.replace("words\n", "other\n").replace("int f", "int  \n f")) == bare(SOURCE)
    for before, after in (("nor here", "not here"), ("no words", "words"), ("1'000", "1'001"), ("+ \\", "- \\")):
        assert bare(SOURCE.replace(before, after)) != bare(SOURCE)
