"""Tuning records: how quick our kernels were against torch's own function on this machine.

A tuning record speaks for one op and pass, one way (a kernel, or for training a forward kernel and a backward kernel),
one call and the bucket of calls that it lies in, one kind of machine with its number of cores, one number of threads,
one hash of the kernels' sources with the toolchain, and one version of torch. Records for the project's machines ship
with the package (``timed/PLACE.json``). ``kernelworks autotune`` writes more into the cache. Each record has a file of
its own, written through a rename, so that two processes that autotune at once lose nothing of each other's.

``verdict`` reads the records for a request. A record of this very call decides by itself. Otherwise all records of its
bucket have to agree, by a larger margin. Without such a record no kernel of ours is taken.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from kernelworks.build import BuildError
from kernelworks.contract import Contract, Kernel, Request, TensorSpec
from kernelworks.machine import environment, place_of
from kernelworks.records.json_text import format_lines, read_json

__all__ = [
    "BUCKET_MARGIN", "MARGIN", "NOISE_LIMIT", "NO_RECORD", "RaceResult", "TuningRecord", "Verdict", "bucket_of",
    "call_of", "element_counts", "faults", "has_known_sizes", "is_decisive", "is_shipped", "records_matching",
    "records_of", "remember", "reread", "shipped_path", "sources_of", "threads_of", "torch_version",
    "valid_records", "verdict", "ways_digest", "write", "write_shipped",
]  # fmt: skip

SHIPPED_DIR = Path(__file__).resolve().parent / "timed"
FORMAT = 2  # of the files; those of 1 were judged by medians alone, which a neighbour on one core can make of nothing
MAX_NAMED_FAULTS = 3  # of the files that are left out
ADDED_FIELDS = {"note": "", "among": ""}  # what records have had since

MARGIN = 1.03  # torch's time over ours, in both halves of a race: less is within what two runs differ by

# The same for a call that was not benchmarked itself, whose sizes may be twice those of the calls that were. On a Zen 4
# (126 calls of six ops, sizes drawn three to a bucket), of 110 calls judged by one such neighbour at 1.10 four lost to
# torch by more than 3%, of 102 at 1.20 one did.
BUCKET_MARGIN = 1.20
NOISE_LIMIT = 0.10  # spread of a race; with more, neither side can be called quicker

NO_RECORD = "no tuning record for this call on this machine: torch runs; `kernelworks autotune` makes one"


@dataclass(frozen=True)
class RaceResult:
    """One race. ``halves``: torch's time over ours in each half; ``spread``: of the rounds, as a share."""

    ours_us: float
    torch_us: float
    halves: tuple[float, float]
    spread: float

    @property
    def ratio(self) -> float:
        """The lesser of the halves."""
        return min(self.halves)

    @property
    def is_noisy(self) -> bool:
        return not self.spread <= NOISE_LIMIT


@dataclass(frozen=True)
class TuningRecord:
    op: str
    pass_: str  # "forward" (no gradients wanted) or "training" (forward and backward)
    way: str  # a kernel's name; for training "FORWARD+BACKWARD", or a kernel that makes the gradients with its forward
    bucket: str
    call: str
    place: str  # the kind of machine, and of a CPU how many cores
    threads: int  # 0 on a GPU, where they change nothing
    source_hash: str  # of the kernels of the way, joined by "+"
    toolchain: str
    torch: str
    whole: RaceResult  # the forward, or forward and backward together
    backward: RaceResult | None  # of training: the backward alone, or the whole where the forward makes the gradients
    date: str
    note: str = ""  # what it was made of, if it is no race in two halves
    among: str = ""  # the ways of ours that there were, as `ways_digest` has them; "" where nobody noted it

    @property
    def ratio(self) -> float:
        """Torch's time over ours, the least of what has to be quicker."""
        return min(self.whole.ratio, self.backward.ratio) if self.backward else self.whole.ratio

    @property
    def beats_torch(self) -> bool:
        """Whether the call that was benchmarked is ours for it."""
        return not self.is_noisy and self.ratio >= MARGIN

    @property
    def is_noisy(self) -> bool:
        return self.whole.is_noisy or (self.backward is not None and self.backward.is_noisy)

    @property
    def key(self) -> tuple[str, str, int]:
        """What a later tuning record of the same takes the place of, whichever way it found quickest."""
        return self.pass_, self.call, self.threads

    def __str__(self) -> str:
        race = self.whole if self.backward is None or self.whole.ratio <= self.backward.ratio else self.backward
        part = " of the backward" if race is not self.whole else ""
        on = f", {self.threads} thread{'s' if self.threads > 1 else ''}" if self.threads else ""
        when = f"{self.date}, {self.note}" if self.note else self.date
        return f"{self.way} {race.ours_us:.3g} us against torch's {race.torch_us:.3g}{part}{on}, {when}"


