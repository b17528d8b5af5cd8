"""A learner's CUDA source checked without a GPU: emulated under many orders of threads, compared with float64, and its
requests of memory counted.

| key of ``[limits]`` in ``exercise.toml`` | the most that is allowed |
|---|---|
| sectors | sectors of 32 bytes that a line's requests touch, beside those that its bytes fill |
| passes | passes that a line's requests of shared memory take, beside those that its bytes take |
| lanes | the least number of a warp's 32 threads that take part in a line's requests of global memory |
| global_loads, loads, global_atomics | loads from global memory, loads of all kinds, atomics there: for each ``what`` |
| per, what | the arguments whose product counts what a kernel does, and the word for it |

They are held against the case with the most requests; this one against each case:

| launch | blocks and threads of a block: the host launches once, and so |
|---|---|
| spare_blocks, elements | the most blocks beyond those that the elements fill, the arguments whose product they are |
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelworks.build.cache import BuildError
from kernelworks.learn.case import Array, Case, Output, Reference, State, exact_arguments, load_reference
from kernelworks.learn.compiling import GRAMMAR, GUESS, MESSAGE, MOST_MESSAGES, CompilerMessage, NotCompiled
from kernelworks.learn.cuda_words import cuda_in_plain_words
from kernelworks.learn.emulator import (
    Argument,
    Emulation,
    Launch,
    NotTranslated,
    Role,
    Traffic,
    build_sources,
    fault_sentence,
    ordered_faults,
    run_library,
    thread_orders,
)
from kernelworks.learn.emulator.request import EmulatorError, OrderOutput
from kernelworks.learn.exercise import Exercise, Parameter
from kernelworks.learn.faults import Observation, Verdict, judge
from kernelworks.learn.unset_locals import has_unset_local, with_unset_local

__all__ = ["UNTIMED_REASON", "CudaCheck", "check_cuda_texts"]

THREAD_ORDERS, FEWER_ORDERS = 64, 16  # of the first case, and of the others
CPU_SECONDS = 3  # of one order: a right one takes 0.05 s
UNTIMED_REASON = "a time needs a GPU: your kernel ran in an emulator, under 64 orders of its threads"
TYPES = {"int": np.int32, "long": np.int64, "unsigned": np.uint32, "float": np.float32, "double": np.float64}
WHOLE_INDEX = re.compile(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b(?!\s*\.)")
INTERNAL = re.compile(r"\bkw(_|::)")  # a name of the emulator's, which no learner has written
VERBS = {1: "reads", 2: "writes", 3: "updates"}


@dataclass(frozen=True)
class CudaCheck:
    """``printed``: the case that the verdict names, or the first one, and what its first order of threads prints."""

    verdict: Verdict
    printed: str = ""


def _type(parameter: Parameter) -> str:
    return f"{'const ' if parameter.is_const else ''}{parameter.type}{'*' if parameter.is_pointer else ''}"


def _argument(parameter: Parameter, value: Any) -> Argument:
    if isinstance(value, Output):
        return Argument(parameter.name, Role.OUTPUT, np.zeros(value.shape, value.dtype))
    if isinstance(value, State):
        return Argument(parameter.name, Role.IN_OUT, value.array)
    if isinstance(value, np.ndarray):
        return Argument(parameter.name, Role.INPUT, value)
    return Argument(parameter.name, Role.SCALAR, np.array([value], TYPES[parameter.type]))


# ---------------------------------------------------------------- what the compiler refuses


def _component_advice(message: str, line: str) -> str:
    """What to add to the compiler's words where it complains of a whole ``blockIdx``."""
    whole = WHOLE_INDEX.search(line)
    if whole is None or not re.search(r"\b(uint3|dim3)\b", message):
        return ""
    return f": `.x` is missing: {whole[1]}.x"


def _own_line(words: str, match: re.Match[str], name: str) -> int:
    """The line of the source that a message is about. It may be in what a word of CUDA stands for: then the compiler
    names the source before it (an instantiation) or behind it (a macro). 0 where it does not."""
    if Path(match["file"]).name == name:
        return int(match["line"])
    here = rf"{re.escape(name)}:(\d+):\d+:\s+"
    following = MESSAGE.search(words, match.end())
    macro = re.search(
        rf"{here}note: in expansion of macro", words[match.end() : following.start() if following else None]
    )
    before = list(re.finditer(rf"{here}required from here|: error: ", words[: match.start()]))
    instance = before[-1] if before else None
    return int((macro or instance or {1: None})[1] or 0)


