"""A step of SGD with momentum and weight decay, as torch has it."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, State, random


def case(n, about, lr=0.1, momentum=0.9, decay=0.01, **more):
    w, grad, velocity = random(n).standard_normal((3, n)).astype(np.float32)
    arrays = {"w": State(w), "grad": grad, "velocity": State(velocity)}
    return Case(about, {**arrays, "n": n, "lr": lr, "momentum": momentum, "decay": decay}, **more)


def cases():
    for n in (8, 1, 13, 67):
        yield case(n, f"n = {n}")
    yield case(5, "no momentum", momentum=0.0)


def timed():
    n = 1 << 18
    return case(n, f"n = {n}", flop=6 * n, bytes=20 * n)


def step(w, grad, velocity, lr, momentum, decay, share=1.0):
    lr, momentum, decay = (float(np.float32(value)) for value in (lr, momentum, decay))
    v = momentum * velocity + share * (grad + decay * w)
    return {"w": w - lr * v, "velocity": v}


def reference(w, grad, velocity, n, lr, momentum, decay):
    return step(w, grad, velocity, lr, momentum, decay)


def bound(w, grad, velocity, n, lr, momentum, decay):
    size = momentum * np.abs(velocity) + np.abs(grad) + decay * np.abs(w)
    return {"w": 6 * HALF_ULP * (np.abs(w) + lr * size) + TINY, "velocity": 6 * HALF_ULP * size + TINY}


def late(w, grad, velocity, n, lr, momentum, decay):
    return step(w, grad, velocity, lr, momentum, decay) | {"w": w - float(np.float32(lr)) * velocity}


def numbers(*values):
    return [float(np.float32(value)) for value in values]


def rate_inside(w, grad, velocity, n, lr, momentum, decay):
    lr, momentum, decay = numbers(lr, momentum, decay)
    v = momentum * velocity + lr * (grad + decay * w)
    return {"w": w - v, "velocity": v}


def apart(w, grad, velocity, n, lr, momentum, decay):
    lr, momentum, decay = numbers(lr, momentum, decay)
    v = momentum * velocity + grad
    return {"w": w - lr * decay * w - lr * v, "velocity": v}


def nesterov(w, grad, velocity, n, lr, momentum, decay):
    found = step(w, grad, velocity, lr, momentum, decay)
    lr, momentum, decay = numbers(lr, momentum, decay)
    return found | {"w": w - lr * (grad + decay * w + momentum * found["velocity"])}


def decay_of_new(w, grad, velocity, n, lr, momentum, decay):
    found = step(w, grad, velocity, lr, momentum, decay)
    lr, momentum, decay = numbers(lr, momentum, decay)
    return found | {"velocity": momentum * velocity + grad + decay * found["w"]}


MISTAKES = {
    "this is SGD without momentum and decay": lambda w, grad, velocity, n, lr, momentum, decay: {
        "w": w - float(np.float32(lr)) * grad, "velocity": velocity
    },
    "w takes the velocity of before the step": late,
    "velocity stays as it was": lambda w, grad, velocity, n, lr, momentum, decay: step(
        w, grad, velocity, lr, momentum, decay
    ) | {"velocity": velocity},
    "decay is not used": lambda w, grad, velocity, n, lr, momentum, decay: step(w, grad, velocity, lr, momentum, 0.0),
    "velocity is a running mean: the gradient is scaled by 1 - momentum": (
        lambda w, grad, velocity, n, lr, momentum, decay: step(w, grad, velocity, lr, momentum, decay, 1 - momentum)
    ),
    "it goes uphill": lambda w, grad, velocity, n, lr, momentum, decay: step(
        w, grad, velocity, -lr, momentum, decay
    ),
    "lr is in the velocity: here it stands before the velocity in the last line": rate_inside,
    "decay is apart from the gradient: here it is a part of g": apart,
    "this is Nesterov's momentum: here w takes the velocity itself": nesterov,
    "velocity takes the decay of the new w: compute g before w changes": decay_of_new,
    "decay has the wrong sign: g = grad + decay w": lambda w, grad, velocity, n, lr, momentum, decay: step(
        w, grad, velocity, lr, momentum, -decay
    ),
    "velocity is added to itself: it is momentum velocity + g": lambda w, grad, velocity, n, lr, momentum, decay: step(
        w, grad, velocity, lr, momentum + 1, decay
    ),
}  # fmt: skip
