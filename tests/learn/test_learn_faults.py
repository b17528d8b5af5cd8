"""What is said of outputs, addresses and rates: the words a learner gets, from plain arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernelworks.learn.case import Case, Output, Reference, State
from kernelworks.learn.faults import Observation, Verdict, crash_sentence, describe_elements, judge
from kernelworks.learn.measured_peaks import limit_of, recorded_peaks
from kernelworks.measure.peaks.cache import save_peaks
from kernelworks.records import Bandwidth, Peaks, from_json

DRAM = Bandwidth("DRAM", 1 << 26, "read", 1, 20.0)
PEAKS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "diagnose-minilm.json"


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.array([1, 1, 1]), "all of y"),
        (np.array([0, 0, 1, 1, 1]), "the last 3 elements of y"),
        (np.array([0, 0, 0, 1]), "the last element of y"),
        (np.array([1, 0, 0]), "the first element of y"),
        (np.array([0, 1, 0]), "y[1]"),
        (np.array([0, 1, 0, 1]), "2 of 4 elements of y"),
        (np.array([0, 1, 0, 1, 0, 1]), "every second element of y, from y[1] on,"),
        (np.array([0, 1, 0, 1, 0, 1, 0, 0]), "3 of 8 elements of y"),
        (np.array([[0, 1, 1], [0, 1, 1]]), "the last 2 elements of each row of y"),
        (np.array([[0, 0], [1, 1], [0, 0]]), "row 1 of y"),
        (np.array([[0, 0], [1, 1], [1, 1]]), "the last 2 rows of y"),
        (np.array([[1, 0], [0, 1], [0, 0]]), "2 of 6 elements of y"),
        (np.array([[0, 0], [0, 1], [0, 0]]), "y[1, 1]"),
    ],
)
def test_elements_in_words(mask: np.ndarray, said: str) -> None:
    assert describe_elements("y", mask.astype(bool)) == said


BUFFERS = [
    {"name": "x", "address": 0x20000, "nbytes": 40, "size": 4, "first": 0x20000, "pages": 1},
    {"name": "y", "address": 0x50FD8, "nbytes": 40, "size": 4, "first": 0x50000, "pages": 1},
]


@pytest.mark.parametrize(
    ("number", "address", "writes", "said"),
    [
        (11, 0x51000, 1, "writes 1 element beyond the end of y"),
        (11, 0x51008, 0, "reads 3 elements beyond the end of y"),
        (11, 0x1FFFC, 0, "reads 1 element before the beginning of x"),
        (11, 0, 1, "writes through a pointer that points nowhere"),
        (11, 0x7FFF0010, 0, "uses up the stack"),
        (11, 0x90000000, 2, "reads or writes far outside of every array"),
        (26, 0, 0, "does not come back"),
        (8, 0, 0, "divides an integer by 0"),
        (4, 0, 0, "leaves what C++ defines"),
    ],
)
def test_an_address_has_a_name(number: int, address: int, writes: int, said: str) -> None:
    signal = {"signal": number, "address": address, "writes": writes, "code": 1, "stack": 0x7FFF0000}
    assert crash_sentence(signal, BUFFERS).startswith(said)


@pytest.mark.parametrize(
    ("fault", "value", "of_type", "said"),
    [
        ("index", 4, "double [4]", "uses index 4 of sums, which has 4 elements"),
        ("index", -1, "double", "uses index -1 of sums"),
        ("division", 0, "long int", "divides an integer by 0"),
        ("shift", 64, "int", "shifts by 64 bits, which int does not have"),
        ("conversion", 0, "int", "converts a number to int that does not fit it: NaN, infinite or too large"),
        ("overflow", 0, "int", "lets an integer of type int overflow: make it long"),
    ],
)
def test_what_is_undefined_is_named(fault: str, value: int, of_type: str, said: str) -> None:
    code = "sums[at[lane]] += x[i];"
    signal = {"signal": 4, "address": 0, "writes": 2, "fault": fault, "value": value, "type": of_type, "column": 14}
    assert crash_sentence(signal, BUFFERS, code) == said


@pytest.mark.parametrize(
    ("number", "of_type", "said"),
    [
        ("-163", "signed char", "converts -163 to int8_t, which holds -128 to 127"),
        ("3e+10", "int", "converts 3e+10 to int, which holds -2147483648 to 2147483647"),
        ("-nan", "signed char", "converts NaN to int8_t: 0 was divided by 0, or a NaN was in the input"),
        ("inf", "long int", "converts an infinite number to long: something was divided by 0, or grew too large"),
    ],
)
def test_what_does_not_fit_a_type_is_said_with_its_value(number: str, of_type: str, said: str) -> None:
    signal = {"signal": 4, "address": 0, "writes": 2, "fault": "conversion", "value": 0, "type": of_type, "column": 1}
    assert crash_sentence({**signal, "number": number}, BUFFERS) == said


def test_an_instruction_that_the_processor_lacks_is_no_undefined_behaviour() -> None:
    signal = {"signal": 4, "address": 0, "writes": 0, "code": 2, "stack": 0}
    assert "__builtin_cpu_supports" in crash_sentence({**signal, "unknown": 1}, BUFFERS)
    assert "__builtin_cpu_supports" not in crash_sentence(signal, BUFFERS)


def test_cases_of_no_length_are_told_last() -> None:
    empty, usual = observed([9], [1], about="k = 0"), observed([9], [1], about="k = 4")
    empty.case.arguments["a"] = np.zeros((2, 0))
    assert verdict_of(empty, usual).case == "k = 4"
    for seen in (empty, usual):
        seen.outputs["y"], seen.unwritten["y"] = np.zeros(2, np.float32), np.array([True, True])
    found = verdict_of(empty, usual)
    assert (found.case, found.sentence) == ("k = 4", "nothing of y is written")


def observed(got: object, want: object, bound: float = 0.1, about: str = "a case", alone: str = "") -> Observation:
    outputs = {"y": np.asarray(got, np.float32)}
    expected = np.asarray(want, np.float64)
    case = Case(about, {"x": expected, "y": Output(expected.shape)}, alone)
    return Observation(case, {"y": expected}, {"y": np.full(expected.shape, bound)}, outputs)


def verdict_of(*seen: Observation, **mistakes: float) -> Verdict:
    functions = {name: (lambda x, factor=factor: {"y": factor * x}) for name, factor in mistakes.items()}
    return judge(seen, Reference(iter, iter, dict, dict, functions))  # type: ignore[arg-type]


def test_nan_is_never_within_a_bound() -> None:
    found = verdict_of(observed([1, np.nan], [1, 2], bound=np.inf))
    assert not found.right and "becomes NaN" in found.sentence


def test_a_nan_must_come_through_and_no_further() -> None:
    lost = verdict_of(observed([0, 2], [np.nan, 2]))
    spread = verdict_of(observed([[np.nan, np.nan], [np.nan, 3]], [[np.nan, np.nan], [2, 3]]))
    assert lost.sentence == "a NaN in the input is lost: the first element of y should be NaN"
    assert spread.sentence == "a NaN in the input spreads to row 1 of y, which does not depend on it"


def test_a_known_mistake_must_explain_every_case() -> None:
    doubled = observed([2, 4], [1, 2], bound=1e-3)
    other = observed([5, 5], [1, 2], bound=1e-3)
    assert verdict_of(doubled, twice=2.0).sentence == "twice"
    assert verdict_of(doubled, other, twice=2.0).sentence != "twice"
    assert verdict_of(doubled, thrice=3.0).sentence == "all of y is wrong"
    passed = observed([1, 2], [1, 2], bound=1e-3)
    assert verdict_of(doubled, passed, twice=2.0).sentence != "twice"  # who doubles fails there too


def test_a_mistake_in_bits_is_told_from_its_neighbours() -> None:
    """Where the bound is 0, what another order of the additions gives must be met exactly."""
    one = np.float32(1 + 2**-20)
    found = verdict_of(observed([one], [1], bound=0.0), other=1 + 2**-21, this=float(one))
    assert found.sentence == "this"


def test_cases_that_fail_alone_say_what_that_means() -> None:
    right, wrong = observed([1], [1]), observed([9], [1], alone="right for short arrays only")
    assert verdict_of(right, wrong).sentence == "right for short arrays only"
    assert verdict_of(wrong, observed([9], [1])).sentence == "y is wrong"


def test_nearly_right_is_told_from_wrong() -> None:
    near = observed([1.00001], [1], bound=1e-6)
    assert "close, but off by 10 times" in verdict_of(near).sentence
    far = observed([3], [1], bound=1e-6, about="far")
    assert (verdict_of(near, far).sentence, verdict_of(near, far).case) == ("y is wrong", "far")
    assert "not the same bits" in verdict_of(observed([1.00001], [1], bound=0.0)).sentence


def test_an_array_that_is_never_stepped_is_told() -> None:
    kept, stepped = observed([1, 2], [3, 4], 1e-3), observed([1, 5], [3, 4], 1e-3)
    for seen in (kept, stepped):
        seen.case.arguments["y"] = State(np.array([1, 2], np.float32))
    assert verdict_of(kept).sentence == "y stays as it was: what is computed must be written into it"
    assert verdict_of(kept, stepped).sentence == "all of y is wrong"


def test_what_was_done_comes_before_what_came_out() -> None:
    seen = observed([9, 9], [1, 2])
    seen.unwritten["y"] = np.array([False, True])
    assert verdict_of(seen).sentence == "the last element of y is never written"
    seen.changed_inputs = ["x"]
    assert verdict_of(seen).sentence == "changes its input x"


def test_the_limit_is_the_longer_of_two_times() -> None:
    peaks = from_json(Peaks, json.dumps(json.loads(PEAKS.read_text(encoding="utf-8"))["peaks"]))
    moved = limit_of(1.0, 1e9, 1, peaks)
    assert moved is not None and moved.name.startswith("DRAM") and moved.bound == "memory"
    near = limit_of(0.0, 1e3, 1, peaks)
    assert near is not None and near.name.startswith("L1") and near.bound == "the L1 cache"
    assert limit_of(0.0, 0.0, 1, peaks) is None


def test_peaks_are_read_without_torch_as_they_were_saved(
    peaks_of_this_machine: Peaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    assert recorded_peaks() is None
    path = save_peaks(peaks_of_this_machine)
    assert recorded_peaks() == peaks_of_this_machine
    rough = path.with_suffix(".rough.json")
    rough.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace("DRAM", "L3"), encoding="utf-8")
    assert recorded_peaks() is None


@pytest.fixture
def peaks_of_this_machine() -> Peaks:
    from kernelworks.measure.peaks import unmeasured_peaks

    return Peaks(**{**vars(unmeasured_peaks("nobody asked")), "unknown": "", "bandwidth": (DRAM,)})