def torch_version() -> str:
    """Major, minor and patch: what is behind a "+" says where torch came from."""
    return str(torch.__version__).split("+")[0]


# ---------------------------------------------------------------- what calls look like


def threads_of(request: Request) -> int:
    return request.threads if request.device == "cpu" else 0


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "f").replace("int", "i")


def _layout(t: TensorSpec) -> str:
    """How a tensor lies: nothing where it is dense in the order of its dimensions, or which one of them is dense."""
    sizes = [(n, s) for n, s in zip(t.shape, t.stride, strict=True) if n != 1]
    expected, dense = 1, True
    for n, s in reversed(sizes):
        dense, expected = dense and s == expected, expected * n
    if dense or not sizes:
        return ""
    if sizes[-1][1] == 1:
        return " kernels"
    return " columns" if len(sizes) > 1 and sizes[-2][1] == 1 else " strided"


def _exact(t: TensorSpec) -> str:
    strides = f" by {list(t.stride)}" if _layout(t) else ""
    return f"{_short(t.dtype)}{list(t.shape)}{strides}".replace(", ", ",")


def _several(value: Sequence[TensorSpec]) -> str:
    texts = " ".join(_exact(t) for t in value)
    return texts if len(texts) < 200 else f"{len(value)} tensors {hashlib.sha256(texts.encode()).hexdigest()[:12]}"


def _tensors(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, TensorSpec) for v in value)


def call_of(request: Request) -> str:
    """A call in words: all but the values of tensors and of numbers that its time does not depend on."""
    words = []
    for name, value in request.args.items():
        if isinstance(value, TensorSpec):
            words.append(f"{name} {_exact(value)}")
        elif _tensors(value):
            words.append(f"{name} {_several(value)}")
        elif name in request.switches:
            words += [name] if value is not None else []
        elif isinstance(value, (bool, int, str, tuple)) and name not in request.free:
            words.append(f"{name}={value}")
    return "; ".join(words + _gradients(request))


def bucket_of(contract: Contract, request: Request) -> str:
    """Alike calls: dtypes, layouts, options, bits of each dimension (``M~10``: 512 to 1023), or the contract's word."""
    words = []
    for name, value in request.args.items():
        if isinstance(value, TensorSpec):
            words.append(f"{name} {_short(value.dtype)}{_layout(value)}")
        elif _tensors(value):
            kinds = sorted({_short(t.dtype) + _layout(t) for t in value})
            words.append(f"{name} {' '.join(kinds)}")
        elif name in request.switches:
            words += [name] if value is not None else []
        elif isinstance(value, (bool, str)):
            words.append(f"{name}={value}")
        elif isinstance(value, int) and name not in request.free:
            words.append(name)
    sizes = {name: f"~{size.bit_length()}" for name, size in contract.dims(request).items()}
    if contract.bucket is not None:
        sizes |= {name: f"={value}" for name, value in contract.bucket(request).items()}
    return "; ".join([*words, *(f"{name}{size}" for name, size in sizes.items()), *_gradients(request)])


def _gradients(request: Request) -> list[str]:
    return [f"gradients {' '.join(request.wanted)}"] if request.pass_ == "training" else []


def has_known_sizes(request: Request) -> bool:
    """Whether all sizes are numbers: a compiler that traces for any size has none."""
    specs = [v for value in request.args.values() for v in (value if isinstance(value, tuple) else (value,))]
    return all(type(n) is int for t in specs if isinstance(t, TensorSpec) for n in (*t.shape, *t.stride))


# ---------------------------------------------------------------- the verdict


