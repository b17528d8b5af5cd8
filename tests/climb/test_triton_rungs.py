"""Rungs in Triton: run by Triton's interpreter against float64, compiled for sm_90 as a launch would compile them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kernelworks.build import BuildError
from kernelworks.cli import app
from kernelworks.climb.compilation import compile_rung
from kernelworks.climb.ladder import Ladder, ladder_named
from kernelworks.climb.problem import problem_of
from kernelworks.climb.requirements import hardware
from kernelworks.climb.residency import resident_blocks
from kernelworks.climb.triton_interpreting import interpret_ladder
from kernelworks.climb.triton_rungs import compile_triton_rung
from kernelworks.machine import has_gpu

LADDER = Path(__file__).resolve().parents[2] / "ladders/triton-gemm"


@pytest.fixture(scope="module")
def gemm() -> Ladder:
    return ladder_named(str(LADDER))


def test_the_interpreter_finds_every_rung_right(gemm: Ladder) -> None:
    found = interpret_ladder(LADDER)
    assert [one.rung for one in found] == [rung.number for rung in gemm.rungs]
    assert [one.wrong for one in found] == [""] * len(found)
    assert all(one.sizes == 3 and 0 < one.worst <= 1 for one in found)


WRONG = {  # a rung, an edit of it, what is said
    "01_first_k": ("01_row_strips", "range(K)", "range(K - 1)", "elements"),
    "02_no_mask": ("02_matrix_units", "mask=(rows < M)[:, None] & (columns < N)[None, :])\n", "mask=None)\n", ""),
    "03_last_k": ("03_larger_tile", "(depth < K - k)[None, :]", "(depth < K)[None, :]", "elements"),
    "04_half_sums": ("04_stages", "tl.dot(a, b, sums)", "tl.dot(a, b)", "elements"),
    "05_other_half": ("09_stored_in_halves", "left.to(", "right.to(", "elements"),
    "06_one_turn": ("08_persistent", "tiles, tl.num_programs(0)", "tiles, tiles", "nan"),
    "07_its_input": ("06_grouped", "    tl.store(c", "    tl.store(A, 7.0)\n    tl.store(c", "changed its inputs"),
    "08_no_function": ("05_wide_tile", "def gemm(", "def other(", "defines no function gemm"),
}  # fmt: skip


def test_the_interpreter_refuses_wrong_rungs(tmp_path: Path) -> None:
    shutil.copy(LADDER / "problem.py", tmp_path)
    for name, (rung, right, wrong, _) in WRONG.items():
        text = (LADDER / f"{rung}.py").read_text(encoding="utf-8")
        assert right in text, name
        (tmp_path / f"{name}.py").write_text(text.replace(right, wrong), encoding="utf-8")
    found = interpret_ladder(tmp_path)
    assert len(found) == len(WRONG)
    for one, (name, (*_, said)) in zip(found, WRONG.items(), strict=True):
        assert one.wrong and said in one.wrong, (name, one)


@pytest.mark.parametrize("number", (1, 5, 9))
def test_a_rung_compiles_as_it_is_launched(gemm: Ladder, number: int, request: pytest.FixtureRequest) -> None:
    """With ``--all`` all of them."""
    rungs = gemm.rungs if request.config.getoption("--all") else (gemm.rungs[number - 1],)
    for rung in rungs:
        found = compile_rung(gemm, rung)
        assert not found.error and found.loop and found.instructions, rung.path.name
        made = compile_triton_rung(gemm.problem, rung)
        assert made.kernel.threads % 32 == 0
        assert resident_blocks(made.kernel.threads, found.resources["registers"], found.resources["shared_bytes"]) >= 1
    last = compile_triton_rung(gemm.problem, gemm.rungs[-1])
    assert last.grid == (132,) and last.kernel.threads == 256


def test_what_does_not_compile_is_said(gemm: Ladder, tmp_path: Path) -> None:
    shutil.copy(LADDER / "problem.py", tmp_path)
    text = (LADDER / "05_wide_tile.py").read_text(encoding="utf-8")
    (tmp_path / "01_no_power.py").write_text(text.replace("= 128, 256, 64", "= 128, 200, 64"), encoding="utf-8")
    (tmp_path / "02_no_python.py").write_text(text.replace("import triton\n", "import triton as\n"), encoding="utf-8")
    (tmp_path / "03_spills.py").write_text(text.replace("num_warps=8", "num_warps=4"), encoding="utf-8")
    ladder = ladder_named(str(tmp_path))
    errors = [compile_rung(ladder, rung).error for rung in ladder.rungs]
    assert "power of 2" in errors[0] and "SyntaxError" in errors[1] and "spill" in errors[2]
    with pytest.raises(BuildError, match="power of 2"):
        compile_triton_rung(ladder.problem, ladder.rungs[0])


def test_a_header_in_python_is_read(gemm: Ladder) -> None:
    first, second = gemm.rungs[:2]
    assert first.target == "sm_90" and first.language == "py" and first.loads == {"L1": 2.016}
    assert second.predicts == 9 and "tl.dot gives a tile" in second.hypothesis and "  " not in second.hypothesis
    assert first.code().startswith("import triton\n") and "a Hopper GPU" in hardware(gemm)
    assert gemm.problem.dtype == torch.float16


def test_a_language_must_be_known(tmp_path: Path) -> None:
    text = (LADDER / "problem.py").read_text(encoding="utf-8")
    for change in (('"triton"', '"mojo"'), ('device="cuda"', 'device="cpu"')):
        (tmp_path / "problem.py").write_text(text.replace(*change), encoding="utf-8")
        with pytest.raises(ValueError, match="language must be"):
            problem_of(tmp_path)


def test_the_command_says_that_it_needs_a_gpu() -> None:
    listed = CliRunner().invoke(app, ["climb", "--list"]).stdout
    asks = " ".join(listed.partition("triton-gemm (GPU)")[2].partition("first write it")[0].split())
    assert "a Hopper GPU (H100, H200) and Triton; about" in asks and "minute" in asks
    if not has_gpu():
        done = CliRunner().invoke(app, ["climb", "triton-gemm"])
        assert done.exit_code == 2 and "needs a CUDA GPU" in done.stderr
