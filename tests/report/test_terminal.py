"""What a figure and a word look like on a terminal, however narrow."""

from __future__ import annotations

import dataclasses
import io
import re
import time

import pytest
from printed import printed
from rich.console import Console, Group

from kernelworks.cli.console import show
from kernelworks.records import Diagnosis, MapOp
from kernelworks.records.fix import NOT_TRIED, REJECTED, TriedOptimization
from kernelworks.report import diagnose as drawn
from kernelworks.report import map as map_report
from kernelworks.report import quantity, terminal
from kernelworks.report.text_lines import cells
from kernelworks.report.time_breakdown import time_breakdown


@pytest.mark.parametrize(
    ("value", "shown"), [(-6.9e-12, "0"), (0.0, "0"), (4e-10, "0"), (6e-10, "0.600 ns"), (-2e-9, "-2.00 ns")]
)
def test_what_nothing_can_measure_is_0(value: float, shown: str) -> None:
    assert quantity.seconds(value) == shown
    assert quantity.seconds_range(value, 1e-10) == "0"


@pytest.mark.parametrize("width", [60, 80, 100, 118, 160])
def test_a_report_eats_no_brackets_and_cuts_no_words(width: int, diagnosis: Diagnosis) -> None:
    """Brackets are no markup, long names stand whole, and what took no time is counted."""
    long = dataclasses.replace(
        diagnosis.hotspots[0],
        op="_scaled_dot_product_flash_attention_for_cpu",
        source="modeling_qwen3_next_of_all.py:1234",
        module="Model.layers.*.self_attention.query_projection",
        action="swap [bold]x[i][/bold] for kernelworks.linear_cross_entropy in [B, H, L, D]",
    )
    tiny = dataclasses.replace(diagnosis.hotspots[1], op="tiny", seconds=87e-9, share=2e-7, low_s=0.0, high_s=0.0)
    record = dataclasses.replace(
        diagnosis,
        hotspots=(long, tiny, *diagnosis.hotspots[2:]),
        time_breakdown={**diagnosis.time_breakdown, "unexplained": -7e-12},
    )
    console = terminal.stdout()
    console.file, console.width = io.StringIO(), width
    console.print(drawn.diagnosis(record, width))
    text = console.file.getvalue()
    assert "tiny" not in text and "-0.0" not in text and re.search(r"\+ \d more", text)
    assert all(word in text for word in ("[bold]x[i][/bold]", "[B,", "D]"))
    assert all(word in text for word in (long.op, long.source, *long.action.split()))


NOISY = "measurement too noisy to tell: `kernelworks autotune` measures again"


@pytest.mark.parametrize("width", [60, 80, 132])
def test_one_reason_of_many_is_said_once_with_a_count(width: int, diagnosis: Diagnosis) -> None:
    """Of hotspots, of what was not tried, of what was tried without a figure, and of modules that were left."""
    assert diagnosis.fix is not None
    spots = tuple(
        dataclasses.replace(hotspot, action=f"no gain by kernelworks.op{number} ({NOISY})", low_s=0.0, high_s=0.0)
        for number, hotspot in enumerate(diagnosis.hotspots[:3])
    )
    one = TriedOptimization("swap", "model", "a way", "", NOT_TRIED, NOISY)
    several = tuple(
        dataclasses.replace(one, outcome=outcome, says=f"way {number}")
        for outcome in (REJECTED, NOT_TRIED) for number in range(4)
    )  # fmt: skip
    left = tuple(f"{count} x Linear blocks.*.{count}: {NOISY}" for count in range(2, 9))
    fix = dataclasses.replace(diagnosis.fix, optimizations=several, left=left)
    record = dataclasses.replace(diagnosis, hotspots=spots, fix=fix, findings=(), notes=())
    short, whole = (
        " ".join(printed(drawn.diagnosis(record, width, verbose=verbose), width).split()) for verbose in (False, True)
    )
    assert short.count("too noisy") == 3 and f"3 of these: {NOISY}" in short
    assert all(f"no gain by kernelworks.op{number}" in short for number in range(3))
    assert f"{one.optimization} in 4 ways ({NOISY})" in short and f"{one.optimization}: in 4 ways" in short
    assert all(f"{count} x Linear blocks.*.{count}" in whole for count in range(2, 9))
    assert whole.partition(" note ")[2].count("too noisy") == 1


