"""What a ladder asks for before it is climbed: hardware, and minutes."""

from __future__ import annotations

from kernelworks.build.cpp import TARGETS
from kernelworks.climb.ladder import Ladder, Rung
from kernelworks.machine import machine
from kernelworks.records import from_json
from kernelworks.records.climb import Climb

__all__ = ["expected_minutes", "hardware", "lacking_rungs"]

IN_WORDS = {
    "scalar": "any CPU", "avx2": "AVX2", "avx512": "AVX-512", "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16", "sm_90a": "a Hopper GPU (H100, H200)",
    "sm_90": "a Hopper GPU (H100, H200) and Triton",
}  # fmt: skip
RACE_S = 7.0  # of a rung at one thread count, verification and its share of the compiling included


def hardware(ladder: Ladder) -> str:
    """What its rungs need, the least first: "AVX2; rung 8 AVX-512"."""
    found = dict[str, list[int]]()
    for rung in ladder.rungs:
        found.setdefault(rung.targets[-1], []).append(rung.number)
    (least, _), *more = found.items()
    return "; ".join([IN_WORDS[least], *(f"{_numbered(numbers)} {IN_WORDS[name]}" for name, numbers in more)])


def _numbered(numbers: list[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"rungs {numbers[0]} to {numbers[-1]}"
    return f"rung{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def lacking_rungs(ladder: Ladder) -> list[Rung]:
    """On a CPU: the rungs that this machine has not the instructions for."""
    if ladder.problem.device != "cpu":
        return []
    return [rung for rung in ladder.rungs if not TARGETS[rung.target].needs <= machine().features]


def expected_minutes(ladder: Ladder) -> int:
    """Of a climb on a quiet machine: what it took where its record was made, or so much for each rung and number of
    threads; at least 1."""
    path = ladder.folder / "results.json"
    if path.is_file():
        seconds = from_json(Climb, path.read_text(encoding="utf-8")).seconds
    else:
        seconds = RACE_S * sum(len(rung.threads) for rung in ladder.rungs)
    return max(1, round(seconds / 60))
