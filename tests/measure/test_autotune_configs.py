"""Configurations of GPU kernels, without a GPU: what is tried, which wins, what is kept, and what the race then
sees."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from machines import GPU_KIND as KIND
from machines import MIB
from printed import printed
from typer.testing import CliRunner

import kernelworks as kw
from kernelworks.build import configs as tables
from kernelworks.cli import app
from kernelworks.dispatch.op import OPS
from kernelworks.machine import Gpu, has_gpu
from kernelworks.measure.autotune import autotune_configs, worker
from kernelworks.measure.autotune import configs as tuning
from kernelworks.records import AutotuneResult, ConfigCandidate, ConfigTuning, Verification, from_json, to_json
from kernelworks.report import autotune as report

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
    assert tuning.best_config([candidates], USED) == (chosen or USED)


def test_nothing_is_chosen_if_the_used_configuration_is_wrong() -> None:
    assert (
        tuning.best_config([[ConfigCandidate(USED, 9.0, "off", None), ConfigCandidate(OTHER, 0.5, "", 1.0)]], USED)
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
    assert tuning.best_config([few], USED) == OTHER
    assert tuning.best_config([few, many], USED) == THIRD
    wrong_there = [*many[:2], ConfigCandidate(THIRD, 2.0, "off", None)]
    assert tuning.best_config([few, wrong_there], USED) == USED
    results = [dataclasses.replace(tuned(), case=str(i), candidates=tuple(c)) for i, c in enumerate((few, many))]
    assert [r.chosen for r in tuning.unify_choices(results)] == [THIRD, THIRD]
    other = dataclasses.replace(results[1], dims={"N": 7})
    assert [r.chosen for r in tuning.unify_choices([results[0], other])] == [OTHER, USED]


def tuned() -> ConfigTuning:
    candidates = (ConfigCandidate(USED, 0.5, "", 10.0, 9.9, 10.2), ConfigCandidate(OTHER, 0.5, "", 8.0, 7.9, 8.1),
                  ConfigCandidate(THIRD, 2.0, "output 0: off", None))  # fmt: skip
    return ConfigTuning("softmax", "triton", "forward", "8192x4096", "bfloat16", {"N": 4096}, candidates, USED, OTHER)


def test_a_tuning_is_shown_with_what_was_wrong() -> None:
    text = printed(report.config_tunings([tuned()]))
    for expected in ("softmax.triton forward", "best", "1.25x", "used today", "output 0: off"):
        assert expected in text, expected


@pytest.fixture
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    card = Gpu(KIND, "Imaginary GPU", (9, 0), 100, 50 * MIB, 1 << 36, "u", "1.2", 700.0)
    for module in (tables, tuning):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
        monkeypatch.setattr(module, "gpu", lambda: card)
    op_package = tmp_path / "ops" / "reduction" / "softmax"
    op_package.mkdir(parents=True)
    (op_package / "tuning.toml").write_text(
        '[[config]]\nop_kernel = "triton"\nkernel = "forward"\nset = { num_warps = 4 }\nevidence = "shipped"\n'
    )
    return op_package / "triton.py"


def test_a_winner_is_read_before_the_table_that_ships_and_changes_the_hash(own_tables: Path) -> None:
    before = tables.Configs(own_tables.parent / "tuning.toml")
    assert before.pick("forward", N=4096, dtype=torch.bfloat16) == USED
    tables.write_tuned(own_tables, [tuning._entry(tuned())])
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
    tables.write_tuned(own_tables, [tuning._entry(again)])
    assert [e["set"] for e in tables.table_of(own_tables)] == [THIRD], "one entry for one size"
    tables.write_tuned(own_tables, [], replace=True)
    assert tables.table_of(own_tables) == []


def test_winners_are_verified_and_taken_back_if_verification_fails(
    own_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, Any]]] = []
    certified = True

    def verify(op: str, kernel: str, progress: Any = None) -> list[Verification]:
        asked.append(tables.table_of(own_tables))
        return [Verification(op, kernel, KIND, 1, 0.5, "", (), 1, 1, {}, 1.0, certified)]

    monkeypatch.setattr(tuning, "verify", verify)
    winners = [tuned(), dataclasses.replace(tuned(), case="16x4096")]
    verifications = tuning._keep_winners(OPS["softmax"], "triton", own_tables, winners, None)
    assert verifications[0].certified
    (entry,) = tables.table_of(own_tables)
    assert entry["set"] == OTHER and [m["case"] for m in entry["measured"]] == ["8192x4096", "16x4096"]
    certified = False
    tuning._keep_winners(OPS["softmax"], "triton", own_tables, [dataclasses.replace(tuned(), chosen=THIRD, candidates=(
        *tuned().candidates[:2], ConfigCandidate(THIRD, 0.5, "", 7.0)))], None)  # fmt: skip
    assert [e["set"] for e in asked[-1]] == [THIRD], "verification saw the new table"
    assert tables.table_of(own_tables) == [entry]


def test_every_space_names_settings_that_a_configuration_of_its_kernel_has() -> None:
    spaces = 0
    for op in OPS.values():
        table = tables.configs(op.op_package / "tuning.toml")
        for space in table.spaces:
            spaces += 1
            same = [e for e in table.entries if all(e[key] == space[key] for key in ("op_kernel", "kernel"))]
            assert any(set(e["set"]) == set(space["set"]) for e in same), f"{op.name}: {space}"
            assert any(isinstance(v, list) and len(v) > 1 for v in space["set"].values()), f"{op.name}: one candidate"
    assert spaces


def test_a_candidate_answers_only_the_pick_that_it_is_for() -> None:
    recorder = tuning._module(OPS["softmax"], "triton", {})[1]
    listed = recorder.base.candidates("forward", N=4096, dtype=torch.bfloat16)
    assert len(listed) > 3 and all(type(v) is int for c in listed for v in c.values())
    recorder.forced["forward", (("N", 4096),), torch.bfloat16] = listed[0]
    assert recorder.pick("forward", N=4096, dtype=torch.bfloat16) == listed[0]
    assert recorder.pick("forward", N=1024, dtype=torch.bfloat16) == recorder.base.pick(
        "forward", N=1024, dtype=torch.bfloat16
    )
    assert len(recorder.points) == 2


# ---------------------------------------------------------------- the configurations, then the race

# A worker on a machine with an imaginary GPU: it "tries" by writing a table, and "races" by saying what softmax picks.
STAND_IN = """
import json, sys
import torch
from kernelworks.build import configs as tables
from kernelworks.machine import Gpu
from kernelworks.measure import autotune
from kernelworks.measure.autotune import worker
from kernelworks.records import AutotunedCall, AutotuneResult, ConfigTuning, Verification

