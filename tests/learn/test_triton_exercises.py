"""Triton exercises, without a GPU: solutions are right in the interpreter and compile for sm_90, wrong attempts are
refused with their sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import forked
import pytest

from kernelworks.learn.checking import CheckResult, check
from kernelworks.learn.exercise import Exercise, exercise_named, exercises
from kernelworks.learn.triton_checking import UNTIMED_REASON, check_triton_texts, compile_triton_files
from kernelworks.learn.triton_words import in_triton_words, joined_masks

IN_TRITON = [exercise for exercise in exercises().values() if exercise.language == "triton"]


def texts_of(exercise: Exercise) -> list[str]:
    """The starting file, the solution, the wrong attempts."""
    paths = (exercise.start_path, exercise.solution_path)
    return [*(path.read_text(encoding="utf-8") for path in paths), *(wrong.text for wrong in exercise.wrong)]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks run in forks of a process that has loaded Triton for its interpreter, which takes longer than a check."""
    monkeypatch.setattr(sys, "executable", forked.interpreter(forked.INTERPRETER, interpreting=True))


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("exercise", IN_TRITON, ids=lambda exercise: exercise.name)
def test_the_check_is_right_about_every_triton_file(exercise: Exercise) -> None:
    found = check_triton_texts([(exercise, text) for text in texts_of(exercise)])
    start, solution, *attempts = (one.verdict for one in found)
    assert solution.right, (solution.sentence, solution.detail)
    assert not start.right
    said = {wrong.name: verdict.sentence for wrong, verdict in zip(exercise.wrong, attempts, strict=True)}
    due = {wrong.name: wrong.said for wrong in exercise.wrong}
    assert {name: due[name] if due[name] in sentence else sentence for name, sentence in said.items()} == due
    assert not any(verdict.right for verdict in attempts)


def test_solutions_compile_for_a_gpu() -> None:
    said = compile_triton_files(IN_TRITON, [exercise.solution_path for exercise in IN_TRITON])
    assert all("registers a thread" in words and "spilled" not in words for words in said), said


ADD = exercise_named("triton-add").solution_path.read_text(encoding="utf-8")
HOST = "    n = x.numel()\n"
# An edit of the solution of triton-add, the line that is to be named, the words.
REFUSED = (
    ("    offsets = ", "    offsets == = ", 7, "this is no Python"),
    ("def add(x", "def sum(x", 0, "the file defines no function add"),
    ("def add(x", "@triton.jit\ndef add(x", 0, "it launches a kernel, and has no @triton.jit"),
    ("import triton\nimport", "import tritonn\nimport", 1, "No module named 'tritonn'"),
)
WRONG = (
    ("mask = offsets < n", "mask = offsets < m", 8, "line 8 ends with NameError: name 'm' is not defined"),
    (HOST, f"{HOST}    while n > 0:\n        pass\n", 14, "does not come back: a loop whose end is never reached"),
    ("BLOCK = 1024", "BLOCK = 1000", 7, "power of 2"),
    ("tl.store(y + ", "tl.store(x + ", 9, "writes x[0] (program 0): x is an input, which stays as it is"),
    ("tl.store(y + offsets", "tl.store(y + offsets // 2", 9, "from several lanes of one block, with different values"),
    ("tl.load(x + offsets", "tl.load(x + offsets - 3", 9, "3 elements before the beginning of x (3 lanes do"),
    ("[(triton.cdiv(n, BLOCK),)]", "[triton.cdiv(n, BLOCK)]", 15, "Here: the grid is a tuple, with its comma"),
    ("@triton.jit\n", "", 14, "Here: a kernel has @triton.jit in the line before its def"),
    ("tl.load(x + offsets, mask=mask)", "x[offsets]", 9, "Here: a kernel gets pointers: tl.load(x + offsets"),
    ("(triton.cdiv(n, BLOCK),)", "(n,)", 15, "has 1024 programs, of which those from program 1 on have no element"),
    (HOST, f"{HOST}    x = x.new_empty(n)\n", 9, "reads x[0], which nobody has written yet"),
)


def edited(before: str, after: str) -> tuple[Exercise, str]:
    assert ADD.count(before) == 1
    return exercise_named("triton-add"), ADD.replace(before, after)