def _not_compiled(error: BuildError, text: str, name: str) -> NotCompiled | None:
    """The compiler's words by line; None where not the source is at fault."""
    if name not in str(error):
        return None
    code, found = text.splitlines(), dict[int, CompilerMessage]()
    for match in MESSAGE.finditer(str(error)):
        number = _own_line(str(error), match, name)
        line = code[number - 1].strip() if 0 < number <= len(code) else ""
        number = number if line else 0
        said = match["text"] + _component_advice(match["text"], line)
        plain = cuda_in_plain_words(said, line, text, number) if said == match["text"] else ""
        said = GUESS.sub("", said) if plain or INTERNAL.search(said) else said
        if number not in found or (plain and not found[number].plain):  # one of each line
            found[number] = CompilerMessage(number, said, line, plain)
        if GRAMMAR.match(said):
            break
    messages = [m for m in found.values() if m.line] or list(found.values())
    return NotCompiled(messages[:MOST_MESSAGES] or [CompilerMessage(0, "no reason")])


# ---------------------------------------------------------------- what the emulator saw


def _unwritten(output: OrderOutput) -> Array:
    """The elements that no thread has written: they hold the pattern that memory held before."""
    mask = np.zeros(output.values.size, bool)
    if output.missing:
        span = slice(output.first, output.last + 1)
        raw = np.ascontiguousarray(output.values).reshape(-1)[span].view(np.uint8).reshape(-1, output.values.itemsize)
        untouched = (raw == 0xFF).all(axis=1)
        mask[span] = untouched if untouched.sum() >= output.missing else True
    return mask.reshape(output.values.shape)


def _observations(cases: Sequence[Case], reference: Reference, seen: Emulation) -> list[tuple[Observation, int]]:
    """One for each case and each different output, with the order of threads that gave it first."""
    found = []
    for number, case in enumerate(cases):
        exact = exact_arguments(case)
        expected, bound = reference.reference(**exact), reference.bound(**exact)
        mine = [output for output in seen.outputs if output.case == number]
        for order in sorted({output.order for output in mine}):
            observation = Observation(case, expected, bound)
            for output in mine:
                if output.order == order:
                    observation.outputs[output.array] = output.values
                    observation.unwritten[output.array] = _unwritten(output)
            found.append((observation, order))
    return found


def _by_case(cases: Sequence[Case], reference: Reference, seen: Sequence[Observation]) -> Verdict:
    """What all observations come to: a case whose orders differ has several, and counts once."""
    verdict = judge(seen, reference)
    if len(seen) == len(cases):
        return verdict
    wrong = [case for case in cases if not judge([one for one in seen if one.case is case], reference).right]
    return dataclasses.replace(verdict, cases=len(cases), failures=len(wrong))


def _judged(cases: Sequence[Case], reference: Reference, seen: Emulation, text: str) -> Verdict:
    orders = thread_orders(THREAD_ORDERS)
    faults = ordered_faults(seen.faults)
    if faults:
        first = faults[0]
        detail = f"with {cases[first.case].about}, when {orders[first.order].text}"
        at_barrier = first.kind in ("missing_thread", "two_barriers")  # where some wait, not where others are
        line = (first.first.line if at_barrier else first.second.line) or first.first.line
        return Verdict(False, fault_sentence(first, text), detail, line=line)
    pairs = _observations(cases, reference, seen)
    verdict = _by_case(cases, reference, [observation for observation, _ in pairs])
    if verdict.right:
        return verdict
    of_first = [observation for observation, order in pairs if order == 0]
    if judge(of_first, reference).right:
        order = next(order for observation, order in pairs if observation.is_wrong)
        detail = f"{verdict.detail}, when {orders[order].text}; right when {orders[0].text}"
        return Verdict(False, verdict.sentence, detail, cases=verdict.cases, failures=verdict.failures)
    return verdict


# ---------------------------------------------------------------- what it asked of memory


def _busiest(traffic: Sequence[Traffic]) -> tuple[int, list[Traffic]]:
    """The case with the most requests, and these."""
    counts: dict[int, int] = {}
    for one in traffic:
        counts[one.case] = counts.get(one.case, 0) + one.requests
    case = max(counts, key=lambda c: counts[c])
    return case, [one for one in traffic if one.case == case]


