"""What a user reads of a program is true. Nothing here knows how a diagnosis is made: programs go in, and words and
figures come out of ``kw.diagnose``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.diagnose import optimizations
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.records import Diagnosis, Hotspot, Peaks

BUDGET_S = 2.0
FIX_S = 4.0  # nothing is compiled in so few
HERE = Path(__file__).resolve().parents[1] / "support"


def words(found: Diagnosis) -> str:
    return "\n".join([found.sentence, *found.findings, *(hotspot.action for hotspot in found.hotspots)])


def hotspots(found: Diagnosis, op: str) -> list[Hotspot]:
    return [hotspot for hotspot in found.hotspots if hotspot.op.startswith(op)]


@pytest.fixture
def nothing_verified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which no kernel of ours was verified, so that none may run."""
    reason = "not verified on this kind of machine"
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")  # as users have it
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: reason if kernel.source else None)
    session = sys.modules.get("kernelworks.measure.autotune.session")
    if session is not None:  # and none will be
        monkeypatch.setattr(session, "confirm", lambda kernels, progress, most_s: [])
    for op in OPS.values():
        op.forget()
    yield
    for op in OPS.values():
        op.forget()


# ---------------------------------------------------------------- a promise is a prediction of a known optimization


def products() -> Callable[[], Tensor]:
    model, x = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))), torch.randn(64, 256)

    def program() -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    return program


def test_if_no_kernel_may_run_none_is_predicted_to_recover_time(nothing_verified: None, ceilings: Peaks) -> None:
    found = kw.diagnose(products(), peaks=ceilings, budget_s=BUDGET_S)
    linear = hotspots(found, "linear") + hotspots(found, "addmm")
    assert linear and sum(hotspot.high_s for hotspot in linear) == 0
    promised = found.sentence.partition("at the roofline")[0]
    assert not re.search(r"recoverable[^;]*(linear|addmm)", promised), found.sentence


