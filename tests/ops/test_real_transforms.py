"""What the contracts of rfft and irfft cannot say: tables that are kept, lengths that are torch's, values that are no
numbers, derivatives of derivatives."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.ops.spectral.rfft.plan import plan_of, prime_factors

RFFT, IRFFT = OPS["rfft"], OPS["irfft"]
LINES = RFFT.request("forward", (torch.ones(2, 8), None, -1, None))
KERNELS = [k.name for k in RFFT.kernels if k.device == "cpu" and k.guard(LINES) is None]


def near(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_calls_of_other_lengths_in_between_change_nothing(kernel: str) -> None:
    lengths = (1024, 512, 1000, 16, 2048, 7)
    lines = {n: torch.randn(3, n) for n in lengths}
    first = {n: kw.rfft(x, kernel=kernel) for n, x in lines.items()}
    for n in (*lengths[::-1], *lengths):
        assert torch.equal(kw.rfft(lines[n], kernel=kernel), first[n])
        near(kw.irfft(first[n], n, kernel=kernel), lines[n])


def test_threads_with_lengths_of_their_own() -> None:
    plan_of.cache_clear()
    lengths = (640, 768, 1024, 1280)
    lines = {n: torch.randn(4, n) for n in lengths}
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(20):
            if not torch.allclose(kw.rfft(lines[n], kernel=KERNELS[0]), torch.fft.rfft(lines[n]), atol=1e-3):
                wrong.append(n)

    workers = [threading.Thread(target=work, args=(n,)) for n in lengths]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("n", [11, 13, 97, 1031, 2 * 509])
def test_other_prime_factors_are_torchs_with_a_reason(n: int) -> None:
    x = torch.randn(2, n)
    near(kw.rfft(x), torch.fft.rfft(x))
    near(kw.irfft(kw.rfft(x), n), x)
    with pytest.raises(RuntimeError, match=f"prime factors are 2, 3, 5 and 7; {n} has {max(prime_factors(n))}"):
        kw.rfft(x, kernel=KERNELS[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_no_number_stays_in_its_line(kernel: str) -> None:
    for n in (8, 30, 1024):
        x = torch.randn(5, n)
        clean = kw.rfft(x, kernel=kernel)
        x[2, n // 2] = torch.nan
        got = kw.rfft(x, kernel=kernel)
        keep = torch.tensor([0, 1, 3, 4])
        assert torch.equal(got[keep], clean[keep])
        assert bool(got[2].real[0].isnan()) and float(got[2].imag[0]) == 0.0


@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_the_input_of_irfft_is_not_written_to(kernel: str | None) -> None:
    for shape, n, dim in (((3, 17), None, -1), ((3, 17), 40, -1), ((9, 4), 15, 0), ((1, 1025), None, -1)):
        x = torch.randn(shape, dtype=torch.complex64)
        before, version = x.clone(), x._version
        kw.irfft(x, n, dim, kernel=kernel)
        assert torch.equal(x, before) and x._version == version


@pytest.mark.parametrize("kernel", KERNELS)
def test_imaginary_parts_of_the_ends_count_for_nothing(kernel: str) -> None:
    x = torch.randn(3, 9, dtype=torch.complex64)
    other = x.clone()
    other[:, 0] += 5j
    for n in (16, 15, 8):
        assert torch.equal(kw.irfft(x, n, kernel=kernel), kw.irfft(other, n, kernel=kernel))
    last = x.clone()
    last[:, -1] += 5j
    assert torch.equal(kw.irfft(x, 16, kernel=kernel), kw.irfft(last, 16, kernel=kernel))
    assert not torch.equal(kw.irfft(x, 21, kernel=kernel), kw.irfft(last, 21, kernel=kernel))


@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_conjugated_views_are_read_as_what_they_say(kernel: str | None) -> None:
    x = torch.randn(3, 9, dtype=torch.complex64)
    near(kw.irfft(x.conj(), 16, kernel=kernel), torch.fft.irfft(x.conj(), 16))
    near(kw.irfft(x.mH, 4, kernel=kernel), torch.fft.irfft(x.mH, 4))
    near(kw.rfft(torch.view_as_real(x).select(-1, 1), kernel=kernel), torch.fft.rfft(x.imag))


def test_derivatives_of_derivatives_and_transforms_are_torchs() -> None:
    x, v = torch.randn(3, 12), torch.randn(3, 12)
    z = torch.randn(3, 7, dtype=torch.complex64)
    for ours, torchs, at in ((kw.rfft, torch.fft.rfft, x), (kw.irfft, torch.fft.irfft, z)):
        found = []
        for function in (ours, torchs):
            leaf = at.clone().requires_grad_()
            y = function(leaf, norm="ortho")
            (first,) = torch.autograd.grad((y.abs() ** 2).sum() ** 2, leaf, create_graph=True)
            (second,) = torch.autograd.grad((first.abs() ** 2).sum(), leaf)
            found.append((first.detach(), second))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
        near(torch.func.vmap(ours)(at), torch.func.vmap(torchs)(at))
    near(torch.func.jvp(kw.rfft, (x,), (v,))[1], torch.fft.rfft(v))


def test_out_must_be_of_the_results_kind() -> None:
    x = torch.randn(3, 8)
    out = torch.empty(3, 5, dtype=torch.complex64)
    assert kw.rfft(x, out=out) is out
    near(out, torch.fft.rfft(x))
    with pytest.raises(TypeError, match=r"out must have dtype torch\.complex64"):
        kw.rfft(x, out=torch.empty(3, 5))
    with pytest.raises(TypeError, match=r"out must have dtype torch\.float32"):
        kw.irfft(out, out=torch.empty(3, 8, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match="out= does not support autograd"):
        kw.irfft(out.clone().requires_grad_(), out=torch.empty(3, 8))


def test_lines_without_neighbours_and_no_lines() -> None:
    assert kw.rfft(torch.empty(0, 8)).shape == (0, 5)  # which a library of torch's refuses
    assert kw.irfft(torch.empty(0, 5, dtype=torch.complex64)).shape == (0, 8)
    for kernel in KERNELS:
        assert kw.rfft(torch.empty(0, 8), kernel=kernel).shape == (0, 5)
        near(kw.rfft(torch.randn(4, 1), kernel=kernel).imag, torch.zeros(4, 1))