def _line_sentence(one: Traffic, limits: Mapping[str, Any]) -> str:
    """What one line's requests do beyond a limit, or nothing."""
    does = f"line {one.line} {VERBS[one.access]} {one.array}"
    each, least = round(one.cost / one.requests), max(1, round(one.least / one.requests))
    if one.shared:
        if one.access != 3 and one.cost > limits.get("passes", np.inf) * one.least:
            return (
                f"{does} with bank conflicts: a request of a warp takes {each} passes where {least} would do, since "
                "several of its words lie in the same bank"
            )
        return ""
    if one.access != 3 and one.cost > limits.get("sectors", np.inf) * one.least:
        return (
            f"{does} far apart: the 32 threads of a warp touch {each} sectors of {one.array} where {least} would do. "
            "Neighbouring threads (threadIdx.x) should have neighbouring elements"
        )
    if one.access == 1 and one.accesses / one.requests < limits.get("lanes", 0):
        lanes = one.accesses / one.requests
        return f"{does} with {lanes:.3g} of the 32 threads of a warp at a time: the others wait"
    return ""


def _limit_sentence(case: Case, traffic: Sequence[Traffic], limits: Mapping[str, Any]) -> tuple[str, int]:
    """What a right kernel does beyond a limit of its exercise, and in which line; an empty sentence if nothing."""
    for one in traffic:
        said = _line_sentence(one, limits)
        if said:
            return said, one.line
    if "per" not in limits:
        return "", 0
    count, what = _count(case, limits["per"]), limits["what"]
    loads = [one for one in traffic if one.access == 1]
    counted = {
        "global_loads": ([one for one in loads if not one.shared], "loads from global memory"),
        "loads": (loads, "loads"),
        "global_atomics": (
            [one for one in traffic if one.access == 3 and not one.shared], "atomics in global memory"
        ),
    }  # fmt: skip
    for name, (counting, words) in counted.items():
        number = sum(one.accesses for one in counting)
        most = limits.get(name, np.inf)
        if number > most * count:
            share = f"{number / count:.3g}"
            words = words if share != "1" else words.replace("loads", "load").replace("atomics", "atomic")
            busiest = max(counting, key=lambda one: one.accesses)
            return (
                f"{share} {words} for each {what}, where {most:g} would do; most of them in line {busiest.line}",
                busiest.line,
            )
    return "", 0


def _launch_sentence(launches: Sequence[Launch], blocks: int, threads: int) -> tuple[str, Launch | None]:
    """What is said of a launch that an exercise wants to stay, and that launch; None if all are as they should be."""
    others = [one for one in launches if (one.grid, one.block) != ((blocks, 1, 1), (threads, 1, 1))]
    if others:
        one = max(others, key=lambda launch: int(np.prod(launch.grid)))
        given = f"<<<{_size(one.grid)}, {_size(one.block)}>>>"
        return f"the launch is {given}: here it stays <<<{blocks}, {threads}>>>, and the loop does the rest", one
    for case in {one.case for one in launches}:
        of_case = [one for one in launches if one.case == case]
        count = sum(one.count for one in of_case)
        if count > 1:
            return f"the kernel is launched {count} times: here once is enough, and its loop does the rest", of_case[0]
    return "", None