def test_a_fix_that_changes_nothing_says_so_and_measures_nothing(
    nothing_verified: None, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing but the swap to try: what a compiler brings, or has no time for, is this machine's."""
    swaps = tuple(one for one in optimizations.OPTIMIZATIONS if one.name == "swap")
    monkeypatch.setattr(optimizations, "OPTIMIZATIONS", swaps)
    found = kw.diagnose(products(), fix=True, peaks=ceilings, budget_s=BUDGET_S, fix_s=FIX_S).fix
    assert found is not None and not found.replaced
    (swap,) = (one for one in found.optimizations if one.optimization == "swap")
    assert not swap.applied and swap.gain_s is None
    assert "no optimization makes" in " ".join((*found.notes, found.ended))


# ---------------------------------------------------------------- a noisy machine


ALONE = """
    import sys
    sys.path[:0] = [{path!r}]
    import torch, kernelworks as kw
    from machines import record
    model, x = torch.nn.Linear(512, 512), torch.randn(512, 512)
    def program():
        with torch.no_grad():
            for _ in range(20):
                model(x)
    found = kw.diagnose(program, peaks=record(), budget_s=1.0, rough={rough})
    print(found.sentence)
    print(sorted(name for name, seconds in found.time_breakdown.items() if seconds > 0))
"""


@pytest.fixture
def neighbours() -> Iterator[None]:
    """A busy process for each core that this one may use."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.2)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def beside(*, rough: bool) -> list[str]:
    done = forked.python(code=textwrap.dedent(ALONE).format(path=str(HERE), rough=rough))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


@pytest.mark.thorough  # what real neighbours take; noise that is made up has tests of its own
def test_beside_busy_neighbours_the_first_word_is_ambiguous(neighbours: None) -> None:
    sentence, _ = beside(rough=False)
    assert sentence.startswith("ambiguous") and not re.search(r"\d ms", sentence)


@pytest.mark.thorough
def test_figures_beside_neighbours_are_rough_and_what_those_took_is_theirs(neighbours: None) -> None:
    sentence, parts = beside(rough=True)
    assert sentence.startswith("rough") and "CPU contention" in parts


# ---------------------------------------------------------------- what was not modelled is not idle


@torch.library.custom_op("trust_of_words::unknown", mutates_args=())
def unknown(x: Tensor) -> Tensor:
    end = time.thread_time() + 0.01  # of its own, whoever else holds the cores
    while time.thread_time() < end:
        x = x + 0.0 * (x.numpy() @ x.numpy().T).sum()
    return x


def test_a_program_of_unknown_ops_is_not_said_to_run_at_nothing(ceilings: Peaks) -> None:
    x = torch.randn(64, 64)
    found = kw.diagnose(lambda: torch.ops.trust_of_words.unknown(x), peaks=ceilings, budget_s=BUDGET_S)
    # Beside load a part of the wall clock may be told as Python's: then the rest is named as what was not modelled.
    assert not found.sentence.startswith("this program runs at"), found.sentence
    assert re.search("was not modelled|the rest was not: .*unknown", found.sentence), found.sentence


def attention_backward(causal: bool, ceilings: Peaks) -> float:
    q = torch.randn(1, 2, 256, 32, requires_grad=True)

    def program() -> None:
        F.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

    found = kw.diagnose(program, peaks=ceilings, budget_s=0.25 * BUDGET_S)
    return sum(r.flop for r in found.hotspots if "attention" in r.op and "backward" in r.op)


def test_half_of_a_causal_attentions_backward_is_not_counted(ceilings: Peaks) -> None:
    whole, causal = (attention_backward(causal, ceilings) for causal in (False, True))
    assert whole > 0 and causal == pytest.approx(whole / 2, rel=0.02)


# ---------------------------------------------------------------- advice is for what the program does

ROWS, WIDTH = 256, 64
COS, SIN = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
WEIGHT = torch.ones(WIDTH)


def rotary(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * COS + torch.cat([-right, left], -1) * SIN


def both_signs(x: Tensor) -> Tensor:
    return torch.relu(torch.cat([x, -x], -1)) * 0.5 + 1


def swapped_halves(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([right, -left], -1) * COS


def root_mean_square(x: Tensor) -> Tensor:
    return WEIGHT * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def by_the_square_of_the_mean(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.mean(-1, keepdim=True).pow(2) + 1) + x


def gated(x: Tensor) -> Tensor:
    return F.silu(x) * (x + 1)


def a_lone_silu(x: Tensor) -> Tensor:
    return F.silu(x + 1)


ADVICE: dict[str, tuple[Callable[[Tensor], Tensor], str, bool]] = {
    "a rotary embedding": (rotary, r"rotary|rope", True),
    "both signs joined": (both_signs, r"rotary|rope", False),
    "halves swapped and scaled": (swapped_halves, r"rotary|rope", False),
    "an RMS norm": (root_mean_square, r"rms_norm", True),
    "the root of a mean's square": (by_the_square_of_the_mean, r"rms_norm", False),
    "a gate": (gated, r"silu_mul|gate", True),
    "a SiLU alone": (a_lone_silu, r"silu_mul|gate", False),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_is_given_where_it_applies_and_nowhere_else(name: str, ceilings: Peaks) -> None:
    function, pattern, applies = ADVICE[name]
    x = torch.randn(64, ROWS, WIDTH)

    def program() -> None:
        with torch.no_grad():
            for _ in range(4):
                function(x)

    found = words(kw.diagnose(program, peaks=ceilings, budget_s=BUDGET_S))
    assert bool(re.search(pattern, found.replace("rotary(", ""), re.IGNORECASE)) == applies, found


def test_an_optimizer_of_many_small_ops_is_advised_the_fused_one(ceilings: Peaks) -> None:
    parameters = [nn.Parameter(torch.randn(256, 256)) for _ in range(8)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=False)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    assert "fused=True" in words(kw.diagnose(optimizer.step, peaks=ceilings, budget_s=BUDGET_S))


# ---------------------------------------------------------------- a prediction is of one minute


class Paced(nn.Module):
    """Its time is the machine's mood: the same work takes ``seconds`` more."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.seconds = nn.GELU(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return self.act(x)  # type: ignore[no-any-return]


@pytest.mark.thorough  # a real clock
@pytest.mark.parametrize(("first", "later"), [(0.04, 0.02), (0.02, 0.04)])
def test_a_machine_that_changes_its_pace_is_no_gain(first: float, later: float, ceilings: Peaks) -> None:
    """What is predicted of a swap of next to nothing is next to nothing, though all of it takes half or twice as long
    when the fix is measured."""
    model, x = Paced(), torch.randn(8, 16)
    model.seconds = first

    def say(line: str) -> None:
        if "finding the modules" in line:  # the diagnosis is made, the fix begins
            model.seconds = later

    def program() -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    found = kw.diagnose(program, fix=True, peaks=ceilings, budget_s=BUDGET_S, progress=say, fix_s=FIX_S).fix
    assert found is not None and found.predicted_gain_s is not None
    assert abs(found.predicted_gain_s) < 0.15 * min(first, later), found
