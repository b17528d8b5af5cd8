"""The rungs of ladders on a CPU: those that no record speaks for compute what their problem says, and what a writer of
a rung gets wrong is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.climb.ladder import Ladder, Rung, ladder_named, rung_of
from kernelworks.climb.on_cpu import OnCpu
from kernelworks.records import Peaks, from_json
from kernelworks.records.climb import Climb

LADDERS = Path(__file__).resolve().parents[2] / "ladders"


def unrecorded(folder: Path) -> list[Rung]:
    """The rungs that no record of the ladder says were verified as they stand."""
    known = set[str]()
    for path in folder.glob("**/results.json"):
        record = from_json(Climb, path.read_text(encoding="utf-8"))
        known |= {rung.sha256 for rung in record.rungs if rung.status == "verified"}
    return [rung for rung in ladder_named(str(folder)).rungs if rung.sha256() not in known]


def verified(ladder: Ladder, rung: Rung, peaks: Peaks) -> tuple[float, str]:
    """Its worst share of the bound at the small sizes, one thread and all, and what is wrong."""
    climber = OnCpu(ladder, ladder.problem.verification_sizes[-1], peaks, 0.01, watch=False)
    worst, wrong, _ = climber.verify_rung(rung)
    return worst, wrong


NEW = [rung for path in sorted(LADDERS.glob("cpu-*/problem.py")) for rung in unrecorded(path.parent)]


@pytest.mark.parametrize("rung", NEW, ids=lambda rung: f"{rung.path.parent.name}-{rung.path.stem}")
def test_a_rung_that_no_record_speaks_for_is_right(rung: Rung, ceilings: Peaks) -> None:
    ladder = ladder_named(str(rung.path.parent))
    if OnCpu(ladder, ladder.problem.size, ceilings, 0.01, watch=False).missing_reason(rung):
        return  # this machine has not the instructions: its own climb says so
    worst, wrong = verified(ladder, rung, ceilings)
    assert not wrong and worst <= 1


# By mistake: a ladder, a rung's file, and a text of it with what stands there by mistake.
MISTAKES = {
    "what is left of a row": ("cpu-rms-norm", "03_vectors", "for (; n < N; ++n) total", "for (; n < 0; ++n) total"),
    "eps outside the root": ("cpu-rms-norm", "02_fusion", "std::sqrt(sum / N + eps)", "(std::sqrt(sum / N) + eps)"),
    "the sum, not the mean": ("cpu-rms-norm", "02_fusion", "sum / N + eps", "sum + eps"),
    "no maximum": ("cpu-softmax", "04_largest", "largest_of(N, x), y", "0, y"),
    "an exponential of fewer terms": ("cpu-softmax", "04_largest", "4.1665795894e-2f", "4.1e-2f"),
    "what is left of a vector": ("cpu-reduction", "03_blocks", "for (; n < N; ++n) total", "for (; n < 0; ++n) total"),
    "one chain in float": ("cpu-reduction", "01_naive", "double total", "float total"),
    "a total that is not rescaled": (
        "cpu-attention",
        "05_online_softmax",
        "known.total[i] * factor[i]",
        "known.total[i]",
    ),
    "an offset of 7": ("cpu-gemv-q4", "03_integers", "-= 8 *", "-= 7 *"),
    "halves of a byte mixed up": ("cpu-gemv-q4", "01_scalar", "part[i + 16]", "part[i ^ 1]"),
    "a key too many": (
        "cpu-attention",
        "04_register_tiles",
        "row + Lk, row + padded, -INF",
        "row + Lk, row + Lk, -INF",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_rung_is_refused(mistake: str, ceilings: Peaks, tmp_path: Path) -> None:
    name, file, was, becomes = MISTAKES[mistake]
    ladder = ladder_named(str(LADDERS / name))
    path = tmp_path / f"{file}.cpp"
    text = (ladder.folder / path.name).read_text(encoding="utf-8")
    assert was in text
    path.write_text(text.replace(was, becomes), encoding="utf-8")
    _, wrong = verified(ladder, rung_of(path), ceilings)
    assert wrong