def test_a_reason_of_one_stays_with_it(diagnosis: Diagnosis) -> None:
    spots = (dataclasses.replace(diagnosis.hotspots[0], action=f"swap it ({NOISY})"), *diagnosis.hotspots[1:])
    text = printed(drawn.diagnosis(dataclasses.replace(diagnosis, hotspots=spots, fix=None), 132))
    assert "of these" not in text and f"swap it ({NOISY})" in " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80])
def test_a_progress_line_says_what_how_much_and_for_how_long(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves on while nothing is said, on one line."""
    said = io.StringIO()
    shown = Console(file=said, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    monkeypatch.setattr(terminal, "stderr", lambda: shown)

    def frames() -> list[str]:
        return [line.rstrip() for line in re.split(r"[\r\n]|\x1b\[[0-9;?]*[a-zA-Z]", said.getvalue()) if line.strip()]

    end = time.monotonic() + 60
    with terminal.progress("diagnose") as advance:
        advance("timing run 2 of 3, the last one took 10 s and it is a long one", 1, 3)
        while not any(line.endswith(" 2 s") for line in frames()) and time.monotonic() < end:
            time.sleep(0.05)
        advance("another step")
        while not any("another step" in line and " s in all" in line for line in frames()) and time.monotonic() < end:
            time.sleep(0.05)
    first = [line for line in frames() if "timing run" in line]
    assert {line.split()[-2] for line in first} >= {"0", "1", "2"}
    assert all(len(line) <= width and ("━" in line) for line in first)
    assert all("━" not in line for line in frames() if "another step" in line)


@pytest.mark.parametrize(
    ("step", "whole", "text"), [(3.2, 3.4, "3 s"), (3.2, 60.4, "3 s, 60 s in all"), (0.2, 60.4, "60 s in all")]
)
def test_what_has_run_for_how_long(step: float, whole: float, text: str) -> None:
    assert terminal.elapsed_text(step, whole) == text


def test_a_map_without_triton_is_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row's compiler is not here, that is why it has no certificate."""
    from kernelworks.build import BuildError
    from kernelworks.measure.bench import kernel_map as mapped

    def missing(op: str, row: object, kind: str | None = None) -> str | None:
        raise BuildError("no Triton: pip install triton\nand more")

    monkeypatch.setattr(mapped.certificates, "invalid_reason", missing)
    assert {row.reason for row in mapped.kernel_map("softmax")[0].kernels if row.target == "triton"} == {
        "no Triton: pip install triton"
    }
    assert any("no Triton" in line for line in mapped.stale_kernels("softmax"))


@pytest.mark.parametrize("width", [60, 80, 132])
def test_a_map_of_many_ops_is_a_line_each(width: int, map_ops: list[MapOp]) -> None:
    many = [dataclasses.replace(map_ops[0], op=f"op_{i}", family="some"[i % 2 :]) for i in range(20)]
    text = printed(map_report.kernel_map(many, "here", width), width)
    lines = text.splitlines()
    assert len(lines) < 20 + 8 and max(map(len, lines)) <= width
    assert all(re.search(rf"^  op_{i} +avx512 +exp\(x", text, re.M) for i in range(20))
    assert "kernelworks map OP" in " ".join(text.split())
    whole = printed(map_report.kernel_map(many, "here", width, verbose=True), width)
    assert whole.count("0.43 of its bound") == 20 if width >= 100 else "0.43" in whole


@pytest.mark.parametrize("width", [36, 40, 48])
def test_the_time_breakdown_keeps_its_figures_whole(width: int) -> None:
    parts = {"native code outside torch": 0.9, "at peak": 0.1}
    lines = [line.plain for line in time_breakdown(parts, 1.0, width)]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(figure in text for figure in ("900 ms", "90.0%", "100 ms", "10.0%", "1000 ms", "100.0%", *parts))


def test_a_path_that_is_wider_than_the_terminal_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = f"{'long/' * 12}record.json"
    show(Group(cells([("record", 8), (path, 1)])))
    assert path in capsys.readouterr().out
