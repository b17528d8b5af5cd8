"""Experiments: each is whole (a question, points, readings, a page that explains it), and shown everywhere alike."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.experiment import plan as plans
from kernelworks.experiment.all_reduce_ring import sum_at_one_rank, sum_round_a_ring
from kernelworks.experiment.experts import expected_share
from kernelworks.experiment.latency import chain
from kernelworks.experiment.list import PLANS, plan_named
from kernelworks.experiment.online_softmax import step_online
from kernelworks.experiment.plan import run_plan
from kernelworks.experiment.rounding import product_bound, rounded_to_bits, split_terms
from kernelworks.experiment.walking import tiles, walks
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.measure.clock.race import TimeStats
from kernelworks.records import to_document
from kernelworks.records.experiment import Experiment
from kernelworks.records.schema import read_record
from kernelworks.report import html
from kernelworks.report.record_view import record_view

ROOT = Path(__file__).resolve().parents[2]
NAMES = [plan.name for plan in PLANS]


@pytest.fixture(scope="module")
def found() -> dict[str, Experiment]:
    """Each experiment, run once. What is timed runs each of its calls once, and the clock says what it likes: no test
    hangs on the machine."""
    ticks = iter(range(1, 1 << 30))

    def stopped(
        calls: Mapping[str, Callable[[], object]], say: Any, *, rough: bool
    ) -> tuple[dict[str, TimeStats], str]:
        for call in calls.values():
            call()
        seconds = {name: 1e-3 * (1 + next(ticks) % 7) for name in calls}
        return {name: TimeStats(s, 0.9 * s, 1.1 * s, 9) for name, s in seconds.items()}, ""

    with pytest.MonkeyPatch.context() as patch:
        for module in {plan.run.__globals__["__name__"]: plan.run.__globals__ for plan in PLANS}.values():
            if "timed_variants" in module:
                patch.setitem(module, "timed_variants", stopped)
        patch.setattr(plans, "timed_variants", stopped)
        return {plan.name: run_plan(plan, lambda said: None) for plan in PLANS}


def test_no_two_have_one_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(ValueError, match="no experiment is called 'strids'; there are smoother, "):
        plan_named("strids")


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_whole(name: str, found: dict[str, Experiment]) -> None:
    record = found[name]
    assert record.question.endswith("?") and len(record.expected) > 40 and record.readings
    assert record.series and all(len(series.points) > 1 for series in record.series)
    for series in record.series:
        xs = [point.x for point in series.points]
        assert xs == sorted(set(xs)), series.name
        for point in series.points:
            assert point.low <= point.value <= point.high and math.isfinite(point.value)
            assert not record.y.logarithmic or point.value > 0, f"{series.name} at {point.x}"
            assert not record.x.logarithmic or point.x > 0
            assert record.is_timed or point.low == point.high


@pytest.mark.parametrize("name", NAMES)
def test_a_page_explains_it_and_says_how_to_run_it(name: str, found: dict[str, Experiment]) -> None:
    assert f"kernelworks experiment {name}" in (ROOT / found[name].page).read_text(encoding="utf-8")
    assert f"| {name} |" in (ROOT / "docs/reference/experiment.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_terminal_page_and_json_are_of_one_record(name: str, found: dict[str, Experiment], tmp_path: Path) -> None:
    record = found[name]
    path = tmp_path / "record.json"
    path.write_text(to_document(record), encoding="utf-8")
    assert read_record(path) == record and json.loads(path.read_text())["schema"] == "Experiment/1"
    page = html.render_page([record])
    assert "<svg" in page and record.name in page
    from rich.console import Console

    for width in (60, 132):
        console = Console(width=width, force_terminal=False, no_color=True, highlight=False, markup=False)
        with console.capture() as captured:
            console.print(record_view([record], width))
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        assert all(any(line.strip().startswith(series.name[:20]) for line in lines) for series in record.series)


def test_rough_figures_say_so(found: dict[str, Experiment]) -> None:
    rough = dataclasses.replace(found["strides"], rough="other processes used 40% of the cores")
    assert "rough: other processes used 40%" in html.text(rough)
    assert "rough: other processes used 40%" in html.render_page([rough])


# ---------------------------------------------------------------- the command


def test_they_are_listed_and_a_wrong_name_is_usage() -> None:
    listed = CliRunner().invoke(app, ["experiment", "--json"])
    assert [one["name"] for one in json.loads(listed.stdout)] == NAMES
    assert all(name in CliRunner().invoke(app, ["experiment"]).stdout for name in NAMES)
    wrong = CliRunner().invoke(app, ["experiment", "strids"])
    assert wrong.exit_code == 2 and "no experiment is called 'strids'" in wrong.stderr


def test_a_busy_machine_is_refused_unless_rough_figures_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def busy(plan: Any, say: Any, *, rough: bool = False) -> Experiment:
        asked.append(rough)
        raise Ambiguous(0.4, "a race")

    monkeypatch.setattr(plans, "run_plan", busy)
    refused = CliRunner().invoke(app, ["experiment", "strides"])
    assert refused.exit_code == 3 and "--rough" in refused.stderr
    CliRunner().invoke(app, ["experiment", "strides", "--rough"])
    assert asked == [False, True]


# ---------------------------------------------------------------- what the C++ walks touch


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32, 64])
def test_a_strided_read_takes_every_element_of_its_stride_and_no_other(stride: int) -> None:
    """Each element holds a bit that says whether its place is a multiple of the stride, and the last one a third."""
    places = torch.arange(4096, dtype=torch.int32)
    x = torch.where(places % stride == 0, 1, 2).to(torch.int32)
    x[4096 - stride] |= 4
    out = torch.zeros(1, dtype=torch.int32)
    walks().strided_read(out, x, stride, 1)
    assert out.item() == 5


def test_a_chain_visits_every_line_once_and_a_chase_follows_it() -> None:
    size = 1 << 14
    following = chain(size)
    at, seen = 0, set()
    for _ in range(size // 64):
        seen.add(at)
        at = int(following[at])
    assert at == 0 and len(seen) == size // 64 and all(place % 8 == 0 for place in seen)
    out = torch.zeros(1, dtype=torch.int64)
    walks().chase(out, following, 5)
    place = 0
    for _ in range(5):
        place = int(following[place])
    assert out.item() == place


@pytest.mark.parametrize("count", [1, 8, 128])
def test_so_many_multiply_adds_are_done_with_each_float(count: int) -> None:
    out, x = torch.zeros(1), torch.full((1024,), 3.0)
    walks().multiply_adds(out, x, 4096, count, 1)
    exact = 3.0
    for _ in range(count):
        exact = 0.999 * exact + 0.001
    assert abs(out.item() - exact) < 1e-5 * count**0.5


def test_a_walk_reads_what_it_is_told_and_no_more() -> None:
    x, out = torch.ones(2048, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    x[1023] |= 4
    x[1024] |= 8  # one float too far
    walks().walk(out, x, 4096, 1)
    assert out.item() == 5


@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (6, 2), (8, 4)])
def test_a_tile_is_a_product(shape: tuple[int, int]) -> None:
    rows, vectors = shape
    lanes = torch.zeros(1)
    tiles().lanes(lanes)
    columns = vectors * int(lanes.item())
    draws = torch.Generator().manual_seed(1)
    a = torch.randint(-3, 4, (48, 8), generator=draws).float()
    # As many numbers a step as the widest vectors have; a step of narrower ones begins where theirs end.
    b = torch.randint(-3, 4, (48 * 4 * int(lanes.item()),), generator=draws).float()
    out = torch.zeros(1)
    tiles().tile(out, a, b, 48, rows, vectors, 2)
    product = a[:, :rows].t() @ b.view(48, -1)[:, :columns]
    assert out.item() == 2 * product.sum().item()


# ---------------------------------------------------------------- what is computed is right


def values(record: Experiment, series: int = 0) -> dict[str, float]:
    return {point.label or f"{point.x:g}": point.value for point in record.series[series].points}


def test_the_emulator_counts_sectors_and_passes_by_their_definition(found: dict[str, Experiment]) -> None:
    for stride, sectors in values(found["coalescing"]).items():
        assert sectors == len({lane * int(stride) // 8 for lane in range(32)})
    for stride, passes in values(found["coalescing"], 1).items():
        assert passes == math.gcd(int(stride), 32)


def test_three_ways_to_smooth_agree(found: dict[str, Experiment]) -> None:
    kernel, attended = values(found["smoother"]), values(found["smoother"], 1)
    assert all(abs(kernel[place] - attended[place]) < 1e-5 for place in kernel)
    assert max(kernel.values()) - min(kernel.values()) > 1


def test_no_sum_is_beyond_its_bound(found: dict[str, Experiment]) -> None:
    for order in range(3):
        error, bound = values(found["summation"], order), values(found["summation"], order + 3)
        assert all(error[n] <= bound[n] for n in error)
    assert values(found["summation"])["1.04858e+06"] > values(found["summation"], 2)["1.04858e+06"]


def test_rounding_to_bits_is_that_of_the_dtype_and_errors_keep_their_bounds(found: dict[str, Experiment]) -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(rounded_to_bits(x, 8), x.bfloat16().double())
    assert torch.equal(rounded_to_bits(x, 24), x.float().double())
    for count in (1, 2, 3):
        lost = (sum(split_terms(x, 8, count)) - x).abs() / x.abs()
        assert lost.max() <= 2.0 ** (-8 * count)
    error, bound = values(found["rounding"]), values(found["rounding"], 1)
    assert all(error[name] <= bound[name] for name in error)
    assert product_bound(8, 1) > 2 * 2**-8


def test_online_steps_are_the_softmax_of_all() -> None:
    scores, spoils = [1.0, -2.0, 0.5, 7.0, 6.0, -30.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    maximum, total, mean = -math.inf, 0.0, 0.0
    for at in range(0, 6, 2):
        maximum, total, mean = step_online(maximum, total, mean, scores[at : at + 2], spoils[at : at + 2])
    weights = [math.exp(s - 7.0) for s in scores]
    assert maximum == 7.0 and total == pytest.approx(sum(weights), rel=1e-14)
    assert mean == pytest.approx(sum(w * v for w, v in zip(weights, spoils, strict=True)) / sum(weights), rel=1e-14)


def test_larger_blocks_lose_more_and_outliers_make_it_worse(found: dict[str, Experiment]) -> None:
    plain, beside = values(found["block-size"]), values(found["block-size"], 1)
    assert list(plain.values()) == sorted(plain.values()) and list(beside.values()) == sorted(beside.values())
    assert all(beside[block] > plain[block] for block in plain)


def test_the_delta_rule_keeps_what_adding_blurs(found: dict[str, Experiment]) -> None:
    added, compared = values(found["state"]), values(found["state"], 1)
    assert added["1"] < 0.01 and compared["1"] < 0.01
    assert all(compared[n] < added[n] for n in added if int(n) > 1)


def test_routers_without_preference_choose_by_chance(found: dict[str, Experiment]) -> None:
    even, chance = values(found["experts"]), values(found["experts"], 2)
    assert even["1"] == 6.25 and all(abs(even[tokens] - chance[tokens]) < 2 for tokens in even)
    assert expected_share(2) == pytest.approx(1 - (120 / 128) ** 2)


def test_both_ways_round_the_ranks_give_the_sum() -> None:
    import numpy as np

    buffers = [np.arange(10) * rank + 1 for rank in range(4)]
    for way, most in ((sum_at_one_rank, 30), (sum_round_a_ring, 18)):
        results, sent = way(buffers)
        assert all((result == np.sum(buffers, axis=0)).all() for result in results)
        assert max(sent) <= most and sum(sent) == 60
