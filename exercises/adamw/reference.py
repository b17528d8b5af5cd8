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


def update(w, grad, m, v, lr, beta1, beta2, eps, decay, step, *, corrected=(True, True), inside=False, square=None,
           v_beta=None, late=False, outside=False):  # fmt: skip
    lr, beta1, beta2, eps, decay = (float(np.float32(value)) for value in (lr, beta1, beta2, eps, decay))
    m = beta1 * m + float(np.float32(1) - np.float32(beta1)) * grad
    squared = grad**2 if square is None else square(m)
    kept = float(np.float32(v_beta or beta2))
    v = kept * v + float(np.float32(1) - np.float32(kept)) * squared
    c1, c2 = (1 - beta**step if each else 1.0 for beta, each in zip((beta1, beta2), corrected, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(v / c2 + eps) if inside else np.sqrt(v / c2) + (0 if outside else eps)
        moved = lr * ((m / c1) / root + (eps if outside else 0))
    after = (w - moved) * (1 - lr * decay) if late else w - lr * decay * w - moved
    return {"w": after, "m": m, "v": v}


def reference(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step):
    return update(w, grad, m, v, lr, beta1, beta2, eps, decay, step)


def bound(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step):
    size = beta1 * np.abs(m) + (1 - beta1) * np.abs(grad)
    after = reference(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step)
    moved = lr * size / (1 - beta1**step) / (np.sqrt(after["v"] / (1 - beta2**step)) + eps)
    limits = {"w": np.abs(w) + moved, "m": size, "v": after["v"]}
    return {name: 12 * HALF_ULP * value + TINY for name, value in limits.items()}


def changed(arguments, **how):
    """A step with one thing done in another way, or with another number."""
    names = ("w", "grad", "m", "v", "lr", "beta1", "beta2", "eps", "decay", "step")
    given = {name: arguments[name] for name in names}
    return update(**(given | {name: value for name, value in how.items() if name in given}),
                  **{name: value for name, value in how.items() if name not in given})  # fmt: skip


def kept(name, beta):
    """The corrected mean is what is kept."""

    def step_of(**arguments):
        found = changed(arguments)
        return found | {name: found[name] / (1 - float(np.float32(arguments[beta])) ** arguments["step"])}

    return step_of


def without_root(**arguments):
    found = changed(arguments)
    lr, eps, decay = (float(np.float32(arguments[name])) for name in ("lr", "eps", "decay"))
    c1, c2 = (1 - float(np.float32(arguments[beta])) ** arguments["step"] for beta in ("beta1", "beta2"))
    w = arguments["w"]
    return found | {"w": w - lr * decay * w - lr * (found["m"] / c1) / (found["v"] / c2 + eps)}


def undamped(**arguments):
    """m without the factor 1 - beta1, and w by it."""
    lr, beta1, beta2, eps, decay = (
        float(np.float32(arguments[name])) for name in ("lr", "beta1", "beta2", "eps", "decay")
    )
    found, w = changed(arguments), arguments["w"]
    m = beta1 * arguments["m"] + arguments["grad"]
    c1, c2 = 1 - beta1 ** arguments["step"], 1 - beta2 ** arguments["step"]
    return found | {"m": m, "w": w - lr * decay * w - lr * (m / c1) / (np.sqrt(found["v"] / c2) + eps)}


def plain_adam(w, grad, m, v, n, lr, beta1, beta2, eps, decay, step):
    return update(w, grad + float(np.float32(decay)) * w, m, v, lr, beta1, beta2, eps, 0.0, step)


MISTAKES = {
    "v is made with beta1, too: beta1 for both": lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
        w, grad, m, v, lr, beta1, beta2, eps, decay, step, v_beta=beta1
    ),
    "decay and the corrections are missing": lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
        w, grad, m, v, lr, beta1, beta2, eps, 0.0, step, corrected=(False, False)
    ),
    "the corrections of the first steps are missing": (
        lambda w, grad, m, v, n, lr, beta1, beta2, eps, decay, step: update(
            w, grad, m, v, lr, beta1, beta2, eps, decay, step, corrected=(False, False)
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
    "the correction of m is missing: m / (1 - beta1^step)": lambda **a: changed(a, corrected=(False, True)),
    "the correction of v is missing: v / (1 - beta2^step)": lambda **a: changed(a, corrected=(True, False)),
    "decay is not used": lambda **a: changed(a, decay=0.0),
    "decay is not multiplied by lr: w - lr decay w": lambda **a: changed(a, decay=a["decay"] / a["lr"]),
    "decay is taken from w after the step: before it": lambda **a: changed(a, late=True),
    "eps is not used": lambda **a: changed(a, eps=0.0),
    "eps is added to the quotient: it stands in the divisor, so put root + eps into ( )": lambda **a: changed(
        a, outside=True
    ),
    "the root of v is missing": without_root,
    "step is one too large: it counts from 1 already": lambda **a: changed(a, step=a["step"] + 1),
    "step is one too small: it counts from 1": lambda **a: changed(a, step=a["step"] - 1),
    "v takes the gradient, not its square": lambda **a: changed(a, square=lambda m: a["grad"]),
    "m is kept corrected: only w takes m / (1 - beta1^step)": kept("m", "beta1"),
    "v is kept corrected: only w takes v / (1 - beta2^step)": kept("v", "beta2"),
    "m lacks the factor 1 - beta1 of the gradient": undamped,
}
