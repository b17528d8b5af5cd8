"""From what a function did to the words that a learner can use: which elements, in which case, and what that means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelworks.learn.case import Array, Case, Reference, State, exact_arguments

__all__ = ["Observation", "Verdict", "crash_sentence", "describe_elements", "judge", "with_verb"]

CLOSE, NEAR = 3e-4, 64  # of an element's size, or times the bound: an error below is one of rounding
MATCH = 1e-4  # of an element's size: so near to what a known mistake gives, it is that mistake
TRAPS, ABORT = (4, 5), 6  # SIGILL, SIGTRAP; SIGABRT
TYPE_NAMES = {"signed char": "int8_t", "unsigned char": "uint8_t", "short int": "int16_t", "long int": "long"}
TYPE_BITS = {"int8_t": 8, "int16_t": 16, "int": 32}
STACK_BYTES = 1 << 20  # round the top of the stack: what is touched there was to be on it
GENERAL_PROTECTION = 128  # the code of a fault that has no address, such as of an aligned load elsewhere
MOST_APART = 32  # elements: what is wrong at such a distance is told by it
ORDINALS = {2: "second", 3: "third"}
MANY, HALF_NEAR = 8, 2.0**-8  # elements; of the largest one: what a few roundings to float16 are off by
HANG, DIVIDED = 26, 8  # SIGVTALRM, SIGFPE


@dataclass
class Observation:
    """What one case showed. Masks are by the output's name, and have its shape."""

    case: Case
    expected: Mapping[str, Array]
    bound: Mapping[str, Array]
    outputs: dict[str, Array] = field(default_factory=dict)
    unwritten: dict[str, Array] = field(default_factory=dict)
    stale: dict[str, Array] = field(default_factory=dict)  # depends on what the output held before
    unsteady: dict[str, Array] = field(default_factory=dict)  # two equal calls differ
    changed_inputs: list[str] = field(default_factory=list)
    written_gaps: list[str] = field(default_factory=list)
    read_gaps: dict[str, Array] = field(default_factory=dict)  # depends on what lies between rows
    overlap: str = ""  # two slices write the same element
    undefined: str = ""  # what depends on lanes that a mask switches off

    def wrong(self, name: str) -> Array:
        """The elements of an output that are not within the bound. NaN and infinities must be where they are due."""
        got, want = self.outputs[name].astype(np.float64), np.asarray(self.expected[name], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(got - want) <= np.asarray(self.bound[name], dtype=np.float64)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        return np.asarray(~(near & np.isfinite(want) | same))

    def worst(self, name: str) -> float:
        """The largest error of an output as a share of the bound."""
        got, want = self.outputs[name].astype(np.float64), np.asarray(self.expected[name], dtype=np.float64)
        most = np.broadcast_to(np.asarray(self.bound[name], dtype=np.float64), want.shape)
        usual = np.isfinite(want) & (most > 0)
        with np.errstate(invalid="ignore"):
            shares = np.abs(got - want)[usual] / most[usual]
        return float(shares.max()) if shares.size and not np.isnan(shares).any() else 0.0

    def is_partly_wrong(self) -> bool:
        """Whether some elements are right, in a case of ordinary numbers: which ones are not says more then."""
        masks = [self.wrong(name) | self.unwritten.get(name, False) for name in self.outputs]
        usual = all(np.isfinite(expected).all() for expected in self.expected.values())
        return usual and any(mask.any() and not mask.all() for mask in masks)

    @property
    def is_wrong(self) -> bool:
        return any(self.wrong(name).any() for name in self.outputs)


@dataclass(frozen=True)
class Verdict:
    """``right``, or a ``sentence`` that says what is wrong; ``detail`` names one element and the case."""

    right: bool
    sentence: str = ""
    detail: str = ""
    line: int = 0  # of the learner's file, where it is known
    cases: int = 0
    failures: int = 0
    worst: float = 0.0  # the largest error as a share of the allowed one
    case: str = ""  # the case that ``detail`` is about


# ---------------------------------------------------------------- which elements


def element(name: str, place: Sequence[int]) -> str:
    """``y[3]``, ``c[2, 5]``."""
    return f"{name}[{', '.join(str(int(i)) for i in place)}]" if len(place) else name


def _many(count: int, what: str) -> str:
    return f"the {what} element" if count == 1 else f"the {what} {count} elements"


def with_verb(elements: str, one: str, many: str, rest: str) -> str:
    """A sentence about elements in words, with the verb that they need."""
    return f"{elements} {many if re.match(r'(the (last|first) )?[0-9]', elements) else one} {rest}"


def describe_elements(name: str, mask: Array) -> str:
    """Elements in words: ``the last 3 elements of each row of y``."""
    if mask.all():
        return f"all of {name}" if mask.size > 1 else name
    if mask.ndim == 1 or mask.shape[0] == mask.size:
        where = np.flatnonzero(mask)
        if where.size == 1 and where[0] not in (0, mask.size - 1):
            return element(name, np.argwhere(mask)[0])
        if where[0] == mask.size - where.size:
            return f"{_many(where.size, 'last')} of {name}"
        if where[-1] == where.size - 1:
            return f"{_many(where.size, 'first')} of {name}"
        step = int(where[1] - where[0])
        if (
            where.size > 2
            and 1 < step <= MOST_APART
            and (np.diff(where) == step).all()
            and where[0] < step
            and where[-1] + step >= mask.size
        ):
            return (
                f"every {ORDINALS.get(step, f'{step}th')} element of {name}, from {element(name, [int(where[0])])} on,"
            )
        return f"{where.size} of {mask.size} elements of {name}"
    rows = mask.reshape(-1, mask.shape[-1])
    touched = np.flatnonzero(rows.any(axis=1))
    if (rows == rows[0]).all():
        return describe_elements(f"each row of {name}", rows[0])
    if rows[touched].all():
        if touched.size == 1:
            return f"row {touched[0]} of {name}"
        if touched[0] == len(rows) - touched.size:
            return f"the last {touched.size} rows of {name}"
        return f"{touched.size} of {len(rows)} rows of {name}"
    if (rows[touched] == rows[touched[0]]).all() and touched.size > 1:
        return f"{describe_elements(f'{touched.size} rows of {name}', rows[touched[0]])}"
    if mask.sum() == 1:
        return element(name, np.argwhere(mask)[0])
    return f"{int(mask.sum())} of {mask.size} elements of {name}"


# ---------------------------------------------------------------- a process that ended


def crash_sentence(signal: Mapping[str, Any], buffers: Sequence[Mapping[str, Any]], code: str = "") -> str:
    """Why a call ended its process: ``reads 1 element beyond the end of x``. ``code`` is the line, if it is known."""
    number, address = int(signal["signal"]), int(signal["address"])
    if number == HANG:
        return "does not come back: a loop whose end is never reached"
    if "fault" in signal:
        return _undefined_sentence(signal, code)
    if number == ABORT:
        return (
            "ends itself: an index outside a std::vector, whose length stands in ( ) where it is made, or another rule "
            "of C++'s library that is not kept"
        )
    if signal.get("unknown"):
        return (
            "uses an instruction that this processor does not have: ask by __builtin_cpu_supports before you call "
            "what was compiled for others"
        )
    if number in TRAPS:
        return (
            "leaves what C++ defines: an index outside a local array or a std::vector, a division of an integer by 0, "
            "an integer that overflows, or a number that does not fit the type that it is converted to"
        )
    if number == DIVIDED:
        return "divides an integer by 0"
    verb = {0: "reads", 1: "writes"}.get(int(signal["writes"]), "reads or writes")
    found = _nearest(address, buffers)
    if found is None:
        if abs(address - int(signal.get("stack", 0))) < STACK_BYTES:
            return "uses up the stack: a function that calls itself for ever, or a local array that is too large"
        if address < 1 << 16 and signal.get("code") != GENERAL_PROTECTION:
            return f"{verb} through a pointer that points nowhere"
        if address == 0:
            return "uses an aligned load or store at an address that is not aligned, or an address that cannot be"
        return f"{verb} far outside of every array"
    buffer, distance = found
    if distance < 0:
        count = -(distance // buffer["size"])
        return f"{verb} {count} element{'s' if count > 1 else ''} before the beginning of {buffer['name']}"
    count = distance // buffer["size"] + 1
    return f"{verb} {count} element{'s' if count > 1 else ''} beyond the end of {buffer['name']}{_extent(buffer)}"


def _extent(buffer: Mapping[str, Any]) -> str:
    """How large an array is, behind its name."""
    name, shape = buffer["name"], list(buffer.get("shape", ()))
    if not shape or 0 in shape:
        return ", which has none" if shape else ""
    if shape == [1]:
        return f", which has one: {name}[0]"
    if len(shape) == 1:
        return f", which has {shape[0]}: the last is {name}[{shape[0] - 1}]"
    return f", which is {' x '.join(map(str, shape))}"


def _undefined_sentence(signal: Mapping[str, Any], code: str) -> str:
    """What of undefined behaviour the compiler's own checks saw."""
    kind, value, of_type = signal["fault"], int(signal["value"]), str(signal["type"])
    if kind == "index":
        length = re.search(r"\[(\d+)\]", of_type)
        name = _indexed(code, int(signal["column"]))
        array = name or f"an array of {of_type}"
        return f"uses index {value} of {array}" + (f", which has {length[1]} elements" if length else "")
    if kind == "division":
        return "divides an integer by 0"
    if kind == "shift":
        return f"shifts by {value} bits, which {of_type} does not have"
    if kind == "conversion":
        return _conversion_sentence(str(signal.get("number", "")), TYPE_NAMES.get(of_type, of_type))
    return f"lets an integer of type {of_type} overflow: make it long"


def _conversion_sentence(number: str, of_type: str) -> str:
    """What a type cannot hold. ``number`` is the value in digits, or nothing if it is unknown."""
    if not number:
        return f"converts a number to {of_type} that does not fit it: NaN, infinite or too large"
    if "nan" in number:
        return f"converts NaN to {of_type}: 0 was divided by 0, or a NaN was in the input"
    if "inf" in number:
        return f"converts an infinite number to {of_type}: something was divided by 0, or grew too large"
    most = 2 ** (TYPE_BITS[of_type] - 1) if of_type in TYPE_BITS else 0
    return f"converts {number} to {of_type}, which " + (f"holds {-most} to {most - 1}" if most else "cannot hold it")


def _indexed(code: str, column: int) -> str:
    """The name before the index that ends at a column of a line."""
    depth = 0
    for at in range(min(column, len(code)) - 1, -1, -1):
        depth += {"]": 1, "[": -1}.get(code[at], 0)
        if code[at] == "[" and depth <= 0:
            name = re.search(r"(\w+)\s*$", code[:at])
            return name[1] if name else ""
    return ""


def _nearest(address: int, buffers: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], int] | None:
    """The array whose guard pages hold an address, and how far from its beginning (below 0) or its end."""
    for buffer in buffers:
        guard = 16 * 4096
        if buffer["first"] - guard <= address < buffer["first"]:
            return buffer, address - buffer["address"]
        end = buffer["first"] + buffer["pages"] * 4096
        if end <= address < end + guard:
            return buffer, address - buffer["address"] - buffer["nbytes"]
    return None


# ---------------------------------------------------------------- what was done, whatever the numbers


def _deeds(seen: Observation) -> str:
    """What a function did that no right one does, in one case."""
    if seen.changed_inputs:
        return f"changes its input {seen.changed_inputs[0]}"
    if seen.written_gaps:
        return f"writes between the rows of {seen.written_gaps[0]}: those elements belong to somebody else"
    if seen.overlap:
        return seen.overlap
    for name, mask in seen.unwritten.items():
        if mask.any():
            if mask.all() and mask.size > 1:
                return f"nothing of {name} is written"
            rows = f": row i of {name} begins at i * ld{name}" if f"ld{name}" in seen.case.arguments else ""
            return with_verb(describe_elements(name, mask), "is", "are", f"never written{rows}")
    if seen.undefined:
        return seen.undefined
    for name, mask in seen.unsteady.items():
        if mask.any():
            return (
                f"two calls with the same inputs differ in {describe_elements(name, mask)}: something is kept between "
                "calls, or read before it is set"
            )
    for name, mask in seen.stale.items():
        if mask.any():
            said = describe_elements(name, mask)
            rest = f"on what {name} held before the call: set it first, or write it by = and not by +="
            return with_verb(said, "depends", "depend", rest)
    for name, mask in seen.read_gaps.items():
        if mask.any():
            said = f"on what lies between the rows of a matrix: rows begin {_row_strides(seen.case)} elements apart"
            return with_verb(describe_elements(name, mask), "depends", "depend", f"{said}, which may be more than n")
    return ""


def _row_strides(case: Case) -> str:
    """The parameters that say how far apart the rows of the matrices with gaps lie."""
    gaps = [name for name, value in case.arguments.items() if getattr(value, "gap", 0)]
    return " or ".join(f"ld{name}" for name in gaps if f"ld{name}" in case.arguments) or "one row stride"


# ---------------------------------------------------------------- wrong numbers


def _is_mistake(seen: Observation, supposed: Mapping[str, Array]) -> bool:
    """Whether the outputs are what a known mistake gives, where that differs from what is right."""
    differs = False
    for name, got in seen.outputs.items():
        want, given = np.asarray(supposed[name], np.float64), got.astype(np.float64)
        if want.shape != given.shape:
            return False
        with np.errstate(invalid="ignore"):
            bound = _finite_or_zero(seen.bound[name])
            # Where the contract wants the very bits, so does a mistake: orders of additions lie near each other.
            most = MATCH * np.abs(want) + NEAR * bound if got.dtype.kind == "f" and bound.any() else 0.0
            near = np.abs(given - want) <= most
        if not (near | (given == want) | (np.isnan(given) & np.isnan(want))).all():
            return False
        wrong = seen.wrong(name)
        with np.errstate(invalid="ignore"):
            away = np.where(given == want, 0.0, np.abs(given - want))[wrong]
            off = np.nan_to_num(np.abs(given - np.asarray(seen.expected[name], np.float64))[wrong], nan=np.inf)
        if not (np.isnan(away) | (away <= off / 2)).all():  # what is right is as near: it explains nothing
            return False
        differs |= bool(wrong.any())
    return differs


def _finite_or_zero(values: Array) -> Array:
    """Finite values as they are, others as 0."""
    return np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _fails(seen: Observation, supposed: Mapping[str, Array]) -> bool:
    """Whether a known mistake gives something else than what is right, beyond rounding."""
    for name, right in seen.expected.items():
        want, given = np.asarray(right, np.float64), np.asarray(supposed[name], np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(given - want) <= MATCH * np.abs(want) + NEAR * _finite_or_zero(seen.bound[name])
        if want.shape == given.shape and not (near | (given == want) | (np.isnan(given) & np.isnan(want))).all():
            return True
    return False


def _mistake(seen: Sequence[Observation], failed: Sequence[Observation], reference: Reference) -> str:
    """The sentence of the known mistake that explains every case that failed, and would fail in no other."""
    passed = [one for one in seen if not any(one is other for other in failed)]
    for sentence, compute in reference.mistakes.items():
        with np.errstate(all="ignore"):
            if not all(_is_mistake(one, compute(**exact_arguments(one.case))) for one in failed):
                continue
            if not any(_fails(one, compute(**exact_arguments(one.case))) for one in passed):
                return sentence
    return ""


def _not_numbers(seen: Observation) -> str:
    """NaN and infinities that are where they should not be, or are missing."""
    inputs = [np.asarray(v, np.float64) for v in exact_arguments(seen.case).values() if isinstance(v, np.ndarray)]
    for name, got in seen.outputs.items():
        if got.dtype.kind != "f":
            continue
        want, wrong = np.asarray(seen.expected[name], np.float64), seen.wrong(name)
        lost = wrong & np.isnan(want) & ~np.isnan(got)
        if lost.any():
            return f"a NaN in the input is lost: {describe_elements(name, lost)} should be NaN"
        spread = wrong & np.isnan(got) & ~np.isnan(want)
        if spread.any() and any(np.isnan(value).any() for value in inputs):
            to = describe_elements(name, spread)
            if spread.ndim > 1:
                to = f"row {np.argwhere(spread)[0][0]} of {name}"
            return f"a NaN in the input spreads to {to}, which does not depend on it"
        broken = wrong & ~np.isfinite(got) & np.isfinite(want)
        if broken.any():
            kind = "NaN" if np.isnan(got[broken][0]) else "infinite"
            said = f"{kind}: a value on the way is too large for the type, or 0 is divided by 0, or infinity times 0"
            return with_verb(describe_elements(name, broken), "becomes", "become", said)
    return ""


def _is_near(seen: Observation) -> bool:
    """Nearly right: every error is small beside its element or beside the bound."""
    for name, got in seen.outputs.items():
        want, wrong = np.asarray(seen.expected[name], np.float64), seen.wrong(name)
        most = np.broadcast_to(np.asarray(seen.bound[name], np.float64), want.shape)
        error = np.abs(got.astype(np.float64) - want)[wrong]
        near = (error <= CLOSE * np.abs(want)[wrong]) | (error <= NEAR * most[wrong])
        if got.dtype.kind != "f" or not near.all():
            return False
    return True


def _rounding(failed: Sequence[Observation]) -> str:
    """What is said of errors that are all small."""
    times = max(seen.worst(name) for seen in failed for name in seen.outputs)
    if times <= 1:  # the bound is 0
        return "close, but not the same bits: another order of the additions, or a rounding more or less"
    return (
        f"close, but off by {times:.3g} times what the contract allows: rounding errors that add up, or a constant "
        "with too few digits"
    )


def _half_digits(seen: Observation) -> str:
    """A float32 output whose numbers are all numbers of float16, near the right ones, which are not."""
    for name, got in seen.outputs.items():
        want = np.asarray(seen.expected[name], np.float64)
        if got.dtype != np.float32 or got.size < MANY or not (np.isfinite(got) & np.isfinite(want)).all():
            continue
        with np.errstate(over="ignore"):
            are_half = (got.astype(np.float16) == got).all() and (
                want.astype(np.float16) != want.astype(np.float32)
            ).any()
        if are_half and (np.abs(got - want) <= HALF_NEAR * np.abs(want).max()).all():
            return f"{name} has the digits of float16 alone: a sum or a product on the way is float16, float32 is due"
    return ""


def _kept(failed: Sequence[Observation]) -> str:
    """The first array that is to be changed, and holds after every call what it held before."""
    for name in failed[0].outputs:
        held = [seen.case.arguments[name] for seen in failed]
        same = all(
            isinstance(value, State) and value.array.tobytes() == np.ascontiguousarray(seen.outputs[name]).tobytes()
            for value, seen in zip(held, failed, strict=True)
        )
        if same and any(seen.wrong(name).any() for seen in failed):
            return f"{name} stays as it was: what is computed must be written into it"
    return ""


def _plain(seen: Observation) -> str:
    for name in seen.outputs:
        wrong = seen.wrong(name)
        if wrong.any():
            return with_verb(describe_elements(name, wrong), "is", "are", "wrong")
    return ""


def _detail(seen: Observation) -> str:
    """One element: what came, what should have come."""
    for name, got in seen.outputs.items():
        wrong = seen.wrong(name)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            most = float(np.broadcast_to(np.asarray(seen.bound[name], np.float64), got.shape)[at])
            near = f" +- {most:.2g}" if most else ""
            want = float(np.asarray(seen.expected[name], np.float64)[at])
            return f"{element(name, at)} is {float(got[at]):.9g}, expected {want:.9g}{near}"
    return ""


def judge(seen: Sequence[Observation], reference: Reference) -> Verdict:
    """What all cases come to. What was done comes before what came out; a known mistake before a description."""
    count = len(seen)
    deeds = [(one, said) for one in seen if (said := _deeds(one))]
    failures = sum(one.is_wrong or any(one is other for other, _ in deeds) for one in seen)
    failed = [one for one in seen if one.is_wrong]
    if any(not one.case.is_empty for one in failed):  # what was done in a case without elements alone says little
        deeds = [deed for deed in deeds if not deed[0].case.is_empty]
        failed = [one for one in failed if not (one.case.is_empty and _deeds(one))]
    if deeds:
        deeds.sort(key=lambda deed: (not deed[0].is_partly_wrong(), deed[0].case.is_empty))
        one, said = deeds[0]
        about = one.case.about
        if one.case.is_empty and said.endswith("written"):
            said += ": a loop over nothing has no round, so it is written outside of that loop"
        return Verdict(False, said, f"with {about}", cases=count, failures=failures, case=about)
    if not failed:
        worst = max((one.worst(name) for one in seen for name in one.outputs), default=0.0)
        return Verdict(True, cases=count, worst=worst)
    far = [one for one in failed if not _is_near(one)]  # an error that is large somewhere is no rounding
    first = min(far or failed, key=lambda one: (not one.is_partly_wrong(), one.case.is_empty))
    alone = {one.case.alone for one in failed}
    sentence = (
        _mistake(seen, failed, reference) or (alone.pop() if len(alone) == 1 else "") or _kept(failed)
        or _half_digits(first)
        or _not_numbers(first) or ("" if far else _rounding(failed)) or _plain(first)
    )  # fmt: skip
    detail = f"with {first.case.about}: {_detail(first)}"
    return Verdict(False, sentence, detail, cases=count, failures=failures, case=first.case.about)
