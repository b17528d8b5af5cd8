"""What is taken of a reply, and the word for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate import OTHER, PROBLEM, RIGHT
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelworks.judge.formats import read_problem
from kernelworks.judge.problem import Problem
from kernelworks.search.model.ask import Text
from kernelworks.search.model.replies import MOST_CODE, fence_code, parse_reply


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    path = tmp_path_factory.mktemp("problems") / "gate.py"
    path.write_text(PROBLEM, encoding="utf-8")
    return read_problem(path)


def codes(text: str, problem: Problem, ended: str = "stop", most: int = 9) -> list[str]:
    return [one.code for one in parse_reply(Text(text, ended), problem, most).found]


def test_blocks_are_taken_in_their_order_with_the_line_before_them(problem: Problem) -> None:
    text = f"Well.\n\n**Hypothesis:** fewer passes\n\n```python\n{RIGHT}```\n\nand\n~~~py title=x\n{OTHER}~~~\n"
    read = parse_reply(Text(text), problem, 9)
    assert [one.code for one in read.found] == [RIGHT, OTHER] and read.why == ()
    assert [one.note for one in read.found] == ["fewer passes", "and"]
    assert read.found[0].language == "torch"
    assert codes(text, problem, most=1) == [RIGHT]
    assert codes(text + text, problem) == [RIGHT, OTHER]  # each once


def test_a_language_is_what_the_text_says(problem: Problem) -> None:
    in_cpp = "from torch.utils.cpp_extension import load_inline\n" + RIGHT
    (found,) = parse_reply(Text(fence_code(in_cpp)), problem, 9).found
    assert found.language == "c++"


def test_a_reply_of_nothing_but_code_is_a_candidate(problem: Problem) -> None:
    assert codes(RIGHT, problem) == [RIGHT]


def test_what_is_no_candidate_is_left_and_the_rest_is_taken(problem: Problem) -> None:
    text = f"```bash\npip install x\n```\n```python\nprint('usage')\n```\n```python\nclass (\n```\n```\n{RIGHT}\n```"
    read = parse_reply(Text(text), problem, 9)
    assert [one.code.strip() for one in read.found] == [RIGHT.strip()]
    assert read.why[0].startswith("block 2 is no candidate: no class ModelNew; it has")
    assert read.why[1].startswith("block 3 is no candidate: ") and "not valid Python" in read.why[1]


def test_thoughts_are_no_answer(problem: Problem) -> None:
    assert codes(f"<think>perhaps\n```python\n{OTHER}```\n</think>\n```python\n{RIGHT}```", problem) == [RIGHT]
    assert parse_reply(Text(f"<think>on and on\n```python\n{OTHER}```"), problem, 9).why == (
        "it holds thoughts and no answer",
    )


def test_fences_within_the_code_do_not_end_it(problem: Problem) -> None:
    code = RIGHT.replace("class ModelNew", '"""Called so:\n```\nModelNew()(a, b)\n```\n"""\n\n\nclass ModelNew')
    assert codes(f"```python\n{code}```\n", problem) == [code]
    assert codes(fence_code(code), problem) == [code]


@pytest.mark.parametrize(
    ("text", "ended", "word"),
    [
        ("", "stop", "it is empty"),
        (" \n", "", "it is empty"),
        ("I'm sorry, but I can't help with that.", "stop", "it refuses: I'm sorry"),
        ("No.", "refusal", "it refuses: No."),
        ("A kernel should be quick.", "stop", "it holds no block of code: A kernel"),
        (f"```python\n{RIGHT}", "length", "cut short"),
        ("```python\nclass ModelNew:\n    def forward(self", "length", "not valid Python"),
        ("```python\n```", "stop", "it is empty"),
        (f"```python\n{RIGHT}{'#' * MOST_CODE}\n```", "stop", f"at most {MOST_CODE} are taken"),
        ("```python\nx = 1\0\n```", "stop", "block 1 is no candidate"),
        (f"```python\nx = {'(' * 5000}\n```", "stop", "block 1 is no candidate"),
        (f"```python\nx = {'-' * 50000}1\n```", "stop", "block 1 is no candidate"),
        (f"```python\nx = 1{'+1' * 50000}\n```", "stop", "block 1 is no candidate"),
    ],
)
def test_the_word_for_what_holds_no_candidate(text: str, ended: str, word: str, problem: Problem) -> None:
    read = parse_reply(Text(text, ended), problem, 9)
    assert read.found == () and len(read.why) == 1 and word in read.why[0]


def test_a_last_fence_that_is_left_out_is_forgiven_where_the_reply_is_whole(problem: Problem) -> None:
    assert codes(f"```python\n{RIGHT}", problem, "stop") == [RIGHT]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("`~ \n#'\"abc()"), max_size=200), st.booleans())
def test_no_reply_breaks_the_parser_and_code_comes_back_as_it_was(noise: str, cut: bool) -> None:
    it = Problem("gate", "kernelbench", {"problem.py": PROBLEM}, "kernelworks.judge.formats.kernelbench", "Model", ())
    parse_reply(Text(noise, "length" if cut else ""), it, 3)
    code = RIGHT + f"\n\nNOISE = {noise!r}\n" + "\n".join(f"# {line}" for line in noise.splitlines()) + "\n"
    assert codes(f"Hypothesis: it is\n\n{fence_code(code)}\n", it) == [code]


def test_ops_and_functions_have_their_own_names(tmp_path: Path) -> None:
    op = read_problem("relu")
    assert codes(fence_code("def relu(x):\n    return x.clamp(min=0)\n"), op)
    assert "no function relu" in parse_reply(Text(fence_code(RIGHT)), op, 9).why[0]
