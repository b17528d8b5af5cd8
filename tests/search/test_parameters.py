"""The search of parameters: it finds a bowl's bottom in few points, proposes none twice, knows again what it knew, and
leaves out what the model of time rules out."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pretended import PARENT, PROBLEM, Pretended, judgement

from kernelworks.records.judgement import Judgement
from kernelworks.search.parameters import Parameters
from kernelworks.search.proposer import Draft, Setting, StoredCandidate, UnfitProposer
from kernelworks.search.space import space_in

WIDE = PARENT.replace("[8, 16, 32, 64, 128]", str([2**i for i in range(1, 17)])).replace(
    "[1, 2, 4, 8]", str(list(range(1, 25)))
)


def bowl(source: str) -> Judgement:
    space = space_in(source)
    assert space is not None
    off = [list(values).index(space.at[name]) for name, values in space.choices.items()]
    return judgement(ratio=10.0 / (1 + (off[0] - 11) ** 2 + (off[1] - 15) ** 2 / 4))


def run(
    proposer: Parameters,
    texts: Sequence[str],
    count: int,
    finds: Callable[[str], Judgement],
    seen: list[StoredCandidate],
) -> list[StoredCandidate]:
    """Judges ``count`` of its drafts, after texts that somebody else has written."""
    for text in texts:
        seen.append(StoredCandidate(f"given {len(seen)}", len(seen) + 1, Draft(text, "torch", "given"), finds(text)))
    while count > 0:
        drafts = proposer.propose(PROBLEM, seen, 4)
        if not drafts:
            break
        for draft in drafts:
            one = StoredCandidate(f"{len(seen)}", len(seen) + 1, draft, finds(draft.code))
            seen.append(one)
            proposer.observe_verdict(one)
            count -= 1
    return seen


def made(seed: int = 0, **more: Any) -> Parameters:
    return Parameters(Setting(PROBLEM, "eager", 2, seed, **more))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_the_bottom_in_a_part_of_the_space(seed: int) -> None:
    seen = run(made(seed=seed), [WIDE], 40, bowl, [])  # of 384 points
    assert max(s.ratio() or 0.0 for s in seen) == 10.0
    codes = [s.draft.code for s in seen]
    assert len(set(codes)) == len(codes)


def test_a_small_space_is_tried_whole_and_once() -> None:
    proposer = made()
    seen = run(proposer, [PARENT], 100, Pretended.finds, [])
    assert len(seen) == 20 and len({s.draft.code for s in seen}) == 20
    assert proposer.remark == "every point was tried"
    assert max(seen, key=lambda s: s.ratio() or 0.0).draft.detail["point"] == {"TILE": 32, "UNROLL": 4}


def test_a_draft_says_where_it_is_from() -> None:
    (draft,) = made().propose(PROBLEM, [StoredCandidate("id", 1, Draft(PARENT, "c++", "given"), judgement())], 1)
    assert draft.parents == ("id",) and draft.language == "c++" and draft.proposer == "parameters"
    space = space_in(draft.code)
    assert space is not None and space.at == draft.detail["point"]
    assert " -> " in draft.note


def test_another_one_knows_what_the_first_one_knew() -> None:
    seen = run(made(), [WIDE], 12, bowl, [])
    first, best = len(seen), max(seen, key=lambda s: s.ratio() or 0.0)
    run(made(seed=1), [], 20, bowl, seen)
    codes = [s.draft.code for s in seen]
    assert len(set(codes)) == len(codes) > first
    assert seen[first].draft.parents == (best.id,)
    assert max(s.ratio() or 0.0 for s in seen[first:]) > (best.ratio() or 0.0)


def test_what_is_wrong_is_avoided() -> None:
    def finds(source: str) -> Judgement:
        space = space_in(source)
        assert space is not None
        off = list(space.choices["TILE"]).index(space.at["TILE"]) - 11
        return judgement("refused") if int(space.at["UNROLL"]) > 12 else judgement(ratio=10.0 / (1 + off * off))

    seen = run(made(), [WIDE], 60, finds, [])
    right = [s.right for s in seen[-30:]]
    assert sum(right) > 20  # half of the space is wrong


def test_without_a_space_there_is_nothing() -> None:
    proposer = made()
    assert proposer.propose(PROBLEM, [StoredCandidate("id", 1, Draft("x = 1", "torch", "given"), judgement())], 4) == []
    assert proposer.remark == "no candidate declares a SPACE"
    broken = Draft("SPACE = 3", "torch", "given")
    assert (
        proposer.propose(
            PROBLEM, [StoredCandidate("id", 1, Draft("", "torch", "a")), StoredCandidate("b", 2, broken)], 4
        )
        == []
    )
    assert "a dictionary of lists" in proposer.remark


def test_nothing_is_looked_for_at_the_roof() -> None:
    proposer = made(least_s=lambda threads: 0.98e-3 / 4)
    seen = run(proposer, [PARENT], 100, lambda source: judgement(ratio=4.0), [])
    assert len(seen) == 1 and "of the least time" in proposer.remark


def test_a_least_time_that_is_more_than_a_call_took_ends_nothing() -> None:
    proposer = made(least_s=lambda threads: 1.2e-3 / 4)  # measured while others used the machine
    assert len(run(proposer, [PARENT], 100, lambda source: judgement(ratio=4.0), [])) == 20
    text = PARENT.replace("UNROLL", "THREADS").replace("THREADS = 1", "THREADS = 2").replace("[1, 2, 4, 8]", "[1, 2]")
    seen = run(made(least_s=lambda threads: 1.2e-3), [text], 100, lambda source: judgement(ratio=2.0), [])
    assert {s.draft.detail["point"]["THREADS"] for s in seen[1:]} == {1, 2}


def test_so_few_threads_that_the_least_time_is_too_long_are_left_out() -> None:
    text = PARENT.replace("UNROLL", "THREADS").replace("THREADS = 1", "THREADS = 2").replace("[1, 2, 4, 8]", "[1, 2]")
    least = {1: 0.9e-3, 2: 0.1e-3}
    seen = run(made(least_s=least.__getitem__), [text], 100, lambda source: judgement(ratio=2.0), [])
    assert {s.draft.detail["point"]["THREADS"] for s in seen[1:]} == {2}
    seen = run(made(), [text], 100, lambda source: judgement(ratio=2.0), [])
    assert {s.draft.detail["point"]["THREADS"] for s in seen[1:]} == {1, 2}


def test_without_optuna_it_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refused(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refused)
    with pytest.raises(UnfitProposer, match=r"kernelworks\[search\]"):
        made()