card = Gpu("KIND", "Imaginary GPU", (9, 0), 100, 1 << 20, 1 << 36, "u", "1.2", 700.0)
tables.has_gpu, tables.gpu = (lambda: True), (lambda: card)

def pick(op):
    return tables.configs(op.op_package / "triton.py").pick("forward", N=4096, dtype=torch.bfloat16)

def try_configs(op, kernel, *, cases, keep, progress):
    used = pick(op)
    chosen = used | {"num_warps": 2 * used["num_warps"]}
    progress(f"trying {op.name} {cases}")
    if keep:
        when = {"N": [4096, 4096], "dtype": ["bfloat16"]}
        entry = {"op_kernel": kernel, "kernel": "forward", "when": when, "set": chosen}
        tables.write_tuned(op.op_package / "triton.py", [entry])
    verified = [Verification(op.name, kernel, "KIND", 1, 0.5, "", (), 1, 1, {}, 1.0, CERTIFIED)] if keep else []
    return [ConfigTuning(op.name, kernel, "forward", "c", "bfloat16", {"N": 4096}, (), used, chosen)], verified

def autotune_cases(ops, *, device, again, progress):
    calls = [AutotunedCall(op.name, "forward", "c", "", "torch", json.dumps(pick(op)), 0, 0, 0, 0, 0) for op in ops]
    print("a line that a library prints")
    return AutotuneResult((device,), 1, tuple(calls), 0.5)

worker.try_configs, autotune.autotune_cases = try_configs, autotune_cases
worker.main()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    for module in (tuning, sys.modules["kernelworks.machine"]):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(sys.modules["kernelworks.machine"], "may_have_gpu", lambda: True)
    text = STAND_IN.replace("KIND", KIND).replace("CERTIFIED", "True")
    monkeypatch.setattr(worker, "WORKER", (forked.interpreter(), "-c", text))
    return text


def picked(op: str = "softmax") -> dict[str, Any]:
    path = OPS[op].op_package / "triton.py"
    return tables.configs(path).pick("forward", N=4096, dtype=torch.bfloat16)


