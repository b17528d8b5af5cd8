"""A language model proposes, for real: a process that speaks HTTP, replies that are none, cheats, and the judge."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from gate import BROKEN, KERNEL, OTHER, PROBLEM, RIGHT
from scripted import Scripted, serving
from typer.testing import CliRunner

import kernelworks
from kernelworks.cli import app
from kernelworks.dispatch.op import OPS
from kernelworks.judge import Budget
from kernelworks.judge.formats import read_problem
from kernelworks.judge.problem import Problem
from kernelworks.records import Peaks
from kernelworks.records.judgement import Charge, Judgement, Pace, Speed
from kernelworks.search import search
from kernelworks.search.export import export
from kernelworks.search.model import REPLIES, Model, way_to
from kernelworks.search.model.ask import Patience
from kernelworks.search.model.lineage import REPAIRS, Lineage
from kernelworks.search.model.prompt import LANGUAGES, conversation, template
from kernelworks.search.model.replies import fence_code
from kernelworks.search.model.transcripts import Transcripts, exchange
from kernelworks.search.proposer import Draft, StoredCandidate
from kernelworks.search.store import Store

LITTLE = Budget(reference_s=0.5, most_cases=6, many=12, many_s=0.5, looks=0, shapes=0, gradients=0)
KEY = "sk-of-nobody"
ZEROS = RIGHT.replace("b * torch.sigmoid(a)", "torch.zeros_like(b)")
STALE = RIGHT.replace(
    "        return b * torch.sigmoid(a)",
    "        self.kept = getattr(self, 'kept', b * torch.sigmoid(a))\n        return self.kept.clone()",
)
# What its process was started with, in the reason why it is refused: which the next prompt holds.
THIEF = RIGHT.replace(
    "        return b * torch.sigmoid(a)",
    "        import os\n        given = open('/proc/self/environ').read().split(chr(0)) + [*os.environ]\n"
    "        raise ValueError([word for word in given if word.startswith(('PATH', 'KERNELWORKS_MODEL'))])",
)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    path = tmp_path_factory.mktemp("problems") / "gate.py"
    path.write_text(PROBLEM, encoding="utf-8")
    return read_problem(path)


def test_a_model_that_stumbles_and_cheats_comes_to_a_right_candidate(
    ceilings: Peaks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_MODEL_KEY", KEY)
    steps: list[dict[str, Any]] = [
        {"status": 429, "headers": {"Retry-After": "0"}},
        {"status": 500},
        {"half": fence_code(RIGHT)},
        {"reply": "Kernels are hard; what would you like?"},
        {
            "reply": f"Hypothesis: nobody looks\n\n{fence_code(ZEROS)}\n\n"
            f"Hypothesis: the first will do\n\n{fence_code(STALE)}"
        },
        {"reply": f"Hypothesis: tell me all\n\n{fence_code(THIEF)}"},
        {"reply": f"Hypothesis: in C++\n\n{fence_code(BROKEN)}"},
        {"reply": f"Hypothesis: one pass\n\n{fence_code(KERNEL)}", "tokens": 321},
    ]
    (tmp_path / "gate.py").write_text(PROBLEM, encoding="utf-8")
    place = tmp_path / "search.sqlite"
    with serving(steps, tmp_path) as server:
        found = search(
            tmp_path / "gate.py", proposers=["model"], most=5, budget_s=900, store=place, threads=1, peaks=ceilings,
            judging=(LITTLE, LITTLE), options={"model.endpoint": server.url, "model.model": "m", "model.wait": "0.01"},
        )  # fmt: skip
        asked = server.requests
        prompts = [server.prompt(n) for n in range(len(asked))]
    with Store.read(place) as store:
        seen = list(store.history)
    assert len(asked) == 8 and all(one["headers"]["Authorization"] == f"Bearer {KEY}" for one in asked)

    # what came of them: both cheats and the thief are refused, the right one wins, and nobody saw the key
    assert [one.judgement.verdict for one in seen if one.judgement] == ["refused"] * 4 + ["right"]
    notes = ["nobody looks", "the first will do", "tell me all", "in C++", "one pass"]
    assert [one.draft.note for one in seen] == notes
    zeros, stale, thief, broken, right = seen
    assert zeros.judgement and zeros.judgement.reasons[0].kind == "wrong answer"
    assert stale.judgement and "wrong answer" in {c.kind for c in stale.judgement.reasons}
    assert thief.judgement and "PATH" in str(thief.judgement.reasons) and KEY not in str(thief.judgement)
    assert right.ratio() is not None and right.draft.detail["tokens"]["completion_tokens"] == 321
    assert right.draft.parents == (broken.id,) and thief.draft.parents == (stale.id,)
    assert right.draft.language == "c++" and right.judgement and right.judgement.kernels

    # what it was told: the problem, that its reply held nothing, and the judge's own words on what it had written
    assert "torch.sigmoid(a) * b" in prompts[0] and prompts[0] == prompts[3]
    assert "it holds no block of code: Kernels are hard" in prompts[4]
    assert "It is refused." in prompts[5] and stale.judgement.reasons[0].said in prompts[5]
    assert "getattr(self, 'kept'" in prompts[5] and "nobody looks: refused: wrong answer" in prompts[5]
    assert "does not load" in prompts[7] and "expo" in prompts[7].split("What the judge says of it")[1]

    # Whether it is faster than eager is the machine's affair; nothing else can be the best.
    assert (found.best is None or found.best.code == KERNEL) and found.stopped == "count"

    # what a model would learn from it: how the last one was mended
    learned: list[str] = []
    export(place, "sft-jsonl", learned.append)
    prompt, answer = (one["content"] for one in json.loads(learned[-1])["messages"][1:])
    assert fence_code(KERNEL) in answer and "does not load" in prompt and BROKEN in prompt
    assert not any(KEY in line for line in learned)

    # what was kept: five replies, each with its prompt, what failed before it, and the draft's way to it
    kept = tmp_path / "search.sqlite.transcripts.jsonl"
    lines = list(Transcripts(kept))
    assert [one["candidates"] for one in lines] == [0, 2, 1, 1, 1]
    assert [one["said"] for one in lines[0]["failed"]][:2] == ["status 429", "status 500"]
    assert lines[-1]["id"] == right.draft.detail["transcript"] and lines[-1]["tokens"]["completion_tokens"] == 321
    assert lines[-1]["messages"][-1]["content"] == prompts[7] and KEY not in kept.read_text(encoding="utf-8")


def test_a_command_is_as_good_a_model(problem: Problem, tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(
        "import sys\nprompt = sys.stdin.read()\nassert 'torch.sigmoid(a) * b' in prompt\n"
        f"print({fence_code(OTHER)!r})\n",
        encoding="utf-8",
    )
    model = Model(way_to(command=f"{sys.executable} {script}"), transcripts=tmp_path / "t.jsonl")
    (draft,) = model.propose(problem, [], 3)
    assert (draft.code, draft.proposer, draft.parents) == (OTHER, "model", ())
    assert draft.detail["asked"] == f"the command {sys.executable}"
    assert model.propose(problem, [], 3) == []  # the same again is nothing new
    assert "a candidate that was judged before" in model.remark
    assert len(list(Transcripts(tmp_path / "t.jsonl"))) == 1 + REPLIES


def test_a_model_that_only_talks_ends_and_one_that_is_not_there_is_said(problem: Problem, tmp_path: Path) -> None:
    soon = Patience(seconds=60, tries=2, wait=0.01)

    def remark(server: Scripted) -> str:
        model = Model(way_to(endpoint=server.url, model="m", patience=soon), transcripts=tmp_path / "t.jsonl")
        assert model.propose(problem, [], 1) == []
        return model.remark

    with serving([{"reply": "I cannot do that."}], tmp_path) as server:
        assert "no candidate in 3 replies" in remark(server) and "it refuses: I cannot" in remark(server)
    with serving([{"status": 502}], tmp_path) as server:
        assert "did not answer in 2 tries: status 502" in remark(server)
    assert list(Transcripts(tmp_path / "t.jsonl"))[-1]["failed"][0]["said"] == "status 502"
    (tmp_path / "requests.jsonl").unlink()
    with serving([{"status": 401}], tmp_path) as server:
        model = Model(way_to(endpoint=server.url, model="m", patience=soon))
        assert model.propose(problem, [], 1) == model.propose(problem, [], 1) == []
        assert len(server.requests) == 1 and "status 401" in model.remark


# ---------------------------------------------------------------- whom the next one is made from


def found(verdict: str, seconds: float = 0.0) -> Judgement:
    paces = (Pace("candidate", seconds, seconds, seconds, 9), Pace("eager", 1.0, 1.0, 1.0, 9)) if seconds else ()
    speeds = (Speed("eager", 1 / seconds, 0.9 / seconds, 1.1 / seconds, False),) if seconds else ()
    reasons = () if verdict == "right" else (Charge("wrong answer", "an element is off"),)
    return Judgement(
        candidate="c", problem="p", format="kernelbench", language="torch", verdict=verdict, reasons=reasons,
        remarks=(), worst=0.4, calls=9, elements=99, draws=("given",), shapes=("own",), bound=("mul 100%",),
        paces=paces, speeds=speeds, limit_s=seconds / 4 if seconds else None, bound_by="memory",
        peak="DRAM read 80 GB/s", weights="none", kernels=(), kept_from=(), open_to=(), threads=1, build_s=0.1,
        seconds=1.0, date="2026-01-01T00:00:00Z",
    )  # fmt: skip


def one(number: int, verdict: str, seconds: float = 0.0, *parents: str, by: str = "model") -> StoredCandidate:
    judgement = found(verdict, seconds) if verdict else None
    return StoredCandidate(
        f"c{number}", number, Draft(f"x = {number}", "torch", by, parents, f"idea {number}"), judgement
    )


def parents(seen: list[StoredCandidate], times: int = 200) -> list[str]:
    draw, lineage = random.Random(1), Lineage("model")
    lineage.read(seen)
    places = [lineage.parent(draw) for _ in range(times)]
    return ["" if at is None else seen[at].id for at in places]


def test_the_quickest_is_the_likeliest_parent_and_none_is_the_only_one() -> None:
    picked = parents([one(1, "right", 0.3), one(2, "right", 0.1), one(3, "right", 0.2), one(4, "refused", by="other")])
    counts = {name: picked.count(name) for name in ("c1", "c2", "c3", "c4")}
    assert counts["c2"] > max(counts["c3"], counts["c1"]) and min(counts["c3"], counts["c1"]) > 0 == counts["c4"]


def test_what_was_refused_is_mended_a_few_times_and_then_left() -> None:
    assert parents([], 1) == [""]
    streak = [one(1, "refused")]
    assert set(parents(streak)) == {"c1"}
    for number in range(2, REPAIRS + 1):
        streak.append(one(number, "refused", 0.0, f"c{number - 1}"))
    assert set(parents(streak)) == {f"c{REPAIRS}"}
    streak.append(one(REPAIRS + 1, "refused", 0.0, f"c{REPAIRS}"))
    assert set(parents(streak)) == {""}
    assert set(parents([*streak, one(9, "right", 0.1)])) == {"c9"}
    assert set(parents([one(1, "refused"), one(2, "right", 0.1)])) == {"c1", "c2"}


def test_verdicts_that_come_later_are_read(problem: Problem) -> None:
    lineage, seen = Lineage("model"), [one(1, "")]
    lineage.read(seen)
    assert lineage.parent(random.Random(0)) is None and lineage.summary_lines(None) == []
    seen[0] = one(1, "right", 0.5)
    seen.append(one(2, "refused", by="other"))
    lineage.read(seen)
    assert lineage.parent(random.Random(0)) == 0
    assert lineage.summary_lines(None) == ["idea 1: 2.00x over eager", "idea 2: refused: wrong answer"]


def test_many_candidates_are_read_once() -> None:
    class Counted(list[StoredCandidate]):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            self.reads += 1
            return super().__getitem__(at)

    seen = Counted(one(n, "right" if n % 3 else "refused", 0.1 + n) for n in range(3000))
    lineage = Lineage("model")
    lineage.read(seen)
    lineage.read(seen)
    assert seen.reads == 3000


# ---------------------------------------------------------------- prompts


def test_a_prompt_says_all_that_the_judge_knows(problem: Problem) -> None:
    rules, asked = conversation(
        problem, one(1, "right", 0.1), 2, tried=["idea 7: refused: raised"], machine="a machine"
    )
    text = asked["content"]
    for said in (
        "torch.sigmoid(a) * b", "x = 1", "idea 1", "10.0x as quick as eager", "100 ms a call", "at least 25.0 ms",
        "25% of the limit", "DRAM read 80 GB/s", "It is bound by: memory", "0.4 of the bound", "mul 100%", "a machine",
        "idea 7: refused: raised", "ctypes.CDLL", "up to 2",
    ):  # fmt: skip
        assert said in text, said
    assert "ModelNew" in rules["content"] and "At most 2" in rules["content"]
    mend = conversation(problem, one(1, "refused"), 1)[1]["content"]
    assert "wrong answer: an element is off" in mend and "refused" in mend and "more than" not in mend


@pytest.mark.parametrize("op", ["softmax", "relu", "rms_norm", "rope", "gelu_mul", "linear"])
def test_an_op_is_told_by_its_contract(op: str) -> None:
    rules, asked = conversation(read_problem(op), None, 1, machine="m")
    contract = OPS[op].contract
    assert f"a function {op}" in rules["content"]
    for said in (contract.formula, contract.source, contract.bench_cases[0].name, "in float64", *contract.outputs):
        assert said in asked["content"], said
    assert (getattr(kernelworks, op).__doc__ or "none").strip().splitlines()[0] in asked["content"]


def test_a_compilers_long_error_keeps_its_beginning_and_its_end(problem: Problem) -> None:
    charge = Charge("does not load", "first error" + "x" * 50_000 + "last error")
    judgement = dataclasses.replace(found("refused"), reasons=(charge,))
    seen = StoredCandidate("a", 1, Draft("x = 1", "c++", "model"), judgement)
    text = conversation(problem, seen, 1)[1]["content"]
    assert "first error" in text and "last error" in text and len(text) < 20_000


@pytest.mark.parametrize("name", ["system", "first", "refine", "repair", "again", "go_on", *LANGUAGES.values()])
def test_every_template_is_in_the_package(name: str) -> None:
    assert template(name).is_valid() and len(template(name).template) > 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "m"], "got neither"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "model must name a model at the endpoint, got None"),
        (["--command", "cat", "--with", "model.tries=many"], "tries must be a whole number, got 'many'"),
        (["--command", "cat", "--with", "model.colour=red"], "model takes the options endpoint, model, command"),
        (["--proposers", "model"], "--endpoint URL --model NAME, or --command"),
    ],
)
def test_the_verb_says_what_is_wrong_before_anything_is_made(options: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(PROBLEM, encoding="utf-8")
    done = CliRunner().invoke(app, ["search", str(tmp_path / "gate.py"), "--store", str(tmp_path / "s"), *options])
    assert done.exit_code == 2 and said in done.stderr and not (tmp_path / "s").exists()


def test_a_language_that_there_is_not_is_said() -> None:
    with pytest.raises(ValueError, match=r"language must be one of .*, got 'fortran'"):
        Model(way_to(command="cat"), language="fortran")


# ---------------------------------------------------------------- transcripts


def test_lines_are_whole_whoever_appends_and_whatever_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.jsonl"
    kept = Transcripts(path)
    assert list(kept) == []
    first = kept.keep(exchange("m", "p", [{"role": "user", "content": "a"}]))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"id": "half of a li')
    second = kept.keep(exchange("m", "p", [{"role": "user", "content": "\ud800"}]))
    assert [line["id"] for line in kept] == [first, second] and first != second
    assert all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}"))
