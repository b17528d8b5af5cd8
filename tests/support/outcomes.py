"""What one call of a module gives (output, gradients, side effects, or its error), and when two calls gave the same."""

from __future__ import annotations

import torch

SIZE = 6
SEEN: list[object] = []  # what modules note while they run


def tried(module, x, name="", training=False):
    """Output, gradients and side effects of one call, or its error."""
    SEEN.clear()
    module.train(training)
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    given = leaf * 1 if not x.is_complex() else leaf
    try:
        out = module(**{name: given}) if name else module(given)
        out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype))
    except Exception as error:  # torch's own is what must come
        return type(error), str(error)
    gradients = [leaf.grad, *(p.grad for p in module.parameters())]
    return out, given, gradients, list(SEEN), getattr(module, "calls", 0)


def same(got, want, x):
    if isinstance(want[0], type):  # autograd's words go on with the names of its own functions
        assert (
            got[0] is want[0] and got[1].partition(", which is output")[0] == want[1].partition(", which is output")[0]
        )
        return
    limits = torch.finfo(want[0].dtype)
    tolerance = 16 * max(limits.eps, torch.finfo(x.dtype).eps)
    for a, b in zip([*got[:2], *got[2]], [*want[:2], *want[2]], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = a.detach(), b.detach()
            assert a.dtype is b.dtype and a.shape == b.shape
            finite = b[b.isfinite()]
            scale = float(finite.abs().max()) if finite.numel() else 1.0
            torch.testing.assert_close(a, b, rtol=tolerance, atol=max(tolerance * scale, 1e-20), equal_nan=True)
    assert got[3] == want[3]


SHAPES = [(SIZE,), (4, SIZE), (2, 3, SIZE), (SIZE, SIZE, SIZE), (2, 3, 4, SIZE)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def inputs():
    generator = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        for dtype in DTYPES:
            yield torch.randn(shape, generator=generator).to(dtype)
    for scale in (1e4, 1e-4, 3e2):
        for dtype in DTYPES:
            yield (torch.randn(2, 3, SIZE, generator=generator) * scale).to(dtype)