@dataclass(frozen=True)
class Verdict:
    """The way to take, "" for torch's own function, the reason in words, and the tuning record that decided, if one
    did."""

    way: str
    because: str
    tuning_record: TuningRecord | None = None


def sources_of(kernels: Iterable[Kernel]) -> tuple[str, str]:
    """Hash and toolchain that a tuning record of these kernels names. Raises BuildError where there is no toolchain."""
    kernels = tuple(kernels)
    return "+".join(kernel.hash() for kernel in kernels), "+".join(
        dict.fromkeys(kernel.toolchain() for kernel in kernels)
    )


def ways_digest(ways: Mapping[str, Sequence[Kernel]]) -> str:
    """The ways that there are for a call, and of which sources, in a word: what a race has looked at."""

    def sources(kernels: Sequence[Kernel]) -> str:
        try:
            return " ".join(sources_of(kernels))
        except BuildError:
            return "no toolchain"

    named = "\n".join(f"{way} {sources(kernels)}" for way, kernels in sorted(ways.items()))
    return hashlib.sha256(named.encode()).hexdigest()[:12]


def is_decisive(record: TuningRecord, ways: Mapping[str, Sequence[Kernel]]) -> bool:
    """Whether a record of this very call speaks of all kernels as they are today: a newer one may be quicker."""
    same = record.among == ways_digest(ways) if record.among else list(ways) == [record.way]
    return not record.is_noisy and same


def valid_records(
    name: str, contract: Contract, request: Request, ways: Mapping[str, Sequence[Kernel]], place: str | None = None
) -> tuple[list[TuningRecord], list[TuningRecord]]:
    """The records that hold for these kernels as they are now: of this very call, and of others in its bucket."""
    place = place or place_of(request.device)
    known = _indexed(_folder(place), shipped_path(place), name)
    records = known.get((request.pass_, threads_of(request), bucket_of(contract, request)), ())
    sources = {way: sources_of(ways[way]) for way in {t.way for t in records} & ways.keys()}
    here, call = torch_version(), call_of(request)
    valid = [t for t in records if t.torch == here and (t.source_hash, t.toolchain) == sources.get(t.way)]
    return [t for t in valid if t.call == call], [t for t in valid if t.call != call]


def records_matching(
    name: str, kernels: Mapping[str, Kernel], dtype: torch.dtype, place: str, sizes: Mapping[str, int]
) -> list[TuningRecord]:
    """The records of a ``place`` that hold for an op's ``kernels`` in a dtype and the known ``sizes``, of any call."""
    threads = 0 if place.startswith("sm_") else torch.get_num_threads()
    known = _indexed(_folder(place), shipped_path(place), name)
    found = []
    for t in (t for (_, _, bucket), several in known.items() if _in_bucket(bucket, dtype, sizes) for t in several):
        way = [kernels[part] for part in t.way.split("+") if part in kernels]
        if t.threads != threads or t.torch != torch_version() or len(way) != t.way.count("+") + 1:
            continue
        if (t.source_hash, t.toolchain) == sources_of(way):
            found.append(t)
    return found


def _in_bucket(bucket: str, dtype: torch.dtype, sizes: Mapping[str, int]) -> bool:
    """Whether calls of a dtype and of these sizes, whatever the others are, may lie in a bucket."""
    words = bucket.split("; ")
    if words[0].split(" ")[1:2] != [_short(dtype)]:
        return False
    said = {name: size for name, mark, size in (word.partition("~") for word in words) if mark}
    return all(said.get(name, str(size.bit_length())) == str(size.bit_length()) for name, size in sizes.items())


def records_of(name: str, place: str) -> tuple[TuningRecord, ...]:
    """All tuning records of an op on a kind of machine by this torch, whatever has become of its kernels since."""
    known = _indexed(_folder(place), shipped_path(place), name)
    return tuple(t for several in known.values() for t in several if t.torch == torch_version())


def element_counts(call: str) -> dict[str, int]:
    """How many elements the tensors of a call have, where it names each."""
    found = {}
    for word in call.split("; "):
        name, _, rest = word.partition(" ")
        sizes = _SIZES.match(rest)
        if sizes:
            found[name] = math.prod(int(n) for n in sizes[1].split(",") if n)
    return found


_SIZES = re.compile(r"\w+\[([\d,]*)\]( by |$)")


