"""What somebody who knows Python types in C++, and what is answered: g++'s own refusals in plain words, by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernelworks.cli import app
from kernelworks.learn import progress
from kernelworks.learn.checking import CheckResult, check
from kernelworks.learn.compiler_words import integer_quotients
from kernelworks.learn.compiling import CompilerMessage, NotCompiled, build_to_check
from kernelworks.learn.exercise import exercise_named
from kernelworks.learn.progress import FOLDER, folder_of_learner
from kernelworks.learn.timing import _ratio

AFFINE = 'extern "C" void affine(const float* x, float w, float b, float* y, long n) {\n'
LOOP = "for (long i = 0; i < n; ++i)"


def refused(folder: Path, text: str) -> tuple[CompilerMessage, ...]:
    source = folder / "affine.cpp"
    source.write_text(text, encoding="utf-8")
    with pytest.raises(NotCompiled) as found:
        build_to_check(source)
    return found.value.messages


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        (f"{LOOP} {{\ny[i] = w * x[i] + b\n}}", 3, "a ; is missing"),
        (f"long k = n\n{LOOP} y[i] = k;", 2, "a ; is missing"),
        ("for i in range(n):\ny[i] = 0;", 2, "for and if need ( ) and { }"),
        (f"{LOOP}\nfloat t = w * x[i];\ny[i] = t + b;", 4, "repeats one statement alone, and i is gone"),
        (f"{LOOP};\n{{ y[i] = b; }}", 3, "the ; behind the ) of line 2 is the loop's whole body"),
        (f"{LOOP} {{\ndouble sum = 0;\nsum += x[i];\n}}\n*y = sum;", 6, "sum is made in line 3, inside { }"),
        (f"{LOOP} {{ y[i] = b; }}\n*y = i;", 3, "i is made by the loop of line 2"),
        ("sums = 0;\n*y = w;", 2, "A new variable needs a type, double sums = 0;"),
        (f"{LOOP} Y[i] = x[i];", 2, "is y meant?"),
        (f"{LOOP} return x[i];", 2, "void says that nothing is returned: the result is written, y[i] = ...;"),
        (f"{LOOP} x[i] = w;", 2, "x is const, it is only read: the result goes into y"),
        ("# a comment\n*y = w;", 2, "a comment begins with //"),
        ("float sums[4] = 0;\n*y = sums[0];", 2, "float sums[4] = {};"),
        ("float sums = [1, 2];\n*y = sums;", 2, "float sums[2] = {1, 2};"),
        ("for (long i = 0; i < n // 4; ++i) {\ny[i] = w;\n}", 2, "// begins a comment"),
        ("for (long i = 0, i < n, ++i) y[i] = w;", 2, "parted by ;"),
        ("y[0] = x[0] ** 2;", 2, "there is no **"),
        ("y[0] = double x[0] * w;", 2, "a conversion takes ( ): double(x[0])"),
        ("y[0] = w if w > 0 else b;", 2, "condition ? this : that"),
        ("if w > 0 { y[0] = w; }", 2, "if needs ( ) and { }"),
        ("if (w > 0) { y[0] = w; } elif (b > 0) { y[0] = b; }", 2, "else if (condition)"),
        ("if (w > 0) y[0] = w; else: y[0] = b;", 2, "no : begins a body"),
        ("float out = y + n;\n*y = out;", 2, "float* out = y + n;"),
        ("y += w * x[0];", 2, "y is a place in memory"),
        ("y = w * x;", 2, "is a whole array: take one number of it"),
        ("double s = 0;\ny = &s;", 3, "*y = s; writes the number"),
        ("y(0) = w;", 2, "an index is y[i]"),
        ("float f(float v) { return v; }\ny[0] = f(w);", 2, "a function stands outside of every other"),
        ("float v := w;\ny[0] = v;", 2, "a variable is made with its type and =: float v"),
        ("y[0 = w;", 2, "a ] is missing"),
        ("y[0] = 2w;", 2, "a product needs its *"),
        ("y[0] = w ^ 2;", 2, "the power std::pow"),
        ("y[0] = 0.5 x[0] * w;", 2, "a product needs its *"),
        ("y[0] = std::erf(w);", 2, "std::erf needs #include <cmath>"),
        ("*y = w;\n}", 4, "a } too many"),
    ],
)
def test_what_a_python_programmer_types_is_answered_in_plain_words(
    tmp_path: Path, body: str, line: int, words: str
) -> None:
    first = refused(tmp_path, f"{AFFINE}{body}\n}}\n")[0]
    assert (first.line, words in first.plain) == (line, True), first


def test_one_message_a_line_and_none_behind_an_error_of_grammar(tmp_path: Path) -> None:
    assert len(refused(tmp_path, f"{AFFINE}for i in range(n):\n    y[i] = w\n}}\n")) == 1
    found = refused(tmp_path, f"{AFFINE}y[0] = u + u + v;\ny[1] = z;\n}}\n")
    assert [message.line for message in found] == [2, 3]
    assert all("did you mean" not in message.text for message in found)


def checked(folder: Path, name: str, text: str) -> CheckResult:
    exercise = exercise_named(name)
    path = folder / exercise.file_name
    path.write_text(text, encoding="utf-8")
    return check(exercise, path, timed=False)


def test_a_changed_first_line_is_told(tmp_path: Path) -> None:
    body = f"    {LOOP} {{ y[i] = w * x[i] + b; }}\n}}\n"
    found = checked(tmp_path, "affine", AFFINE.replace("float w", "int w") + body)
    assert found.outcome == "wrong" and found.notes[0].line == 1
    assert 'extern "C" void affine(const float* x, float w, float b, float* y, long n)' in found.notes[0].text
    alike = AFFINE.replace("const float* x", "float const *__restrict x").replace("long n", "const long int n")
    assert checked(tmp_path, "affine", alike + body.replace("+ b", "- b")).notes == ()
    (renamed,) = checked(tmp_path, "affine", AFFINE.replace("affine", "mine") + body).messages
    assert "the check calls; the file has mine" in renamed.text
    (plain,) = checked(tmp_path, "affine", "// affine\n" + AFFINE.replace('extern "C" ', "") + body).messages
    assert plain.line == 2 and plain.text == 'extern "C" is missing before void affine'


def test_a_core_that_was_lent_out_makes_no_file_slow() -> None:
    samples = {"yours": [2.0, 40.0, 44.0], "solution": [2.0, 2.0, 2.0]}
    assert _ratio(samples) == 20.0 and _ratio(samples, is_busy=True) == 1.0
    slow = {"yours": [20.0, 40.0, 44.0], "solution": [2.0, 2.0, 2.0]}
    assert _ratio(slow, is_busy=True) == 10.0 and _ratio({}, is_busy=True) == 0.0


def test_a_quotient_of_integers_is_told() -> None:
    text = "y = x * (1 / 2);  // 3 / 4\ny = 4 / 2 + 1.0 / 3 + 7 / 2;\nz = a2 / 3;\nlong m, n; y = 1 / n + 1 / w;\n"
    assert integer_quotients(text) == [
        (1, "1 / 2 of two integers is 0: write 1.0f / 2"), (2, "7 / 2 of two integers is 3: write 7.0f / 2"),
        (4, "1 / n of two integers is 0 above n = 1: write 1.0f / n"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("gemm", ("            c[i * ldc + j] = 0;", "            ;"), "write it by = and not by +="),
        ("gemv", ("i < m", "i <= m"), "which has 4: the last is"),
        ("gemv", ("a[i * lda + j]", "a[(i + 1) * lda + j]"), "beyond the end of a, which is 4 x 8"),
        ("gemv", ("a[i * lda + j]", "a[i * n + j]"), "rows begin lda elements apart"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_do(tmp_path: Path, name: str, edit: tuple[str, str], said: str) -> None:
    solution = exercise_named(name).solution_path.read_text(encoding="utf-8")
    verdict = checked(tmp_path, name, solution.replace(*edit)).verdict
    assert verdict is not None and said in verdict.sentence, verdict


def test_what_a_loop_over_nothing_leaves_out_is_told_if_all_else_is_right(tmp_path: Path) -> None:
    text = exercise_named("gemv").solution_path.read_text(encoding="utf-8").replace("        y[i] = sum;\n", "")
    inside = text.replace("* x[j];", "* x[j]; y[i] = sum;")
    found = checked(tmp_path, "gemv", inside).verdict
    assert found is not None and "written: a loop over nothing has no round" in found.sentence
    wrong = checked(tmp_path, "gemv", inside.replace("* x[j];", "* x[i];")).verdict
    assert wrong is not None and "x[i] where x[j] is meant" in wrong.sentence and wrong.failures == 5


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["learn", *arguments])


def test_a_check_finds_the_files_from_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "FILE", "progress-of-a-test.json")  # whatever lies above the test's folder
    assert folder_of_learner() == FOLDER
    outside = typed("check", "affine")
    assert outside.exit_code == 2 and "in which you typed" in outside.output
    begun = typed("start", "affine")
    assert f"NEXT   change {FOLDER / 'affine' / 'affine.cpp'} in an editor" in begun.stdout
    inside = tmp_path / FOLDER / "affine"
    for place in (inside, inside.parent):
        monkeypatch.chdir(place)
        assert folder_of_learner() == inside.parent and typed("hint", "affine").exit_code == 0
    assert not (inside / FOLDER).exists() and not (inside.parent / FOLDER).exists()
    again = typed("start", "affine.cpp")
    assert "is there already" in again.stdout and "kernelworks learn show affine" in again.stdout


def test_another_file_than_the_one_that_is_checked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "FILE", "progress-of-a-test.json")
    typed("start", "affine")
    (tmp_path / "affine.cpp").write_text("mine", encoding="utf-8")
    found = typed("check", "affine.cpp")
    assert found.exit_code == 2 and "is another file" in found.output.replace("\n", " ")
    refusal = typed("check", f"{FOLDER}/affine/affine.cpp")
    assert refusal.exit_code == 1 and "NEXT   change" in refusal.stdout and "a hint:" in refusal.stdout


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("affine", "learn start affine?"), ("chek", "learn check?"), ("next", "learn start?"), ("run", "learn check?"),
        ("help", "learn --help?"),
    ],
)  # fmt: skip
def test_what_another_action_may_have_meant_is_said(action: str, meant: str) -> None:
    found = typed(action)
    assert found.exit_code == 2 and f"did you mean kernelworks {meant}" in found.output.replace("\n", " ")


def test_the_page_of_the_language_is_printed_whole() -> None:
    shown = typed("cpp").stdout
    for due in ("for (long i = 0;", "||", "a[i * lda + j]", "Pointers.", "kernelworks learn check"):
        assert due in shown
    assert "`" not in shown and "\\|" not in shown
    assert '"text": "# C++ for people' in typed("cpp", "--json").stdout
