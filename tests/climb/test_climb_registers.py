"""What the register file costs a loop: counted by hand for short ones, told by no model that differs, said in words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType

import pytest
from test_climb_report import SOURCES, on_gpu
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.climb import registers
from kernelworks.climb.compilation import compile_rung
from kernelworks.climb.ladder import ladder_named
from kernelworks.climb.registers import one_pass
from kernelworks.climb.sass import loops
from kernelworks.climb.template import start
from kernelworks.report.climb import evidence as climb_evidence
from kernelworks.report.climb import page as climb_page
from kernelworks.report.climb.worklog import worklog

# Of registers: what is even is in one bank, what is odd in the other.
FIRST = "FFMA R1, R2.reuse, R3, R1"  # one even register, two odd ones
THEN = "FFMA R5, R2, R4, R6"  # three even ones, two where R2 is still there
ODD = "FFMA R1, R7, c[0x0][0x160], RZ"
SAME = "FFMA R0, R2, R4, R6"
TWO_EVEN, TWO_ODD = "FFMA R0, R2, R4, RZ", "FFMA R1, R3, R5, RZ"
LOAD, UNIFORM = "LDS.128 R8, [R20+0x10]", "ULOP3.LUT UR5, UR4, 0x3, URZ, 0xc0, !UPT"

# What it shows, the loop, and the cycles that it stalls a pass.
CASES: dict[str, tuple[list[str], int]] = {
    "one register of each bank": (["FFMA R4, R6, R9, RZ", ODD], 0),
    "one operand stays all the time": (["FFMA R4, R6.reuse, R9, R4"] * 3, 0),
    "nothing stays": (["FFMA R4, R6, R9, R4"] * 3, 3),
    "all three of one bank": ([SAME, ODD, ODD, ODD], 1),
    "all three of one bank, again and again": ([SAME] * 4, 8),
    "a pair of one bank is absorbed": ([TWO_EVEN, ODD], 0),
    "alternating pairs just fit": ([TWO_EVEN, TWO_ODD] * 2, 0),
    "two pairs of one bank in a row do not": ([TWO_EVEN, TWO_EVEN, TWO_ODD, TWO_ODD], 2),
    "reuse that hits": ([FIRST, THEN, ODD], 0),
    "reuse over the end of the loop": ([THEN, ODD, FIRST], 0),
    "reuse that other arithmetic takes away": ([FIRST, ODD, THEN], 1),
    "reuse that integer arithmetic takes away": ([FIRST, "IADD3 R20, R21, 0x1, RZ", THEN], 1),
    "reuse past a load": ([FIRST, LOAD, THEN, ODD], 0),
    "reuse past a uniform instruction": ([FIRST, UNIFORM, THEN, ODD], 0),
    "reuse in another place": ([FIRST, "FFMA R5, R4, R2, R6", ODD], 1),
    "reuse of another register": ([FIRST, "FFMA R5, R8, R4, R6", ODD], 1),
    "reuse without a mark": ([FIRST.replace(".reuse", ""), THEN, ODD], 1),
    "signs, magnitudes and predicates": (["@!P0 FFMA R0, -R2, |R4|, -R6", ODD, ODD, ODD], 1),
    "predicates before the operands": (
        ["IADD3 R9, P1, R2.reuse, R3, RZ", THEN, ODD, "ISETP.LE.AND P0, PT, R2.reuse, UR6, PT", THEN, ODD], 0,
    ),
    "a constant and a tenth register": (["FFMA R4, R10, 2.5, R13", ODD], 0),
}  # fmt: skip

AFTER_LOADS = "kept = {} if reads is None else kept\n"
# Models that differ from it: each must be told by some case.
MUTANTS = {
    "one bank": ("BANKS = 2", "BANKS = 1"),
    "four banks": ("BANKS = 2", "BANKS = 4"),
    "nothing is absorbed": ("COLLECT = 2", "COLLECT = 1"),
    "two are absorbed": ("COLLECT = 2", "COLLECT = 3"),
    "only the first pass": ("PASSES = 4", "PASSES = 1"),
    "nothing is kept": ("if kept.get(place) != register", "if True"),
    "kept for every place": ("if kept.get(place) != register", "if register not in kept.values()"),
    "kept whatever the register": ("if kept.get(place) != register", "if place not in kept"),
    "kept for good": ("kept = {place", "kept |= {place"),
    "kept without a mark": ("in reads if reuse}", "in reads}"),
    "kept only without loads between": ("            now += 1\n", "            now += 1\n" + " " * 12 + AFTER_LOADS),
    "nothing but float32 reads": ("ARITHMETIC | FIXED_LATENCY_OPS else", "ARITHMETIC else"),
    "loads read too": ("if name in ARITHMETIC | FIXED_LATENCY_OPS else None", "if name else None"),
    "predicates take a place": ("operands = operands[1:]", "break"),
    "no sign is read": ('r"\\s*[-~|]*R', 'r"\\s*R'),
}  # fmt: skip


def model(old: str, new: str) -> ModuleType:
    """The module with something in it replaced."""
    text = Path(registers.__file__).read_text(encoding="utf-8")
    assert text.count(old) == 1
    made = ModuleType("mutant")
    exec(compile(text.replace(old, new), "mutant", "exec"), made.__dict__)
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_loop_stalls_as_counted_by_hand(name: str) -> None:
    loop, stalls = CASES[name]
    found = one_pass(loop)
    assert (found["loop_slots"], found["loop_stalls"]) == (len(loop), stalls)


@pytest.mark.parametrize("name", MUTANTS)
def test_another_model_is_told(name: str) -> None:
    mutant = model(*MUTANTS[name])
    assert any(mutant.one_pass(loop)["loop_stalls"] != stalls for loop, stalls in CASES.values())


def test_only_loops_of_arithmetic_on_registers_are_counted() -> None:
    assert one_pass([ODD, LOAD]) == {"loop_slots": 2, "loop_arithmetic": 1, "loop_stalls": 0}
    assert one_pass([ODD, LOAD, UNIFORM]) == {} and one_pass([]) == {}
    assert one_pass(["HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24", "DFMA R2, R4, R6, R2"]) == {}
    assert one_pass(["HFMA2.MMA R87, -RZ, RZ, 0, 0"]) == {}  # sets a register to 0


def test_a_constant_is_not_what_a_loop_is_known_by() -> None:
    text = ("HFMA2.MMA R87, -RZ, RZ, 0, 0", "LDG.E.128 R4, desc", FIRST, THEN, "@!P0 BRA 0x20", "@P1 BRA 0x0")
    best, _ = loops([(16 * i, line) for i, line in enumerate(text)])
    assert [line for _, line in best] == list(text[2:5])


# ---------------------------------------------------------------- what is shown of it

SQUARE = """
    float sums[8][8] = {};
    for (int n = 0; n < N; ++n) {
        float a[8], b[8];
        for (int i = 0; i < 8; ++i) a[i] = x[n * 8 + i], b[i] = x[(n + N) * 8 + i];
        for (int i = 0; i < 8; ++i)
            for (int j = 0; j < 8; ++j) sums[i][j] += a[i] * b[j];
    }
    float sum = 0;
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) sum += sums[i][j] * (i + 3 * j);
"""


def test_a_compiled_square_of_sums_is_counted(tmp_path: Path) -> None:
    path = start("mine", tmp_path, "cuda") / "01_naive.cu"
    path.write_text(path.read_text().replace("float sum = 0;", SQUARE, 1), encoding="utf-8")
    ladder = ladder_named(str(path.parent))
    found = compile_rung(ladder, ladder.rungs[0])
    assert not found.error and found.resources["loop_slots"] == found.loop
    assert found.resources["loop_arithmetic"] >= 64 and found.resources["loop_stalls"] > 0
    assert "loop_stalls" not in compile_rung(ladder, ladder.rungs[1]).resources
    shown = CliRunner().invoke(app, ["climb", str(path.parent), "--check"]).stdout
    assert shown.count(climb_evidence.operands(found.resources)) == 1 and "loop slots" not in shown


def test_what_operands_cost_is_said_in_a_sentence() -> None:
    record = on_gpu()
    counted = record.rungs[0].resources | {"loop_slots": 1119, "loop_arithmetic": 1024, "loop_stalls": 130}
    said = climb_evidence.operands(counted)
    assert said.startswith("A pass through the loop is 1119 instructions and") and "at least 130 cycles more" in said
    assert said.endswith("at most 82% of its cycles multiply or add.")
    assert "keep it waiting" in climb_evidence.operands(counted | {"loop_stalls": 0})
    assert "1 cycle more" in climb_evidence.operands(counted | {"loop_stalls": 1})
    rungs = (dataclasses.replace(record.rungs[0], resources=counted), *record.rungs[1:])
    with_it = dataclasses.replace(record, rungs=rungs)
    for text in (" ".join(worklog(with_it, SOURCES).split()), climb_page.page(with_it, SOURCES)):
        assert text.count(said) == 1 and "operands that are waited for" in text
    assert "operands" not in worklog(record, SOURCES) and climb_evidence.operands(record.rungs[0].resources) == ""
