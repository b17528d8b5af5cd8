"""``make check OP=NAME``: what it runs, what it says of an op that is not whole, and which tests are those of an op."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_op import is_test_of, lists_ops
from op_kernels import ALL_NAMES, ENTRIES

import check_op
from kernelworks.dispatch.op import OPS

OUTPUT = """\
.F.E
=========================== short test summary info ============================
FAILED tests/verify/test_parity.py::test_rows_keep_the_contract[softmax] - AssertionError: 3 of 4
FAILED tests/dispatch/test_arrays.py::test_arrays[softmax-a b - c] - assert 1 == 2
ERROR tests/ops/test_lines.py - ImportError: no module
2 failed, 1 passed in 3.21s
"""


def test_failures_are_repeated_by_their_ids() -> None:
    assert check_op.failed_tests(OUTPUT) == [
        "tests/verify/test_parity.py::test_rows_keep_the_contract[softmax]",
        "tests/dispatch/test_arrays.py::test_arrays[softmax-a b - c]",
        "tests/ops/test_lines.py",
    ]
    assert check_op.failed_tests("2 passed in 3.21s") == []


@pytest.mark.parametrize(
    ("op", "file", "test", "expected"),
    [
        ("softmax", "test_parity", "test_rows_keep_the_contract[softmax]", True),
        ("softmax", "test_triton", "test_kernels[softmax-triton]", True),
        ("softmax", "test_parity", "test_rows_keep_the_contract[log_softmax]", False),
        ("linear", "test_parity", "test_rows[linear_gelu]", False),
        ("linear", "test_linear_gradients", "test_anything", True),
        ("adamw_", "test_parity", "test_rows[adamw_]", True),
        ("sum", "test_parity", "test_the_sum", False),
        ("sum", "test_attention_sums", "test_a", False),
        ("gelu", "test_small_programs", "test_bytes[gelu: chain of two]", True),
    ],
)
def test_which_tests_are_those_of_an_op(op: str, file: str, test: str, expected: bool) -> None:
    assert is_test_of(op, file, test) is expected


def test_files_that_ask_every_op_are_read() -> None:
    tests = Path(__file__).resolve().parents[1]
    for name in ("verify/test_parity", "verify/test_mutants", "verify/test_triton", "dispatch/test_opcheck",
                 "templates/test_activations"):  # fmt: skip
        assert lists_ops((tests / f"{name}.py").read_text(encoding="utf-8")), name
    assert not lists_ops((tests / "report/test_terminal.py").read_text(encoding="utf-8"))


def test_what_an_op_lacks_is_named_with_its_file(tmp_path: Path) -> None:
    package = tmp_path / "ops" / "reduction" / "softmax"
    package.mkdir(parents=True)
    typed = tmp_path / "tests" / "house" / "typed.py"
    typed.parent.mkdir(parents=True)
    typed.write_text("kw.log_softmax(x, -1)\n", encoding="utf-8")
    places = [line.partition(":")[0] for line in check_op.missing_places("softmax", package, tmp_path)]
    assert places == ["ops/reduction/softmax/README.md", "tests/house/typed.py"]
    typed.write_text("kw.softmax(x, -1)\n", encoding="utf-8")
    (package / "README.md").touch()
    odd = tmp_path / "tests" / "nn" / "test_odd_arguments.py"
    odd.parent.mkdir()
    odd.write_text('{"log_softmax": {}}', encoding="utf-8")
    assert [line.partition(":")[0] for line in check_op.missing_places("softmax", package, tmp_path)] == [
        "tests/nn/test_odd_arguments.py"
    ]
    odd.write_text('{"softmax": {}}', encoding="utf-8")
    assert list(check_op.missing_places("softmax", package, tmp_path)) == []


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_op_stands_where_it_has_to(name: str) -> None:
    assert list(check_op.missing_places(name, OPS[name].op_package)) == []


def test_the_steps_write_what_they_check_and_ask_for_the_op() -> None:
    tests, linters = check_op.steps_of("softmax", OPS["softmax"].op_package)
    assert [step.writes for step in tests[:2]] == [
        ("src/kernelworks/ops/generated.py",), ("docs/reference/ops.md",),
    ]  # fmt: skip
    assert tests[-1].command[-2:] == ("--op", "softmax")
    assert tests[2].command[-2:] == ("verify", "softmax")
    assert any("src/kernelworks/ops/reduction/softmax" in step.command for step in linters)


def test_a_step_says_what_repeats_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"import sys; print({OUTPUT!r}); sys.exit(1)"
    wrong, said = check_op._run(check_op.Step("tests", (check_op.PYTHON, "-c", code)))
    assert wrong[0] == "python -m pytest 'tests/verify/test_parity.py::test_rows_keep_the_contract[softmax]'"
    assert "3 of 4" in said and capsys.readouterr().out.startswith("failed")
    wrong, _ = check_op._run(check_op.Step("ruff", (check_op.PYTHON, "-c", "raise SystemExit(3)")))
    assert wrong and wrong[0].endswith("raise SystemExit(3)")
    assert check_op._run(check_op.Step("ok", (check_op.PYTHON, "-c", ""))) == ([], "")


def test_a_file_that_a_step_writes_anew_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_op, "ROOT", tmp_path)
    write = "open('made.py', 'w').write('x = 1')"
    step = check_op.Step("schemas", (check_op.PYTHON, "-c", write), ("made.py",))
    (wrong,), _ = check_op._run(step)
    assert "made.py was out of date" in wrong
    assert check_op._run(step) == ([], "")


@pytest.mark.parametrize("arguments", [[], ["no_such_op"], ["softmax", "gelu"]])
def test_a_name_that_no_op_has_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert check_op.main(arguments) == 2
    assert "make check OP=NAME" in capsys.readouterr().err


def test_entries_of_a_table_share_their_readme() -> None:
    assert all((OPS[name].op_package / "README.md").is_file() for name in ENTRIES)