@pytest.mark.usefixtures("loaded")
def test_what_is_wrong_with_a_file_is_told_with_its_line() -> None:
    refused, wrong = REFUSED, WRONG
    found = check_triton_texts([edited(before, after) for before, after, _, _ in (*refused, *wrong)])
    for check_, (_, _, line, said) in zip(found[: len(refused)], refused, strict=True):
        (message,) = check_.refused
        assert said in message.text and message.line == line
    for check_, (_, _, line, said) in zip(found[len(refused) :], wrong, strict=True):
        assert not check_.verdict.right and said in check_.verdict.sentence
        assert check_.verdict.line in (line, line + 1)  # of an endless loop, either


TUNED = (
    "@triton.autotune([triton.Config({'BLOCK': 64}), triton.Config({'BLOCK': 1024}, num_warps=8)], key=['n'])\n"
    "@triton.jit\n"
)


def test_an_autotuned_kernel_is_checked_without_a_gpu(tmp_path: Path) -> None:
    """No time is to be had, so that a size of the inputs comes to one configuration and another to another."""
    text = ADD.replace("@triton.jit\n", TUNED).replace("    BLOCK = 1024\n", "").replace(", BLOCK=BLOCK", "")
    text = text.replace("[(triton.cdiv(n, BLOCK),)]", "[lambda meta: (triton.cdiv(n, meta['BLOCK']),)]")
    path = tmp_path / "triton_add.py"
    path.write_text(text, encoding="utf-8")
    result = check(exercise_named("triton-add"), path)
    assert result.outcome == "right" and "registers a thread" in result.untimed, result


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = tl.load(p, mask=r[:, None] < M and k[None, :] < K)", "masks are joined by &"),
        ("x = tl.load(p, mask=r[:, None] < M & k[None, :] < K)", "& binds before <"),
        ("x = tl.load(p, mask=(r[:, None] < M) & (k[None, :] < K), other=0.0)", ""),
        ("x = tl.load(p, mask=there & (k < K))", ""),
        ("x = tl.load(p)", ""),
    ],
)
def test_masks_that_are_joined_wrongly_are_told(code: str, said: str) -> None:
    assert (said in joined_masks(code)) if said else joined_masks(code) == ""


@pytest.mark.parametrize(
    ("said", "code", "plain"),
    [
        ("ValueError: arange's range must be a power of 2", "tl.arange(0, BLOCK)", "next_power_of_2"),
        ("AssertionError: ", "total = tl.dot(x, w, total)", "tl.float32"),
        ("AttributeError: 'InterpreterBuilder' object has no attribute 'grid_idx'", "tl.program_id(0)", "with a grid"),
        ("TypeError: 'int' object is not iterable", "e = tl.exp(row - max(row))", "tl.max(block, axis=0)"),
        ("IncompatibleTypeErrorImpl: invalid operands of type pointer<fp16> and triton.language.float32",
         "tl.load(s + offsets / 32)", "// divides integers"),
        ("ValueError: Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32",
         "p = tl.exp(scores - larger)", "block[:, None] makes a column"),
        ("Loop-carried variable squares has initial type <['256'], fp16>", "for start in range(0, n, B):", "tl.zeros"),
        ("NameError: name 'm' is not defined", "mask = offsets < m", ""),
    ],
)  # fmt: skip
def test_errors_of_python_are_told_in_plain_words(said: str, code: str, plain: str) -> None:
    found = in_triton_words(said, code)
    assert (plain in found) if plain else found == ""


def check_of(folder: Path, before: str, after: str, *, timed: bool) -> CheckResult:
    exercise, text = edited(before, after)
    path = folder / exercise.file_name
    path.write_text(text, encoding="utf-8")
    return check(exercise, path, timed=timed)


def test_a_right_file_has_no_time_without_a_gpu_and_says_what_it_takes(tmp_path: Path) -> None:
    result = check_of(tmp_path, HOST, f"{HOST}    print('n is', n)\n", timed=True)
    assert (result.outcome, result.printed) == ("right", "n = 1024:\nn is 1024\n")
    assert result.untimed.startswith(f"{UNTIMED_REASON} (add_kernel: ")


def test_what_the_interpreter_lets_pass_and_the_compiler_does_not_is_refused(tmp_path: Path) -> None:
    result = check_of(
        tmp_path, "    mask = offsets < n\n", "    for k in [n]:\n        mask = offsets < k\n", timed=True
    )
    assert result.outcome == "not compiled"
    assert "Triton's compiler: " in result.messages[0].text and result.messages[0].line == 8
