"""A search handed on as data: what rows hold, figures as their formulas have them, files that are whole."""

from __future__ import annotations

import importlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pretended import PROBLEM, judgement
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.judge.formats import read_candidate, read_problem
from kernelworks.records.judgement import Judgement
from kernelworks.search.export import FORMATS, export, lines
from kernelworks.search.model.ask import Text
from kernelworks.search.model.replies import parse_reply
from kernelworks.search.proposer import Draft, StoredCandidate
from kernelworks.search.store import Store

CODE = "class ModelNew:\n    def forward(self, x):\n        return x * {0}\n"


def drafted(name: str, parent: str = "", language: str = "torch", note: str = "") -> Draft:
    """A draft whose text says who it is; parents by their ids."""
    return Draft(CODE.format(name), language, "model", (parent,) if parent else (), note or f"idea {name}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """1 right; 2 of 1 refused; 3 of 2 right and twice as quick; 4 and 5 of 3, one slower, one quicker; 6 without a
    verdict, 7 unjudged."""
    with Store.open(tmp_path / "s.sqlite", PROBLEM, over="eager", threads=1, machine="a machine") as found:
        known: dict[str, str] = {}
        tree: tuple[tuple[str, str, Judgement | None], ...] = (
            ("1", "", judgement(ratio=1.0)),
            ("2", "1", judgement("refused", why="off by one")),
            ("3", "2", judgement(ratio=2.0)),
            ("4", "3", judgement(ratio=1.5)),
            ("5", "3", judgement(ratio=4.0)),
            ("6", "1", judgement("undecided", why="the reference ended")),
            ("7", "1", None),
        )
        for name, parent, its in tree:
            (known[name],) = found.add([drafted(name, known.get(parent, ""))])
            if its is not None:
                found.keep(known[name], its, cost_s=1.0)
        yield found


def rows(store: Store, format: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(store, format, Counter())]


# ---------------------------------------------------------------- what rows hold


def test_turns_have_kevins_score_and_discounted_reward(store: Store) -> None:
    found = rows(store, "kevin")
    assert [one["number"] for one in found] == [1, 2, 3, 4, 5]
    assert [one["score"] for one in found] == [1.3, 0.0, 2.3, 1.8, 4.3]
    # 3 goes on to 4 and 5, on average to (1.8 + 4.3) / 2
    third = 2.3 + 0.4 * 3.05
    assert [one["reward"] for one in found] == pytest.approx([1.3 + 0.4 * 0.4 * third, 0.4 * third, third, 1.8, 4.3])
    assert [one["turn"] for one in found] == [1, 2, 3, 4, 4] and {one["trajectory"] for one in found} == {
        found[0]["id"]
    }
    assert found[2]["next"] == [found[3]["id"], found[4]["id"]] and found[0]["next"][0] == found[1]["id"]


def test_a_turns_conversation_is_what_led_to_it(store: Store) -> None:
    last = rows(store, "kevin")[-1]
    roles = [one["role"] for one in last["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant"]
    said = [one["content"] for one in last["messages"]]
    assert "torch.relu(x) * 2" in said[1] and "a machine" in said[1]
    for n, name in ((2, "1"), (4, "2"), (6, "3"), (8, "5")):
        assert [one.code for one in parse_reply(Text(said[n]), PROBLEM, 9).found] == [CODE.format(name)]
    assert "off by one" in said[5] and "2.00x as quick as eager" in said[7]
    assert last["candidate"] == CODE.format("5") and "4.00x" in last["feedback"] and last["gamma"] == 0.4


def test_what_is_to_be_learned_is_what_got_better(store: Store) -> None:
    found = rows(store, "sft-jsonl")
    assert [one["number"] for one in found] == [3, 5]  # mended, and quicker; 1 is no quicker than eager
    assert [one["role"] for one in found[1]["messages"]] == ["system", "user", "assistant"]
    prompt, answer = (one["content"] for one in found[1]["messages"][1:])
    assert CODE.format("3") in prompt and "2.00x as quick as eager" in prompt and "idea 3" in prompt
    (read,) = parse_reply(Text(answer), PROBLEM, 9).found
    assert (read.code, read.note) == (CODE.format("5"), "idea 5")
    assert "off by one" in found[0]["messages"][1]["content"]
    assert (found[1]["ratio"], found[1]["over"], found[1]["verdict"]) == (4.0, "eager", "right")


def test_kernelbook_rows_have_its_columns_and_can_be_judged(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    done = export(store, "kernelbook", path)
    columns = (
        "entry_point", "original_triton_code", "python_code", "triton_code", "repo_name", "module_name", "synthetic",
        "uuid", "licenses", "stars", "sha", "repo_link",
    )  # fmt: skip
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(set(columns) <= one.keys() for one in read) and [one["uuid"] for one in read] == [1, 3, 4, 5]
    assert (done.rows, done.candidates, done.left_out) == (4, 7, {"not right": 3})
    problem = read_problem(f"{path}#1")
    assert problem.format == "kernelbook" and problem.entry == "Model"
    candidate = read_candidate(f"{path}#1", problem)
    assert candidate.entry == "ModelNew" and list(candidate.files.values()) == [CODE.format("3")]


def test_a_problem_that_is_no_module_has_no_kernelbook_rows(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r.sqlite", read_problem("relu"), over="eager", threads=1, machine="m") as store:
        with pytest.raises(ValueError, match="relu is one of op; kevin and sft-jsonl take it"):
            export(store, "kernelbook", tmp_path / "rows.jsonl")
        assert not (tmp_path / "rows.jsonl").exists()
        (id,) = store.add([Draft("def relu(x):\n    return x\n", "torch", "model")])
        store.keep(id, judgement(ratio=2.0), cost_s=1.0)
        (row,) = rows(store, "sft-jsonl")
        assert "a function relu" in row["messages"][0]["content"]


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_store_gives_the_same_bytes(format: str, store: Store, tmp_path: Path) -> None:
    export(store, format, tmp_path / "a.jsonl")
    export(store.path, format, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes() != b""


def test_a_file_is_whole_or_as_it_was(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("before\n", encoding="utf-8")

    def broken(self: Store, id: str) -> StoredCandidate:
        raise OSError("the disk is gone")

    monkeypatch.setattr(importlib.import_module("kernelworks.search.export"), "MOST_HELD", 1)
    monkeypatch.setattr(Store, "candidate", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        export(store, "kevin", path)
    assert path.read_text(encoding="utf-8") == "before\n" and [*tmp_path.glob(".rows*")] == []


def test_rows_are_written_as_they_are_read(store: Store) -> None:
    class Endless:
        """As many candidates as are asked for; only the first are in the tree that is kept."""

        problem, over, machine, candidate = store.problem, store.over, store.machine, store.candidate
        summaries = staticmethod(store.summaries)

        @property
        def history(self) -> Iterator[StoredCandidate]:
            return itertools.cycle(store.history)

    made = lines(Endless(), "kevin", Counter())
    assert len(list(itertools.islice(made, 100))) == 100


def test_what_is_written_meanwhile_is_not_half_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found, some = list[str](), Store.candidates_from
    monkeypatch.setattr(Store, "candidates_from", lambda self, number, most: some(self, number, 1))  # as late as can be

    def written(line: str) -> None:
        if not found:  # one more, and a verdict on one that had none
            (more,) = store.add([drafted("8")])
            store.keep(more, judgement(ratio=9.0), cost_s=1.0)
            store.keep(store.id_of(CODE.format("7")), judgement(ratio=3.0), cost_s=1.0)
        found.append(line)

    done = export(store.path, "kernelbook", written)
    assert (done.rows, done.candidates, len(found)) == (4, 7, 4)
    again = export(store.path, "kernelbook", written)
    assert (again.rows, again.candidates) == (6, 8)


def test_a_line_of_many_generations_keeps_the_last_turns(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite", PROBLEM, over="eager", threads=1, machine="m") as store:
        row_of = [""]
        for n in range(3000):  # deeper than Python recurses
            row_of.append(store.id_of(drafted(str(n)).code))
        store.add([drafted(str(n), row_of[n]) for n in range(3000)])
        store.keep(row_of[-1], judgement(ratio=2.0), cost_s=1.0)
        (row,) = rows(store, "kevin")
    assert row["turn"] == 3000 and len(row["messages"]) == 2 + 2 * 4 + 1


# ---------------------------------------------------------------- the verb


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments])


def test_the_verb_writes_a_file_or_to_stdout(store: Store, tmp_path: Path) -> None:
    place, out = str(store.path), tmp_path / "deep" / "rows.jsonl"
    done = cli(place, "--format", "kevin", "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["rows"], said["left_out"], said["out"]) == (5, {"no verdict": 2}, str(out))
    shown = cli(place, "--format", "kevin")
    assert shown.exit_code == 0 and shown.stdout == out.read_text(encoding="utf-8")
    assert "5 rows of 7 candidates for twice; left out: 2 no verdict" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "parquet"], "--format takes kernelbook,kevin,sft-jsonl, got 'parquet'"),
        (["--json"], "--json needs --out FILE"),
    ],
)
def test_what_is_wrongly_asked_for_is_usage(arguments: list[str], said: str, store: Store) -> None:
    done = cli(str(store.path), *arguments)
    assert done.exit_code == 2 and said in done.stderr


def test_what_is_no_store_is_usage(tmp_path: Path) -> None:
    other = tmp_path / "x.sqlite"
    assert cli(str(other)).exit_code == 2
    other.write_text("no store", encoding="utf-8")
    done = cli(str(other), "--out", str(tmp_path / "rows"))
    assert done.exit_code == 2 and "not the store of a search" in done.stderr and not (tmp_path / "rows").exists()
