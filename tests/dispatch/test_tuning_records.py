"""Tuning records: what they say of a call, which of them hold, and what a file that is no tuning record does (nothing,
in a word)."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelworks.contract import Kernel, Request
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.tuning_records import (
    NO_RECORD,
    RaceResult,
    TuningRecord,
    Verdict,
    bucket_of,
    call_of,
    verdict,
)
from kernelworks.machine import machine, place_of
from kernelworks.ops.pooling.adaptive_avg_pool import ADAPTIVE_AVG_POOL2D

OP = OPS["rms_norm"]
OURS = Kernel(
    "ours",
    "avx2",
    lambda pass_: lambda: None,
    source=Path("ours.cpp"),
    hashed=lambda kernel: "h",
    toolchain=lambda: "g",
)
OTHER = dataclasses.replace(OURS, name="other", hashed=lambda kernel: "o")
WAYS = {"ours": (OURS,), "other": (OTHER,)}
PLACE = "x86_64-amd-family0-model0-avx2-2cores"


def request(rows: int = 100, columns: int = 768, op: str = "rms_norm", **changed: Any) -> Request:
    x = torch.ones(rows, columns)
    args = (x, torch.ones(columns), 1e-6, None) if op == "rms_norm" else (x, torch.ones(64, columns), None)
    return dataclasses.replace(OPS[op].request("forward", args), threads=2, **changed)


def tuning_record(of: Request | None = None, halves: tuple[float, float] = (1.4, 1.3), **changed: Any) -> TuningRecord:
    of = of or request()
    fields = {
        "op": of.op, "pass_": of.pass_, "way": "ours", "bucket": bucket_of(OP.contract, of), "call": call_of(of),
        "place": PLACE, "threads": 2, "source_hash": "h", "toolchain": "g", "torch": tuning_records.torch_version(),
        "whole": RaceResult(10.0, 14.0, halves, changed.pop("spread", 0.02)), "backward": None, "date": "2026-11-22",
    }  # fmt: skip
    if fields["pass_"] == "training":
        fields["backward"] = RaceResult(6.0, 8.0, (1.2, 1.2), 0.02)
    return TuningRecord(**(fields | changed))


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning_records, "SHIPPED_DIR", tmp_path / "timed")
    tuning_records.reread()


def judged(*records: TuningRecord, of: Request | None = None, ways: Any = WAYS) -> Verdict:
    for record in records:
        tuning_records.write(record)
    return verdict("rms_norm", OP.contract, of or request(), ways, PLACE)


NEAR, FAR = request(101, 700), request(300, 768)  # in the bucket of 100x768, and beyond it
TRAINING = request(pass_="training", wanted=("x",))


@pytest.mark.parametrize(
    ("records", "way", "words"),
    [
        ([], "", NO_RECORD),
        ([tuning_record()], "ours", "timed: 1.30x torch"),
        ([tuning_record(halves=(1.03, 1.03))], "ours", "1.03x"),
        ([tuning_record(halves=(1.4, 1.02))], "", "torch is as quick or quicker (1.02x"),  # one half is not enough
        ([tuning_record(halves=(0.5, 0.5))], "", "0.50x"),
        ([tuning_record(spread=0.11)], "", "measurement too noisy (spread 11%)"),
        (
            [tuning_record(spread=0.11), tuning_record(NEAR)],
            "",
            "measurement too noisy",
        ),  # what is near does not speak for it then
        ([tuning_record(), tuning_record(way="other", source_hash="o", halves=(1.6, 1.5))], "other", "1.50x"),
        ([tuning_record(halves=(0.9, 0.9)), tuning_record(way="other", source_hash="o")], "other", "1.30x"),
        ([tuning_record(NEAR)], "ours", "timed at 1 call like it: at least 1.30x"),
        ([tuning_record(NEAR, halves=(1.09, 1.2))], "", "at one only"),  # less is wanted of the call itself
        ([tuning_record(NEAR), tuning_record(request(90, 700), halves=(0.99, 1.0))], "", "at one only"),  # mixed
        (
            [tuning_record(NEAR, halves=(0.5, 0.5)), tuning_record()],
            "ours",
            "timed: 1.30x",
        ),  # its own tuning record decides
        ([tuning_record(NEAR), tuning_record(halves=(0.5, 0.5))], "", "0.50x"),
        ([tuning_record(FAR)], "", NO_RECORD),
        ([tuning_record(source_hash="another")], "", NO_RECORD),
        ([tuning_record(toolchain="another")], "", NO_RECORD),
        ([tuning_record(torch="2.0.0")], "", NO_RECORD),
        ([tuning_record(threads=1)], "", NO_RECORD),
        ([tuning_record(place="elsewhere-2cores")], "", NO_RECORD),
        ([tuning_record(way="gone")], "", NO_RECORD),
        ([tuning_record(TRAINING)], "", NO_RECORD),  # of another pass
    ],
)
def test_what_the_tuning_records_say(records: list[TuningRecord], way: str, words: str) -> None:
    found = judged(*records)
    assert found.way == way and words in found.because, found


@pytest.mark.parametrize(
    ("whole", "alone", "way"),
    [(1.2, 1.2, "ours"), (1.2, 1.02, ""), (1.02, 1.2, ""), (1.2, math.nan, "")],
)
def test_training_wants_the_backward_quicker_too(whole: float, alone: float, way: str) -> None:
    made = tuning_record(TRAINING, (whole, whole), backward=RaceResult(1.0, 1.0, (alone, alone), 0.0))
    assert judged(made, of=TRAINING).way == way


def test_a_tuning_record_decides_a_call_among_the_ways_that_were_benchmarked() -> None:
    alone, again = {"ours": (OURS,)}, dict(reversed(WAYS.items()))
    changed = {**WAYS, "other": (dataclasses.replace(OTHER, hashed=lambda kernel: "o2"),)}
    before, now = tuning_record(), tuning_record(among=tuning_records.ways_digest(WAYS))
    assert tuning_records.is_decisive(before, alone) and not tuning_records.is_decisive(
        before, WAYS
    )  # a record that says nothing of others
    assert (
        tuning_records.is_decisive(now, again)
        and not tuning_records.is_decisive(now, alone)
        and not tuning_records.is_decisive(now, changed)
    )
    assert not tuning_records.is_decisive(
        dataclasses.replace(now, whole=dataclasses.replace(now.whole, spread=0.2)), WAYS
    )
    tuning_records.write(now)
    (read,), _ = tuning_records.valid_records("rms_norm", OP.contract, request(), WAYS, PLACE)
    assert read == now


def test_the_users_own_tuning_record_takes_the_place_of_a_shipped_one() -> None:
    tuning_records.write_shipped([tuning_record(), tuning_record(FAR)], PLACE)
    assert judged().way == "ours"
    assert judged(tuning_record(halves=(0.9, 0.9))).way == ""
    assert judged(of=FAR).way == "ours"


def test_where_no_kernel_may_be_chosen_torch_runs_unasked() -> None:
    assert judged(tuning_record(), ways={}) == Verdict("", "no kernel of ours may be chosen")


def test_a_training_call_says_which_gradients_it_wants() -> None:
    other = dataclasses.replace(TRAINING, wanted=("x", "weight"))
    assert call_of(TRAINING) != call_of(other)
    assert bucket_of(OP.contract, TRAINING) != bucket_of(OP.contract, other)


ALIKE = [  # two calls, whether they are one bucket, and whether one call
    (request(100), request(100), True, True),
    (request(100), request(127), True, False),
    (request(100), request(128), False, False),
    (request(3, 768, "linear"), request(2, 768, "linear"), False, False),  # few rows one by one
    (request(100, 768, "linear"), request(127, 704, "linear"), True, False),
    (request(100, 768, "linear"), request(127, 701, "linear"), False, False),  # not aligned
]


@pytest.mark.parametrize(("one", "another", "bucket", "call"), ALIKE)
def test_which_calls_are_alike(one: Request, another: Request, bucket: bool, call: bool) -> None:
    contract = OPS[one.op].contract
    assert (bucket_of(contract, one) == bucket_of(contract, another)) == bucket
    assert (call_of(one) == call_of(another)) == call


def test_strides_are_part_of_a_call_and_their_class_of_a_bucket() -> None:
    calls = [torch.ones(100, 768), torch.ones(100, 800)[:, :768], torch.ones(100, 768 * 2)[:, ::2],
             torch.ones(768, 100).t()]  # fmt: skip
    made = [OP.request("forward", (x, None, 1e-6, None)) for x in calls]
    assert len({call_of(r) for r in made}) == len({bucket_of(OP.contract, r) for r in made}) == 4
    assert call_of(made[0]) == call_of(OP.request("forward", (calls[0], None, 1e-5, None)))  # eps costs nothing


# ---------------------------------------------------------------- files that are no tuning records

GOOD = dataclasses.asdict(tuning_record())
LESS = {k: v for k, v in GOOD.items() if k != "date"}
BAD: dict[str, tuple[str, str]] = {
    "empty": ("", "truncated or no JSON"),
    "truncated": (
        json.dumps({"format": tuning_records.FORMAT, "tuning_records": [GOOD]})[:200], "truncated or no JSON"
    ),
    "deep": ("[" * 100_000, "truncated or no JSON"),
    "a list": ("[]", "no tuning records"),
    "another version": (json.dumps({"format": 1, "tuning_records": [GOOD]}), "of another version (format 1)"),
    "a field less": (json.dumps({"format": tuning_records.FORMAT, "tuning_records": [LESS]}), "1 of 1"),
    "a field more": (json.dumps({"format": tuning_records.FORMAT, "tuning_records": [GOOD | {"more": 1}]}), "1 of 1"),
    **{
        f"{name} = {value!r}": (
            json.dumps({"format": tuning_records.FORMAT, "tuning_records": [GOOD | {name: value}]}), "1 of 1",
        )
        for name, value in (
            ("op", None), ("threads", "2"), ("threads", True), ("pass_", "both"), ("whole", None), ("whole", 3),
            ("backward", {}), ("whole", GOOD["whole"] | {"spread": math.nan}),
            ("whole", GOOD["whole"] | {"halves": [1.3]}), ("whole", GOOD["whole"] | {"halves": [1.3, "1.3"]}),
            ("whole", GOOD["whole"] | {"ours_us": math.inf}), ("whole", GOOD["whole"] | {"torch_us": -1.0}),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_torch_and_a_word(name: str) -> None:
    content, word = BAD[name]
    path = tuning_records.write(tuning_record())
    path.write_text(content)
    tuning_records.reread()
    found = judged()
    assert found.way == "" and word in found.because, found


def test_a_file_of_bytes_or_a_folder_in_its_place_gives_torch_and_a_word() -> None:
    path = tuning_records.write(tuning_record())
    path.write_bytes(b"\xff\xfe\x00")
    tuning_records.reread()
    assert "truncated or no JSON" in judged().because
    path.unlink()
    path.mkdir()
    tuning_records.reread()
    assert "cannot be read" in judged().because


def test_a_bad_record_takes_no_good_one_with_it() -> None:
    tuning_records.shipped_path(PLACE).parent.mkdir()
    tuning_records.shipped_path(PLACE).write_text(
        json.dumps({"format": tuning_records.FORMAT, "tuning_records": [GOOD, GOOD | {"threads": None}]})
    )
    assert judged().way == "ours"


def test_what_is_written_is_read_back() -> None:
    for made in (tuning_record(), tuning_record(TRAINING)):
        assert tuning_records._read(tuning_records.write(made)) == ((made,), "")


WRITER = """
import dataclasses, sys
from kernelworks.dispatch import tuning_records
(made,), _ = tuning_records._read(__import__("pathlib").Path(sys.argv[1]))
for n in range(150):
    tuning_records.write(dataclasses.replace(made, call=f"{sys.argv[2]} {n}"))
