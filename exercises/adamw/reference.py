"""A step of AdamW, as torch has it."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, State, random


def case(n, step, about, eps=1e-3, **more):
    w, grad, m, v = random(n).standard_normal((4, n)).astype(np.float32)
    arrays = {"w": State(w), "grad": grad, "m": State(m), "v": State(np.abs(v))}
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": eps, "decay": 0.1, "step": step}
    return Case(about, {**arrays, "n": n, **numbers}, **more)


def cases():
    yield case(8, 1, "n = 8, the first step")
    yield case(13, 3, "n = 13, step 3")
    yield case(1, 100, "n = 1, step 100")
    yield case(67, 10_000, "n = 67, step 10000")


def timed():
    n = 1 << 17
    return case(n, 10, f"n = {n}", flop=16 * n, bytes=28 * n)


def update(w, grad, m, v, lr, beta1, beta2, eps, decay, step, *, corrected=True, inside=False, square=None,
           v_beta=None):  # fmt: skip
    lr, beta1, beta2, eps, decay = (float(np.float32(value)) for value in (lr, beta1, beta2, eps, decay))
    m = beta1 * m + float(np.float32(1) - np.float32(beta1)) * grad
    squared = grad**2 if square is None else square(m)
    kept = float(np.float32(v_beta or beta2))
    v = kept * v + float(np.float32(1) - np.float32(kept)) * squared
    c1, c2 = (1 - beta1**step, 1 - beta2**step) if corrected else (1.0, 1.0)
    root = np.sqrt(v / c2 + eps) if inside else np.sqrt(v / c2) + eps
    return {"w": w - lr * decay * w - lr * (m / c1) / root, "m": m, "v": v}


def reference(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step):
    return update(w, grad, m, v, lr, beta1, beta2, eps, decay, step)


def bound(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step):
    size = beta1 * np.abs(m) + (1 - beta1) * np.abs(grad)
    after = reference(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step)
    moved = lr * size / (1 - beta1**step) / (np.sqrt(after["v"] / (1 - beta2**step)) + eps)
    limits = {"w": np.abs(w) + moved, "m": size, "v": after["v"]}
    return {name: 12 * HALF_ULP * value + TINY for name, value in limits.items()}


def plain_adam(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step):
    return update(w, grad + float(np.float32(decay)) * w, m, v, lr, beta1, beta2, eps, 0.0, step)


MISTAKES = {
    "v is made with beta1, too: beta1 for both": lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
        w, grad, m, v, lr, beta1, beta2, eps, decay, step, v_beta=beta1
    ),
    "decay and the corrections are missing": lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
        w, grad, m, v, lr, beta1, beta2, eps, 0.0, step, corrected=False
    ),
    "the corrections of the first steps are missing": (
        lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
            w, grad, m, v, lr, beta1, beta2, eps, decay, step, corrected=False
        )
    ),
    "eps is added inside the root": lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
        w, grad, m, v, lr, beta1, beta2, eps, decay, step, inside=True
    ),
    "decay is in the gradient: that is Adam with decay, not AdamW": plain_adam,
    "v takes the square of m, not of the gradient": (
        lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
            w, grad, m, v, lr, beta1, beta2, eps, decay, step, square=np.square
        )
    ),
}
