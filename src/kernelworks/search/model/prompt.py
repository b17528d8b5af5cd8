"""What a model is asked: the templates in ``prompts/``, filled with a problem, a candidate and what the judge said."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import inspect
import string
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from kernelworks.judge.formats import definition, kernelbench, kernelbook, op_packages, robust_kbench
from kernelworks.judge.problem import Problem
from kernelworks.machine import gpu, has_gpu, machine
from kernelworks.search.feedback import feedback, shorten_text
from kernelworks.search.model.ask import Message
from kernelworks.search.model.replies import fence_code
from kernelworks.search.proposer import StoredCandidate

__all__ = ["LANGUAGES", "conversation", "feedback_message", "requested_language", "retry_message", "system", "template"]

# What a candidate may be asked to be written in -> the template that says how.
LANGUAGES = {"c++": "in_cpp", "triton": "in_triton", "cuda": "in_cuda", "torch": "in_torch"}

MOST_PROBLEM, MOST_PARENT = 60_000, 60_000  # characters
MOST_CASES = 12

MODULE = "The file has a class {answer}, made with the arguments that {entry} is made with and called with its inputs."
FUNCTION = "The file has a function {answer}, called with the inputs in their order."
ANSWER_RULES = {
    kernelbench.NAME: MODULE, kernelbook.NAME: MODULE, robust_kbench.NAME: FUNCTION, op_packages.NAME: FUNCTION,
    definition.NAME: FUNCTION, definition.SOL: FUNCTION,
}  # fmt: skip


@functools.cache
def template(name: str) -> string.Template:
    """A template of the package's, by the name of its file without its ending."""
    folder = importlib.resources.files("kernelworks.search.model") / "prompts"
    return string.Template((folder / f"{name}.md").read_text(encoding="utf-8").strip())


def _answer(problem: Problem) -> str:
    """The name that a candidate's file must have."""
    if problem.format in (kernelbench.NAME, kernelbook.NAME):
        return kernelbench.ANSWER
    return problem.entry


def system(problem: Problem, most: int) -> Message:
    """The rules, the same for every prompt of a problem."""
    answer_rule = ANSWER_RULES.get(problem.format, FUNCTION).format(answer=_answer(problem), entry=problem.entry)
    return {"role": "system", "content": template("system").substitute(most=most, answer_rule=answer_rule)}


def _described(problem: Problem) -> str:
    """The problem's own text; of an op of ours its contract."""
    if not problem.files:
        return _contract(problem.entry)
    tongues = {"py": "python", "json": "json", "jsonl": "json"}
    parts = [
        f"{name}:\n\n{fence_code(text, tongues.get(name.rpartition('.')[2], ''))}"
        for name, text in problem.files.items()
    ]
    others = [shape.name for shape in problem.shapes[1:]]
    if others:
        parts.append(f"It is also tried at: {', '.join(others[:MOST_CASES])}.")
    return shorten_text("\n\n".join(parts), MOST_PROBLEM)


@functools.cache
def _contract(name: str) -> str:
    from kernelworks.dispatch.op import OPS

    op = OPS[name]
    contract = op.contract
    kinds = ", ".join(str(d).removeprefix("torch.") for d in contract.dtypes)
    cases = [case.name for case in (*contract.bench_cases, *contract.cases)]
    lines = [
        f"The op {contract.name}: {contract.formula}",
        f"Source: {contract.source}",
        f"Called with {', '.join(op.passes['forward'].names)}, by position (there is no out and no kernel); it returns "
        f"{', '.join(contract.outputs)}.",
        f"Dtypes: {kinds}; gradients of: {', '.join(contract.differentiable) or 'none'}.",
        f"It is tried at {len(cases)} cases, first: {'; '.join(cases[:MOST_CASES])}.",
        "What its own function promises:",
        inspect.getdoc(getattr(importlib.import_module(f"kernelworks.ops.{contract.family}.{name}"), name)) or "",
        *_defined(contract.reference),
    ]
    return "\n\n".join(lines)


def _defined(reference: Callable[..., Any]) -> list[str]:
    """The definition's text, where it has one of its own: a template's is what its op package gave the template."""
    op_template = getattr(reference, "__self__", None)
    for given in (getattr(op_template, "reference", None), getattr(op_template, "function", None), reference):
        if inspect.isbuiltin(given):
            return [f"It is defined by torch's own function {given.__name__}, in float64."]
        if inspect.isfunction(given):
            return ["The definition, which is run in float64:", fence_code(textwrap.dedent(inspect.getsource(given)))]
    return []


@functools.cache
def _here(device: str) -> str:
    if device != "cpu" and has_gpu():
        return f"{gpu().name}."
    here = machine()
    return f"{here.name}, {here.cores} cores; instruction sets: {', '.join(sorted(here.features))}."


def _count(most: int) -> str:
    return "a candidate" if most == 1 else f"one candidate, or up to {most} that differ in their ideas"


def requested_language(problem: Problem, language: str, parent: StoredCandidate | None) -> str:
    """The language that is asked for: what the user said, else the parent's, else what fits the device."""
    if language:
        return language
    if parent is not None and parent.draft.language in LANGUAGES and parent.draft.language != "torch":
        return parent.draft.language
    return "c++" if problem.device == "cpu" else "triton"


def conversation(
    problem: Problem,
    parent: StoredCandidate | None,
    most: int,
    *,
    language: str = "",
    tried: Sequence[str] = (),
    machine: str = "",
) -> list[Message]:  # fmt: skip
    """What is asked: to begin, to better what is right, or to mend what was refused. ``tried`` are lines on others,
    ``machine`` is another one's name in place of this one."""
    told = parent.judgement if parent is not None else None
    values = {
        "problem": _described(problem),
        "machine": machine or _here(problem.device),
        "language": template(LANGUAGES[requested_language(problem, language, parent)]).substitute(),
        "count": _count(most),
        "tried": "Tried before:\n" + "".join(f"- {line}\n" for line in tried) + "\n" if tried else "",
    }
    name = "first"
    if parent is not None:
        name = "refine" if parent.right or told is None else "repair"
        values |= {
            "parent": fence_code(shorten_text(parent.draft.code, MOST_PARENT)),
            "note": f"Its hypothesis: {parent.draft.note}\n\n" if parent.draft.note else "",
            "feedback": feedback(told) if told is not None else "It was not judged.",
        }
    return [system(problem, most), {"role": "user", "content": template(name).substitute(values)}]


def retry_message(why: Sequence[str], most: int) -> Message:
    """What is said to a reply without a candidate."""
    text = template("again").substitute(why="\n".join(f"- {line}" for line in why), count=_count(most))
    return {"role": "user", "content": text}


def feedback_message(told: str) -> Message:
    """What a conversation goes on with after a candidate was judged."""
    return {"role": "user", "content": template("go_on").substitute(feedback=told)}