"""


@pytest.mark.usefixtures("quick_processes")
def test_two_processes_that_settle_at_once_lose_nothing() -> None:
    first = tuning_records.write(tuning_record())
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(first), who]) for who in ("one", "other")]
    assert [w.wait(60) for w in writers] == [0, 0]
    tuning_records.reread()
    found = tuning_records._indexed(tuning_records._folder(PLACE), tuning_records.shipped_path(PLACE), "rms_norm")
    assert sum(len(kept) for kept in found.values()) == 301
    assert not tuning_records.faults(PLACE, "rms_norm")


def test_a_place_counts_the_cores_of_a_cpu() -> None:
    assert place_of("cpu") == f"{machine().kind}-{machine().cores}cores"


def test_tuning_records_that_ship_are_whole() -> None:
    for path in Path(tuning_records.__file__).with_name("timed").glob("*.json"):
        found, word = tuning_records._read(path)
        assert found and not word
        assert {t.place for t in found} == {path.stem}


def test_what_a_tuple_says_tells_two_calls_apart() -> None:
    x = torch.empty(1, 2, 8, 8)
    made = [call_of(ADAPTIVE_AVG_POOL2D.request("forward", (x, size))) for size in ((1, 1), (4, 4), (4, 2))]
    assert len(set(made)) == 3 and all("output_size=(" in call for call in made)