def _spare_sentence(
    cases: Sequence[Case], launches: Sequence[Launch], limits: Mapping[str, Any]
) -> tuple[str, Launch | None]:
    """What is said of a launch with far more threads than elements, and that launch; None if none has."""
    for one in launches:
        elements, threads = _count(cases[one.case], limits["elements"]), int(np.prod(one.block))
        blocks, enough = int(np.prod(one.grid)), -(-elements // threads)
        if blocks > enough + limits["spare_blocks"]:
            given = f"<<<{_size(one.grid)}, {_size(one.block)}>>>: {blocks} blocks of {threads} threads"
            said = f"the launch is {given} for {elements} elements, where {enough} would do"
            return f"{said}. Blocks come first, then the threads of one", one
    return "", None


def _count(case: Case, names: Sequence[str]) -> int:
    """The product of some arguments."""
    return int(np.prod([case.arguments[name] for name in names]))


def _size(size: tuple[int, int, int]) -> str:
    """A grid's or a block's size as a launch writes it."""
    return str(size[0]) if size[1:] == (1, 1) else f"dim3({size[0]}, {size[1]}, {size[2]})"


# ---------------------------------------------------------------- the check


def _limits(exercise: Exercise) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((exercise.folder / "exercise.toml").read_text(encoding="utf-8")).get(
        "limits", {}
    )
    return found


def _without_shared(exercise: Exercise, verdict: Verdict, text: str) -> Verdict:
    """The verdict, with what is added where threads wait for each other and no array is shared."""
    solution = exercise.solution_path.read_text(encoding="utf-8")
    if verdict.right or "__shared__" in text or "__syncthreads" not in text or "__shared__" not in solution:
        return verdict
    said = f"{verdict.sentence}. No array here is __shared__: without that word each thread has one of its own"
    return dataclasses.replace(verdict, sentence=said)


def _verdict(exercise: Exercise, cases: Sequence[Case], reference: Reference, seen: Emulation, text: str) -> Verdict:
    verdict = _judged(cases, reference, seen, text)
    if not verdict.right:
        return verdict
    limits = _limits(exercise)
    sentence, launch = "", None
    if "launch" in limits:
        sentence, launch = _launch_sentence(seen.launches, *limits["launch"])
    if "spare_blocks" in limits:
        sentence, launch = _spare_sentence(cases, seen.launches, limits)
    if launch:
        detail = f"the results are right; with {cases[launch.case].about}"
        return Verdict(False, sentence, detail, line=launch.line)
    number, traffic = _busiest(seen.traffic)
    sentence, line = _limit_sentence(cases[number], traffic, limits)
    if sentence:
        detail = f"the results are right; counted with {cases[number].about}"
        return Verdict(False, sentence, detail, line=line)
    return verdict


def _printed(cases: Sequence[Case], seen: Emulation, verdict: Verdict) -> str:
    """What the case that a verdict is about has printed, or the first one, behind a line with its name."""
    named = [number for number, case in enumerate(cases) if f"with {case.about}" in verdict.detail]
    number = max(named, key=lambda n: len(cases[n].about), default=0)  # n = 1000 has n = 1 in it
    text = seen.printed[number] if number < len(seen.printed) else ""
    return f"{cases[number].about}:\n{text}" if text else ""


def _differ(one: Emulation, other: Emulation) -> bool:
    """Whether the first order of some case leaves other outputs, bit for bit."""
    if other.faults:
        return True
    first = {(o.case, o.array): o.values.tobytes() for o in one.outputs if o.order == 0}
    return any(first.get((o.case, o.array)) != o.values.tobytes() for o in other.outputs)


def check_cuda_texts(exercise: Exercise, texts: Sequence[str], name: str) -> list[CudaCheck]:
    """The verdict on each of several CUDA sources, compiled together, and what each prints. ``name``: of the source,
    for messages.

    Cost of one source: some 0.3 s of the compiler, and up to 0.5 s of the emulator.
    Raises NotCompiled (the first source that the compiler or the emulator refuses), BuildError.
    """
    reference = load_reference(exercise.folder)
    cases = list(reference.cases())
    types = [_type(p) for p in exercise.parameters]
    try:
        library = build_sources(texts, name, exercise.function, types)
    except NotTranslated as refused:
        raise NotCompiled([CompilerMessage(refused.line, refused.text, refused.code)]) from None
    except BuildError as error:
        refused_by_compiler = _not_compiled(error, texts[0], name)
        if refused_by_compiler is None:
            raise
        raise refused_by_compiler from None
    arguments = [[_argument(p, case.arguments[p.name]) for p in exercise.parameters] for case in cases]
    orders = [thread_orders(THREAD_ORDERS if number == 0 else FEWER_ORDERS) for number in range(len(cases))]
    limits, ran = _limits(exercise), []
    for attempt in range(len(texts)):
        try:
            seen = None
            if "spare_blocks" in limits:  # thousands of blocks too many take a minute under all orders
                few = [of_case[:1] for of_case in orders]
                seen = run_library(library, attempt, name, arguments, few, CPU_SECONDS, stops=True)
            if seen is None or not _spare_sentence(cases, seen.launches, limits)[0]:
                seen = run_library(library, attempt, name, arguments, orders, CPU_SECONDS, stops=True)
        except EmulatorError as error:
            missing = re.search(r"undefined symbol: (\w+)", str(error))
            if missing is None:
                raise BuildError(str(error)) from error
            said = f"{re.sub(r'_0$', '', missing[1])} is called or asked for, and defined nowhere"
            raise NotCompiled([CompilerMessage(0, said)]) from None
        ran.append(seen)
    unset = [n for n, seen in enumerate(ran) if not seen.faults and has_unset_local(texts[n])]
    if unset:
        zeros = build_sources([texts[n] for n in unset], name, exercise.function, types, zeros=True)
        first = [of_case[:1] for of_case in orders]
        again = {n: run_library(zeros, at, name, arguments, first) for at, n in enumerate(unset)}
        unset = [n for n in unset if _differ(ran[n], again[n])]
    checks = []
    for number, (seen, text) in enumerate(zip(ran, texts, strict=True)):
        plain = _verdict(exercise, cases, reference, seen, text)
        verdict = _without_shared(exercise, plain, text)
        verdict = with_unset_local(text, plain) if number in unset and verdict is plain else verdict
        checks.append(CudaCheck(verdict, _printed(cases, seen, verdict)))
    return checks
