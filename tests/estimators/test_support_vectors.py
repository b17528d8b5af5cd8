"""Support vector machines end, at the optimum: scikit-learn's own checks with each kernel, scikit-learn's answers where
LIBSVM has some, and the optimality conditions with K in float64 where it takes millions of pairs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn.svm
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise
from sklearn.utils.estimator_checks import check_estimator

from kernelworks.estimators import SVC, points

TOL = 1e-3
KERNELS = ("linear", "poly", "rbf")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of small products: their threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(kind: str, count: int, seed: int = 1) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 4))
    y = (x[:, 0] + 0.5 * x[:, 1] ** 2 + 0.5 * random.normal(size=count) > 0.3).astype(int)
    if kind == "badly scaled":
        x = x * np.array([1e3, 1.0, 1e-3, 30.0])
    elif kind == "duplicates":  # with classes of their own
        x[count // 2 :] = x[: count - count // 2]
    elif kind == "far from the origin":
        x = x + 20.0
    elif kind == "unlearnable":
        x = 20 * random.uniform(size=(count, 5))
        y = x[:, 0].astype(int) % 2
    elif kind == "one feature":
        x = 3 * random.uniform(size=(count, 1))
        y = x[:, 0].astype(int) % 2
    return x, y


KINDS = ("plain", "badly scaled", "duplicates", "far from the origin", "unlearnable", "one feature")


def matrix(kernel: str, x: Any, gamma: float) -> Any:
    if kernel == "linear":
        return x @ x.T
    if kernel == "poly":
        return pairwise.polynomial_kernel(x, degree=3, gamma=gamma, coef0=0.0)
    return pairwise.rbf_kernel(x, gamma=gamma)


def conditions(model: Any, x: Any, y: Any, k: Any) -> tuple[float, float]:
    """The violation of the optimality conditions, and the dual's value, of a model of two classes."""
    signs, b = np.where(y == 1, 1.0, -1.0), np.zeros(len(x))
    b[model.support_] = model.dual_coef_[0]
    a, f = signs * b, k @ b - signs
    assert (a >= 0).all() and (a <= model.C).all() and abs(b.sum()) <= 1e-9 * np.abs(b).sum()
    up = np.where(signs > 0, a < model.C, a > 0)
    down = np.where(signs > 0, a > 0, a < model.C)
    return float((-f[up]).max() - (-f[down]).min()), float(0.5 * b @ (f + signs) - signs @ b)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scikit_learns_checks_end_and_pass(kernel: str) -> None:
    told = check_estimator(SVC(kernel=kernel), on_fail=None)
    assert len(told) > 40 and [(t["check_name"], t["exception"]) for t in told if t["status"] == "failed"] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("C", [1.0, 100.0])
def test_the_optimality_conditions_hold(kernel: str, kind: str, C: float) -> None:
    """Of more points than a working set has, and without a warning."""
    x, y = drawn(kind, 270)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = SVC(C=C, kernel=kernel, tol=TOL).fit(x, y)
    violation, _ = conditions(ours, x, y, matrix(kernel, x, ours._gamma))
    assert violation <= 1.01 * TOL


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_points_than_a_working_set_need_few_rounds(kernel: str) -> None:
    """Where points between their limits were left out of the set, those at them moved by little: 10,000 rounds."""
    x, y = drawn("unlearnable", 700, seed=3)
    ours = SVC(C=10.0, kernel=kernel, tol=TOL).fit(x, y)
    violation, _ = conditions(ours, x, y, matrix(kernel, x, ours._gamma))
    assert violation <= 1.01 * TOL and ours.n_iter_[0] < 500


# What LIBSVM solves in less than a second.
LIBSVMS = [
    (kernel, kind, C)
    for kernel in KERNELS
    for kind in KINDS
    for C in (1.0, 100.0)
    if (kernel == "rbf" or C == 1.0) and (kernel, kind) not in {
        ("linear", "badly scaled"), ("linear", "unlearnable"), ("poly", "far from the origin"), ("poly", "one feature")
    }
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "kind", "C"), LIBSVMS)
def test_the_answers_are_libsvms(kernel: str, kind: str, C: float) -> None:
    """Decision values, where the points say them apart the support vectors, and the dual's value."""
    x, y = drawn(kind, 120, seed=2)
    tol = 1e-6
    ours, theirs = (make(C=C, kernel=kernel, tol=tol).fit(x, y) for make in (SVC, sklearn.svm.SVC))
    k = matrix(kernel, x, ours._gamma)
    found = [conditions(model, x, y, k) for model in (ours, theirs)]
    assert found[0][0] <= 1.01 * tol and found[0][1] == pytest.approx(found[1][1], rel=1e-6)
    values = [model.decision_function(x) for model in (ours, theirs)]
    # The normal vector is the one of least length; two that violate by tol are sqrt(2 C n tol) apart at most, and so
    # are values, times the root of k(x, x).
    assert np.abs(values[0] - values[1]).max() <= tol + 2 * np.sqrt(2 * C * len(x) * tol * k.diagonal().max())
    if kernel == "rbf" and kind != "duplicates":
        assert np.array_equal(ours.support_, np.sort(theirs.support_))
        assert np.abs(values[0] - values[1]).max() <= 1e-3


@pytest.mark.parametrize(("scale", "exact"), [(1.0, True), (0.01, False)])
def test_products_are_in_float64_where_float32_could_not_meet_tol(
    monkeypatch: pytest.MonkeyPatch, scale: float, exact: bool
) -> None:
    """K's numbers reach 1e7: float32's roundings of f are more than tol, and rounds would go in a circle."""
    monkeypatch.setattr(points, "STORED_NUMBERS", 0)
    original, dtypes = points.products, set()

    def watched(*args: Any) -> Any:
        dtypes.add(args[-1])
        return original(*args)

    monkeypatch.setattr(points, "products", watched)
    x, y = drawn("far from the origin", 280, seed=4)
    ours = SVC(kernel="poly", tol=TOL, gamma=0.1).fit(scale * x, y)
    assert conditions(ours, scale * x, y, matrix("poly", scale * x, 0.1))[0] <= 1.25 * TOL
    assert (True in dtypes) == exact


def test_what_float64_cannot_tell_apart_ends_with_a_warning() -> None:
    """K's numbers times C are 1e25, and what the conditions compare is 1."""
    x, y = drawn("far from the origin", 120, seed=5)
    with pytest.warns(ConvergenceWarning, match="scale the features"):
        SVC(kernel="poly", gamma=1.0, C=1e3).fit(300 * x, y)