def verdict(
    name: str, contract: Contract, request: Request, ways: Mapping[str, Sequence[Kernel]], place: str | None = None
) -> Verdict:
    """Which way (name -> kernels) runs a request, by the records of this machine or ``place``: the one that beats torch
    most. Never raises for what lies in a file."""
    if not ways:
        return Verdict("", "no kernel of ours may be chosen")
    exact, near = valid_records(name, contract, request, ways, place)
    clear = [t for t in exact if not t.is_noisy]
    if clear:
        best = max(clear, key=lambda t: t.ratio)
        if best.ratio >= MARGIN:
            return Verdict(best.way, f"timed: {best.ratio:.2f}x torch, {best}", best)
        return Verdict("", f"timed: torch is as quick or quicker ({best.ratio:.2f}x, {best})", best)
    if exact:
        return Verdict("", f"measurement too noisy (spread {_spread(exact):.0%}): torch runs", exact[0])
    return _by_bucket([t for t in near if not t.is_noisy], faults(place or place_of(request.device), name))


def _spread(records: Sequence[TuningRecord]) -> float:
    return max(max(t.whole.spread, t.backward.spread if t.backward else 0.0) for t in records)


def _by_bucket(near: Sequence[TuningRecord], bad: Sequence[str]) -> Verdict:
    won: dict[str, TuningRecord] = {}
    for way in dict.fromkeys(t.way for t in near):
        least = min((t for t in near if t.way == way), key=lambda t: t.ratio)
        if least.ratio >= BUCKET_MARGIN:
            won[way] = least
    if won:
        best = max(won.values(), key=lambda t: t.ratio)
        count = sum(t.way == best.way for t in near)
        return Verdict(best.way, f"timed at {_calls(count)} like it: at least {best.ratio:.2f}x torch ({best})", best)
    if near:
        least = min(near, key=lambda t: t.ratio)
        said = f"timed at {_calls(len(near))} like it, at one only {least.ratio:.2f}x torch ({least})"
        return Verdict("", said, least)
    more = f", and {len(bad) - MAX_NAMED_FAULTS} more" if len(bad) > MAX_NAMED_FAULTS else ""
    return Verdict("", NO_RECORD + (f"; left out: {'; '.join(bad[:MAX_NAMED_FAULTS])}{more}" if bad else ""))


def _calls(count: int) -> str:
    return f"{count} call{'s' if count > 1 else ''}"


# ---------------------------------------------------------------- files


def shipped_path(place: str) -> Path:
    return SHIPPED_DIR / f"{place}.json"


def _folder(place: str) -> Path:
    return environment.cache_dir("tuning_records") / place


@functools.cache
def _indexed(folder: Path, shipped: Path, op: str) -> dict[tuple[str, int, str], tuple[TuningRecord, ...]]:
    """All records of an op on a kind of machine, this user's before those shipped, by pass, threads and bucket."""
    mine = {t.key: t for t in _cached(folder, op)[0]}
    mine |= {t.key: t for t in _remembered.values() if (t.place, t.op) == (folder.name, op)}
    found: dict[tuple[str, int, str], tuple[TuningRecord, ...]] = {}
    for t in (*mine.values(), *(t for t in _shipped(shipped)[0] if t.op == op and t.key not in mine)):
        where = t.pass_, t.threads, t.bucket
        found[where] = (*found.get(where, ()), t)
    return found


def faults(place: str, op: str) -> tuple[str, ...]:
    """The files with tuning records of an op that are left out, each with what is wrong with it."""
    return (*_cached(_folder(place), op)[1], *_shipped(shipped_path(place))[1])


@functools.cache
def _shipped(path: Path) -> tuple[tuple[TuningRecord, ...], tuple[str, ...]]:
    found, word = _read(path)
    return found, (f"{path.name}: {word}",) if word else ()


@functools.cache
def _cached(folder: Path, op: str) -> tuple[tuple[TuningRecord, ...], tuple[str, ...]]:
    found: list[TuningRecord] = []
    bad: list[str] = []
    try:
        paths = sorted(folder.glob(f"{op}.*.json"))
    except OSError as error:
        return (), (f"{folder.name}: {type(error).__name__}",)
    for path in paths:
        records, word = _read(path)
        found += [t for t in records if t.op == op]
        bad += [f"{path.name}: {word}"] if word else []
    return tuple(found), tuple(bad)