def test_the_race_sees_the_configuration_that_was_just_kept(stand_in: str) -> None:
    """Also in a process that has read the old table, which it keeps."""
    old, said = picked(), list[str]()
    result = autotune_configs([OPS["softmax"]], cases=None, progress=said.append)
    (tried,), (call,) = result.configs, result.calls
    assert tried.used == old and tried.chosen != old
    assert json.loads(call.why) == tried.chosen, "the race timed the old table"
    assert picked() == old
    assert said == ["trying softmax None"]
    assert result.verifications[0].certified and result.kinds == ("cuda",)


def test_ops_by_name_are_tuned_from_python_too(stand_in: str) -> None:
    result = kw.autotune(["softmax", "gelu"], configs=True)
    assert [tried.op for tried in result.configs] == ["softmax", "gelu"] == [call.op for call in result.calls]
    assert [json.loads(call.why) for call in result.calls] == [tried.chosen for tried in result.configs]
    for wrong, named in (({"device": "cpu"}, "on a GPU"), ({"cases": ["none"]}, "cases must be among")):
        with pytest.raises((TypeError, ValueError), match=named):
            kw.autotune("softmax", configs=True, **wrong)
    with pytest.raises(TypeError, match="got a program"):
        kw.autotune(lambda: None, configs=True)
    with pytest.raises(TypeError, match="ops take no arguments"):
        kw.autotune("softmax", 3)
    with pytest.raises(ValueError, match="no op is named 'nothing'"):
        kw.autotune("nothing")


def test_a_look_writes_nothing_and_races_nothing(stand_in: str, tmp_path: Path) -> None:
    result = kw.autotune("softmax", configs=True, keep=False)
    assert result.configs[0].chosen != result.configs[0].used
    assert not result.calls and not result.verifications
    assert not (tmp_path / "tuning").exists()
    assert "nothing was written" in printed(report.autotune_result(result))


@pytest.mark.parametrize(
    "program", ["raise MemoryError('no op package')", "import os; os.abort()", "print('[1]')", "print('{}')"]
)
def test_a_worker_that_dies_is_said_to_have(stand_in: str, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(worker, "WORKER", (forked.interpreter(), "-c", program))
    with pytest.raises(RuntimeError, match="the process of the configs step of softmax ended with"):
        kw.autotune("softmax", configs=True)


def test_the_worker_starts_and_says_what_it_refuses() -> None:
    """The real one: without a GPU it ends with the reason; with one it refuses the kernel."""
    request = json.dumps({"step": "configs", "ops": ["softmax"], "kernel": "none", "cases": None, "keep": False})
    done = subprocess.run([*worker.WORKER, request], capture_output=True, text=True)
    if has_gpu():
        assert "got 'none'" in json.loads(done.stdout.splitlines()[-1])["refused"]
    else:
        assert done.returncode == 1 and "tried on a CUDA device" in done.stderr.splitlines()[-1]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["autotune", *arguments])


def test_the_command_shows_configurations_and_calls(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("softmax", "--configs", "--json")
    assert done.exit_code == 0, done.output
    found = from_json(AutotuneResult, done.stdout)
    assert found.configs[0].op == found.calls[0].op == "softmax"
    assert from_json(AutotuneResult, to_json(found)) == found
    shown = run("softmax", "--configs", "--look")
    assert shown.exit_code == 0 and "softmax.triton forward" in shown.stdout
    monkeypatch.setattr(worker, "WORKER", (forked.interpreter(), "-c", stand_in.replace("1.0, True", "1.0, False")))
    assert run("softmax", "--configs").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("p.py", "--configs"), "takes names of ops, not a program"),
        (("-m", "timeit", "--configs"), "takes names of ops, not a program"),
        (("--configs",), "takes names of ops"),
        (("softmax", "--look"), "need --configs"),
        (("softmax", "--case", "c"), "need --configs"),
        (("softmax", "--kernel", "triton"), "need --configs"),
        (("softmax", "--configs", "--device", "cpu"), "--device cannot be cpu"),
        (("softmax", "--configs", "--case", "c"), "cases must be among"),
        (("softmax", "--configs", "--kernel", "c"), "got 'c'"),
        (("nothing", "--configs"), "no op is named 'nothing'"),
    ],
)
def test_wrong_options_are_usage(stand_in: str, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
