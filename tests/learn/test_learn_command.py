"""``kernelworks learn``: what a learner types, sees, and gets back as an exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernelworks.cli import app
from kernelworks.learn import command
from kernelworks.learn.checking import CheckResult, Times, check
from kernelworks.learn.compiler_words import in_plain_words
from kernelworks.learn.exercise import exercise_named, load_exercise
from kernelworks.learn.progress import Progress


def learn(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["learn", *arguments, "--folder", str(folder)])


def test_a_course_of_one_exercise(tmp_path: Path) -> None:
    """Start, refused, hints, solved, timed, next."""
    exercise = exercise_named("affine")
    assert "next: kernelworks learn start affine" in learn(tmp_path, "list").stdout
    assert learn(tmp_path, "check", "affine").exit_code == 2
    begun = learn(tmp_path, "start")
    path = tmp_path / "affine" / "affine.cpp"
    assert begun.exit_code == 0 and "your file:" in begun.stdout and path.is_file()
    refused = learn(tmp_path, "check")
    assert refused.exit_code == 1 and "WRONG  y is x, as in the starting file" in refused.stdout
    assert learn(tmp_path, "solution", "affine").exit_code == 1
    shown = [learn(tmp_path, "hint", "affine").stdout for _ in range(4)]
    assert [text.count(". ") for text in shown[:3]] == sorted(text.count(". ") for text in shown[:3])
    assert "--give-up" in shown[3] and learn(tmp_path, "hint").stdout.startswith("affine: ")
    assert exercise.hints[0] in shown[0] and exercise.hints[1] not in shown[0] and "last one" in shown[3]
    path.write_text(exercise.solution_path.read_text(encoding="utf-8"), encoding="utf-8")
    passed = learn(tmp_path, "check", "affine")
    assert passed.exit_code == 0, passed.output
    assert passed.stdout.startswith("RIGHT") and "TIME" in passed.stdout and "NEXT" in passed.stdout
    assert "--give-up" not in learn(tmp_path, "hint", "affine").stdout
    assert learn(tmp_path, "solution", "affine").exit_code == 0
    listed = json.loads(learn(tmp_path, "list", "--json").stdout)
    known = next(one for one in listed["exercises"] if one["name"] == "affine")["progress"]
    assert known["right"] and known["checks"] == 2 and known["hints"] == 3
    assert listed["next"] != "affine"
    assert learn(tmp_path, "start", "affine").exit_code == 0
    assert path.read_text(encoding="utf-8") == exercise.solution_path.read_text(encoding="utf-8")


def check_text(folder: Path, text: str) -> CheckResult:
    path = folder / "affine.cpp"
    path.write_text(text, encoding="utf-8")
    return check(exercise_named("affine"), path, timed=False)


BODY = 'extern "C" void affine(const float* x, float w, float b, float* y, long n) {\n'


def test_a_compilers_words_name_the_line(tmp_path: Path) -> None:
    found = check_text(tmp_path, BODY + "    y[0] = w * x[0] + c;\n}\n")
    (message,) = found.messages
    assert found.outcome == "not compiled" and message.line == 2 and "c" in message.text
    assert message.code == "y[0] = w * x[0] + c;"


def test_a_function_by_another_name_is_missing(tmp_path: Path) -> None:
    found = check_text(tmp_path, BODY.replace('extern "C" ', "") + "}\n")
    assert found.outcome == "not compiled" and 'extern "C"' in found.messages[0].text


@pytest.mark.parametrize(
    ("line", "said", "number"),
    [
        ("for (long i = 0; i >= 0; i = 1) { y[0] = w * x[0] + b; }", "does not come back", 2),
        ("y[n] = w * x[0] + b;", "writes 1 element beyond the end of y", 2),
        ("for (long i = 0; i < n; ++i) { y[i] = w * x[i - 1] + b; }", "reads 1 element before the beginning of x", 2),
        ("*(volatile float*)nullptr = b;", "writes", 2),
        ("for (long i = 0; i < n; ++i) { const_cast<float*>(x)[i] = 3; y[i] = b; }", "changes its input x", 0),
    ],
)
def test_what_a_call_does_to_its_process_is_named(tmp_path: Path, line: str, said: str, number: int) -> None:
    verdict = check_text(tmp_path, BODY + f"    {line}\n}}\n").verdict
    assert verdict is not None and not verdict.right
    assert said in verdict.sentence and verdict.line == number


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["start", "nonsense"], ["check", "affine", "--watch", "--json"], ["hint", "--watch"]]
)
def test_what_does_not_exist_is_usage(tmp_path: Path, arguments: list[str]) -> None:
    assert learn(tmp_path, *arguments).exit_code == 2


def test_a_damaged_progress_is_said(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{", encoding="utf-8")
    done = learn(tmp_path, "list")
    assert done.exit_code == 2 and "damaged" in done.stderr


def test_an_exercise_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = exercise_named("affine").folder
    for name in ("exercise.toml", "solution.cpp"):
        (tmp_path / name).write_text((folder / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "solution.cpp").write_text("// another one\n", encoding="utf-8")
    with pytest.raises(ValueError, match="is in the solution 0 times"):
        load_exercise(tmp_path)


def test_a_watched_file_is_checked_whenever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise, progress, checks = exercise_named("affine"), Progress(tmp_path), list[bool]()
    path = progress.file(exercise)
    path.parent.mkdir(parents=True)
    path.write_text("", encoding="utf-8")
    monkeypatch.setattr(command, "check_file", lambda *_, json: checks.append(json))

    def pause(seconds: float) -> None:
        if len(checks) == 1 and path.stat().st_mtime_ns > 1000:
            os.utime(path, ns=(1000, 1000))
        elif len(checks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.watch(exercise, progress, pause)
    assert checks == [False, False] and str(path) in capsys.readouterr().out.replace("\n", "")


def test_what_a_function_prints_is_shown_though_it_ends_the_process(tmp_path: Path) -> None:
    text = "#include <cstdio>\n" + BODY + '    printf("%ld numbers\\n", n);\n    y[n] = x[0] * w + b;\n}\n'
    found = check_text(tmp_path, text)
    assert found.printed == "n = 8:\n8 numbers\n" and found.verdict is not None and found.verdict.line == 4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("std::vector<float> sums(n); sums[n + 1] = w + b + x[0]; y[0] = sums[n + 1];", "a std::vector"),
        ("memcpy(y, x, 4 * (n + 1)); y[0] *= w + b;", "1 element beyond the end"),
    ],
)
def test_the_line_that_called_a_library_is_named(tmp_path: Path, body: str, said: str) -> None:
    found = check_text(tmp_path, f"#include <cstring>\n#include <vector>\n{BODY}    {body}\n}}\n").verdict
    assert found is not None and said in found.sentence and found.line == 4


def check_of(folder: Path, name: str, edit: tuple[str, str]) -> CheckResult:
    exercise = exercise_named(name)
    path = folder / exercise.file_name
    path.write_text(exercise.solution_path.read_text(encoding="utf-8").replace(*edit), encoding="utf-8")
    return check(exercise, path, timed=True)


def test_a_local_array_that_nobody_set_is_named(tmp_path: Path) -> None:
    found = check_of(tmp_path, "dot", ("double sums[4] = {0, 0, 0, 0};", "double sums[4];")).verdict
    assert found is not None and found.line == 2
    assert found.sentence == "sums is used before it was set: write double sums[4] = {0, 0, 0, 0};"


def test_a_local_that_was_set_is_not_accused(tmp_path: Path) -> None:
    edit = ("double sums[4] = {0, 0, 0, 0};", "double sums[4]; for (double& sum : sums) { sum = 1; }")
    found = check_of(tmp_path, "dot", edit).verdict
    assert found is not None and not found.right and "before it was set" not in found.sentence


def test_what_the_compiler_warns_of_stands_under_what_is_wrong(tmp_path: Path) -> None:
    found = check_of(tmp_path, "dot", ("double sum = ", "int sum = "))
    assert found.outcome == "wrong"
    assert [(note.line, note.plain) for note in found.notes] == [
        (12, "an integer loses the fraction: make it float or double")
    ]


def test_a_file_that_prints_is_not_timed(tmp_path: Path) -> None:
    edit = ("y[i] = w * x[i] + b;", 'y[i] = w * x[i] + b; __builtin_printf("%ld\\n", i);')
    found = check_of(tmp_path, "affine", edit)
    assert found.outcome == "right" and found.times is None and found.untimed.startswith("your file prints")
    assert found.printed.startswith("n = 8:\n0\n1\n2\n")


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ("invalid operands of types 'float' and 'const float*' to binary 'operator*'", "y[i] = w * x + b;", "x[i], in"),
        ("cannot convert 'double' to 'float*' in assignment", "db = sum;", "*db = ..."),
        ("assignment of read-only location '* x'", "if (x[i] = 0) {", "== compares, = assigns"),
        ("invalid conversion from 'int' to 'const char*'", "printf('%g', w);", "double quotes"),
        ("'max' was not declared in this scope", "y[i] = max(x[i], 0);", "a > b ? a : b"),
        ("'total' was not declared in this scope", "total = 0;", "double total = 0;"),
        ("'i' was not declared in this scope", "for (i = 0; i < n; ++i) {", "for (long i = 0; ..."),
        ("'pow' was not declared in this scope", "y[i] = pow(x[i], 2);", "#include <cmath>"),
        ("'vector' is not a member of 'std'", "std::vector<float> sums(n);", "<vector>"),
        ("expected '(' before 'i'", "for i in range(n):", "need ( ) and { }"),
        ("expected ';' before '}' token", "y[i] = w * x[i] }", "a ; is missing"),
        ("'s' may be used uninitialized", "y[i] = s;", "s is used before it was set"),
        ("invalid conversion from 'const float*' to 'float*'", "float* row = x;", "const float*"),
        ("invalid types 'const float[long int]' for array subscript", "y[i] += a[i][j];", "a[i * columns + j]"),
        ("top-level comma expression in array subscript is deprecated", "y[i] += a[i, j];", "a[i, j] is a[j]"),
        ("comparisons like 'X<=Y<=Z' do not have their mathematical meaning", "if (0 <= i < n) {", "&&"),
        ("declaration of 'float y' shadows a parameter", "float y = 0;", "a second y hides the first"),
        ("this 'for' clause does not guard...", "for (long i = 0; i < n; ++i);", "the ; behind"),
        ("something else", "", ""),
    ],
)
def test_a_compilers_words_have_plain_ones(said: str, code: str, words: str) -> None:
    text = "void f(const float* x, float w, float* y, long n, float* db) {"
    assert words in in_plain_words(said, code, text) and bool(words) == bool(in_plain_words(said, code, text))


@pytest.mark.parametrize(
    ("ratio", "busy", "due", "absent"),
    [
        (20.0, "others", "; about 20x the solution's time", "as fast"),
        (1.3, "others", "rough: others", "solution"),
        (3.0, "", "TRY    Compile", "nothing more is needed"),
        (1.0, "", "it is as fast as the solution; to go on: Compile", "TRY    Compile"),
    ],
)
def test_what_to_try_hangs_on_the_ratio(
    ratio: float, busy: str, due: str, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "recorded_peaks", lambda: None)
    times = Times("n = 8", 16, 64, 1, ratio, ratio, ratio, 1.0, ratio, busy)
    lines = "\n".join(command._times_lines(exercise_named("affine"), times))
    assert due in lines and absent not in lines


def test_the_exercise_in_hand_is_meant_and_the_family_goes_on(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    assert command.named_or_next(None, progress, last=True, json=True).name == "affine"
    progress.keep(exercise_named("silu"))
    assert command.named_or_next(None, Progress(tmp_path), last=True, json=True).name == "silu"
    assert command.named_or_next(None, progress, json=True).name == "affine"
    progress.keep(exercise_named("silu"), right=True)
    after = command._next(progress, exercise_named("silu"))
    assert after is not None and (after.name, command._go_on(after, progress)) == (
        "relu",
        "kernelworks learn start relu",
    )
    progress.keep(exercise_named("relu"))
    assert command._go_on(exercise_named("relu"), progress) == "kernelworks learn check relu"
    listed = json.loads(learn(tmp_path, "list", "--json").stdout)["exercises"]
    assert {one["progress"]["best_s"] for one in listed if one["progress"]} == {None}


def test_a_name_may_be_spelled_otherwise() -> None:
    assert exercise_named("rms_norm").name == "rms-norm"
    with pytest.raises(ValueError, match="did you mean affine"):
        exercise_named("afine")