_remembered: dict[tuple[str, str, tuple[str, str, int]], TuningRecord] = {}  # by place, op and key


def remember(record: TuningRecord) -> None:
    """Keeps a tuning record for this process alone, where no file can be written."""
    _remembered[record.place, record.op, record.key] = record
    _indexed.cache_clear()


def is_shipped(record: TuningRecord) -> bool:
    """Whether a tuning record came with the package: nobody has benchmarked that call on this very machine."""
    return record not in _cached(_folder(record.place), record.op)[0] and record not in _remembered.values()


def reread() -> None:
    """Forgets what was read, for when a file has changed."""
    _indexed.cache_clear()
    _shipped.cache_clear()
    _cached.cache_clear()


def _read(path: Path) -> tuple[tuple[TuningRecord, ...], str]:
    """The tuning records of a file, and a word where some or all of it cannot be used."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return (), ""
    except OSError as error:
        return (), f"cannot be read ({error.strerror or error})"
    except ValueError:  # a broken encoding is one too
        return (), "truncated or no JSON"
    if not isinstance(content, dict) or not isinstance(content.get("tuning_records"), list):
        return (), "no tuning records"
    if content.get("format") != FORMAT:
        return (), f"of another version (format {str(content.get('format'))[:20]})"
    made = [_parse_record(record) for record in content["tuning_records"]]
    found = tuple(t for t in made if t is not None)
    return found, "" if len(found) == len(made) else f"{len(made) - len(found)} of {len(made)} records are damaged"


def _parse_record(record: Any) -> TuningRecord | None:
    """A record as it was written, or None where a field is missing, unknown, or not what it should be."""
    if not isinstance(record, dict) or {*record, *ADDED_FIELDS} != {f.name for f in fields(TuningRecord)}:
        return None
    record = ADDED_FIELDS | record
    texts = (
        "op",
        "pass_",
        "way",
        "bucket",
        "call",
        "place",
        "source_hash",
        "toolchain",
        "torch",
        "date",
        *ADDED_FIELDS,
    )
    whole = _parse_race_result(record["whole"])
    backward = None if record["backward"] is None else _parse_race_result(record["backward"])
    sound = (
        all(isinstance(record[name], str) for name in texts)
        and type(record["threads"]) is int
        and record["pass_"] in ("forward", "training")
        and whole is not None
        and (backward is not None if record["pass_"] == "training" else record["backward"] is None)
    )
    return TuningRecord(**(record | {"whole": whole, "backward": backward})) if sound else None


def _parse_race_result(record: Any) -> RaceResult | None:
    if not isinstance(record, dict) or record.keys() != {f.name for f in fields(RaceResult)}:
        return None
    halves = record["halves"]
    if not isinstance(halves, list) or len(halves) != 2:
        return None
    numbers = (record["ours_us"], record["torch_us"], *halves, record["spread"])
    if not all(type(n) in (int, float) and math.isfinite(n) and n >= 0 for n in numbers):
        return None
    return RaceResult(record["ours_us"], record["torch_us"], (halves[0], halves[1]), record["spread"])


def _text(records: Sequence[TuningRecord]) -> str:
    return format_lines({"format": FORMAT, "tuning_records": [asdict(t) for t in records]}) + "\n"


def write(record: TuningRecord) -> Path:
    """Keeps a tuning record in the user's cache, in place of one of the same call. Raises OSError."""
    name = hashlib.sha256(repr(record.key).encode()).hexdigest()[:16]
    path = _folder(record.place) / f"{record.op}.{name}.json"
    environment.write_whole(path, _text([record]), prefix=f".{path.name}-")
    _indexed.cache_clear()  # what ships with the package is as it was
    _cached.cache_clear()
    return path


def write_shipped(records: Iterable[TuningRecord], place: str) -> Path:
    """Writes the file that ships with the package for one kind of machine, in a fixed order."""
    ordered = sorted(records, key=lambda t: (t.op, t.pass_, t.bucket, t.call, t.threads, t.way))
    environment.write_whole(shipped_path(place), _text(ordered), prefix=f".{place}-")
    reread()
    return shipped_path(place)
