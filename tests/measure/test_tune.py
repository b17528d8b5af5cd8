"""Tuning without a GPU: what is offered, which candidate wins, and what is kept of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import GPU_KIND as KIND
from machines import MIB
from printed import printed

from kernelworks.build import configs as tables
from kernelworks.dispatch.op import OPS
from kernelworks.machine import Gpu
from kernelworks.measure import tune
from kernelworks.records import ConfigCandidate, ConfigTuning, Verification
from kernelworks.report import tune as tune_report

USED, OTHER, THIRD = {"num_warps": 4}, {"num_warps": 8}, {"num_warps": 16}


@pytest.mark.parametrize(
    ("times", "wrong", "chosen"),
    [
        ((10.0, 9.0, 9.5), "", OTHER),
        ((10.0, 9.9, 10.5), "", None),  # within noise of what is used
        ((10.0, 9.0, 9.5), "off", THIRD),  # the fastest is wrong
        ((10.0, 12.0, 11.0), "", None),
    ],
)
def test_the_winner_is_right_and_faster_by_more_than_noise(
    times: tuple[float, ...], wrong: str, chosen: dict[str, int] | None
) -> None:
    first, second, third = times
    candidates = [
        ConfigCandidate(USED, 0.5, "", first), ConfigCandidate(OTHER, 0.5, wrong, None if wrong else second),
        ConfigCandidate(THIRD, 0.5, "", third), ConfigCandidate({"num_warps": 32}, None, "OutOfResources", None),
    ]  # fmt: skip
    assert tune.best_config([candidates], USED) == (chosen or USED)


def test_nothing_is_chosen_where_what_is_used_is_wrong() -> None:
    assert (
        tune.best_config([[ConfigCandidate(USED, 9.0, "off", None), ConfigCandidate(OTHER, 0.5, "", 1.0)]], USED)
        == USED
    )


def test_cases_of_the_same_sizes_share_one_choice() -> None:
    """Few rows and many pick by N alone: what is best for one may not be taken where it costs the other."""
    few = [
        ConfigCandidate(USED, 0.5, "", 5.0),
        ConfigCandidate(OTHER, 0.5, "", 4.0),
        ConfigCandidate(THIRD, 0.5, "", 4.8),
    ]
    many = [
        ConfigCandidate(USED, 0.5, "", 34.0),
        ConfigCandidate(OTHER, 0.5, "", 39.0),
        ConfigCandidate(THIRD, 0.5, "", 33.5),
    ]
    assert tune.best_config([few], USED) == OTHER
    assert tune.best_config([few, many], USED) == THIRD
    wrong_there = [*many[:2], ConfigCandidate(THIRD, 2.0, "off", None)]
    assert tune.best_config([few, wrong_there], USED) == USED
    results = [dataclasses.replace(tuned(), case=str(i), candidates=tuple(c)) for i, c in enumerate((few, many))]
    assert [r.chosen for r in tune.unify_choices(results)] == [THIRD, THIRD]
    other = dataclasses.replace(results[1], dims={"N": 7})
    assert [r.chosen for r in tune.unify_choices([results[0], other])] == [OTHER, USED]


def tuned() -> ConfigTuning:
    candidates = (ConfigCandidate(USED, 0.5, "", 10.0, 9.9, 10.2), ConfigCandidate(OTHER, 0.5, "", 8.0, 7.9, 8.1),
                  ConfigCandidate(THIRD, 2.0, "output 0: off", None))  # fmt: skip
    return ConfigTuning("softmax", "triton", "forward", "8192x4096", "bfloat16", {"N": 4096}, candidates, USED, OTHER)


def test_a_tuning_is_shown_with_what_was_wrong() -> None:
    text = printed(tune_report.tuning([tuned()]))
    for expected in ("softmax.triton forward", "to be used from now on", "1.25x", "used today", "output 0: off"):
        assert expected in text, expected


@pytest.fixture
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    card = Gpu(KIND, "Imaginary GPU", (9, 0), 100, 50 * MIB, 1 << 36, "u", "1.2", 700.0)
    for module in (tables, tune):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
        monkeypatch.setattr(module, "gpu", lambda: card)
    room = tmp_path / "ops" / "reduction" / "softmax"
    room.mkdir(parents=True)
    (room / "tuning.toml").write_text(
        '[[config]]\nrow = "triton"\nkernel = "forward"\nset = { num_warps = 4 }\nevidence = "shipped"\n'
    )
    return room / "triton.py"


def test_a_winner_is_read_before_the_table_that_ships_and_changes_the_hash(own_tables: Path) -> None:
    before = tables.Configs(own_tables.parent / "tuning.toml")
    assert before.pick("forward", N=4096, dtype=torch.bfloat16) == USED
    tables.write_tuned(own_tables, [tune._entry(tuned())])
    after = tables.Configs(own_tables.parent / "tuning.toml")
    assert after.pick("forward", N=4096, dtype=torch.bfloat16) == OTHER
    assert after.pick("forward", N=4097, dtype=torch.bfloat16) == USED
    assert after.pick("forward", N=4096, dtype=torch.float32) == USED
    assert after.text("triton") != before.text("triton")
    (measured,) = after.user_entries[0]["measured"]
    assert (measured["case"], measured["us"], measured["used_us"]) == ("8192x4096", 8.0, 10.0)
    assert (measured["gpu"], measured["driver"]) == ("Imaginary GPU", "1.2")
    again = dataclasses.replace(
        tuned(), chosen=THIRD, candidates=(*tuned().candidates[:2], ConfigCandidate(THIRD, 0.5, "", 7.0))
    )
    tables.write_tuned(own_tables, [tune._entry(again)])
    assert [e["set"] for e in tables.table_of(own_tables)] == [THIRD], "one entry for one size"
    tables.write_tuned(own_tables, [], replace=True)
    assert tables.table_of(own_tables) == []


def test_winners_are_proved_and_taken_back_where_the_proof_fails(
    own_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, Any]]] = []
    certified = True

    def prove(op: str, row: str, progress: Any = None) -> list[Verification]:
        asked.append(tables.table_of(own_tables))
        return [Verification(op, row, KIND, 1, 0.5, "", (), 1, 1, {}, 1.0, certified)]

    monkeypatch.setattr(tune, "verify", prove)
    winners = [tuned(), dataclasses.replace(tuned(), case="16x4096")]
    proofs = tune._kept(OPS["softmax"], "triton", own_tables, winners, None)
    assert proofs[0].certified
    (entry,) = tables.table_of(own_tables)
    assert entry["set"] == OTHER and [m["case"] for m in entry["measured"]] == ["8192x4096", "16x4096"]
    certified = False
    tune._kept(OPS["softmax"], "triton", own_tables, [dataclasses.replace(tuned(), chosen=THIRD, candidates=(
        *tuned().candidates[:2], ConfigCandidate(THIRD, 0.5, "", 7.0)))], None)  # fmt: skip
    assert [e["set"] for e in asked[-1]] == [THIRD], "the proof saw the new table"
    assert tables.table_of(own_tables) == [entry]


def test_every_offer_names_settings_that_a_configuration_of_its_kernel_has() -> None:
    offers = 0
    for op in OPS.values():
        table = tables.configs(op.op_package / "tuning.toml")
        for space in table.spaces:
            offers += 1
            same = [e for e in table.entries if (e["kernel"], e["kernel"]) == (space["kernel"], space["kernel"])]
            assert any(set(e["set"]) == set(space["set"]) for e in same), f"{op.name}: {space}"
            assert any(isinstance(v, list) and len(v) > 1 for v in space["set"].values()), f"{op.name}: one candidate"
    assert offers


def test_a_candidate_answers_only_the_pick_that_it_is_for() -> None:
    watched = tune._module(OPS["softmax"], "triton", {})[1]
    offered = watched.base.candidates("forward", N=4096, dtype=torch.bfloat16)
    assert len(offered) > 3 and all(type(v) is int for c in offered for v in c.values())
    watched.forced["forward", (("N", 4096),), torch.bfloat16] = offered[0]
    assert watched.pick("forward", N=4096, dtype=torch.bfloat16) == offered[0]
    assert watched.pick("forward", N=1024, dtype=torch.bfloat16) == watched.base.pick(
        "forward", N=1024, dtype=torch.bfloat16
    )
    assert len(watched.points) == 2
