"""Code formed at run time shows its lines in a traceback."""

from __future__ import annotations

import gc
import inspect
import linecache
import traceback
from typing import Any

import forked
import pytest

from kernelworks.dispatch.generated_code import run_generated_code


def test_a_traceback_shows_the_line_that_raised() -> None:
    scope: dict[str, Any] = {}
    run_generated_code("def divide(a, b):\n    return a / b  # the quotient\n", scope, "test")
    linecache.checkcache()
    gc.collect()
    with pytest.raises(ZeroDivisionError) as raised:
        scope["divide"](1, 0)
    assert "return a / b  # the quotient" in "".join(traceback.format_exception(raised.value))
    assert inspect.getsource(scope["divide"]).startswith("def divide(a, b):")


def test_two_texts_of_one_name_keep_their_own_lines() -> None:
    lines = []
    for text in ("def one():\n    return 1\n", "def one():\n    return 2\n", "def one():\n    return 1\n"):
        scope: dict[str, Any] = {}
        run_generated_code(text, scope, "test")
        lines.append((inspect.getsource(scope["one"]), scope["one"].__code__.co_filename))
    assert lines[0] == lines[2] and lines[0] != lines[1]
    assert [source.splitlines()[1].strip() for source, _ in lines] == ["return 1", "return 2", "return 1"]


CALL = """
import torch
import kernelworks as kw
try:
    kw.rms_norm(torch.ones(2, 8), torch.ones(7), eps=1e-6)
except ValueError:
    import traceback
    print(traceback.format_exc())
"""


def test_no_line_of_ours_is_missing_in_what_a_wrong_call_raises() -> None:
    said = forked.python(code=CALL).stdout.splitlines()
    frames = [i for i, line in enumerate(said) if line.strip().startswith('File "') and "kernelworks" in line]
    assert frames and all(not said[i + 1].strip().startswith("File ") for i in frames), "\n".join(said)
