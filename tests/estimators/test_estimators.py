"""Estimators: scikit-learn's own checks, and the answers of dense solves in float64."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise
from sklearn.utils.estimator_checks import check_estimator

from kernelworks.estimators import SVC, GaussianProcessRegressor, KernelRidge
from kernelworks.estimators import kernel_functions as kernels
from kernelworks.estimators.linear_solve import GradientSolver, partial_cholesky

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(300, 3))
Y = np.sin(X).sum(1) + 0.1 * RANDOM.normal(size=300)
NEW = RANDOM.normal(size=(40, 3))
GAMMA = 0.4
# K in float64 by the textbook, of gamma.
DENSE: dict[str, Any] = {
    "linear": lambda a, b: a @ b.T,
    "poly": lambda a, b: pairwise.polynomial_kernel(a, b, degree=3, gamma=GAMMA, coef0=1.0),
    "rbf": lambda a, b: pairwise.rbf_kernel(a, b, GAMMA),
    "laplacian": lambda a, b: pairwise.laplacian_kernel(a, b, GAMMA),
    "matern12": lambda a, b: np.exp(-GAMMA * distances(a, b)),
    "matern32": lambda a, b: (lambda z: (1 + z) * np.exp(-z))(3**0.5 * GAMMA * distances(a, b)),
    "matern52": lambda a, b: (lambda z: (1 + z + z**2 / 3) * np.exp(-z))(5**0.5 * GAMMA * distances(a, b)),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of small products: their threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def distances(a: Any, b: Any) -> Any:
    return np.sqrt(((a[:, None] - b[None]) ** 2).sum(2))


ESTIMATORS = [KernelRidge(kernel="rbf"), KernelRidge(kernel="poly", solver="cg"), GaussianProcessRegressor()]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_scikit_learns_checks_pass(estimator: Any) -> None:
    told = check_estimator(estimator, on_fail=None)
    assert len(told) > 40 and [(t["check_name"], t["exception"]) for t in told if t["status"] == "failed"] == []


@pytest.mark.parametrize("kernel", DENSE)
@pytest.mark.parametrize(("solver", "within"), [("cholesky", 1e-9), ("cg", 2e-3)])
def test_ridge_is_the_dense_solve(kernel: str, solver: str, within: float) -> None:
    want = DENSE[kernel](NEW, X) @ np.linalg.solve(DENSE[kernel](X, X) + 0.1 * np.eye(300), Y)
    ours = KernelRidge(0.1, kernel=kernel, gamma=GAMMA, solver=solver).fit(X, Y)
    assert np.abs(ours.predict(NEW) - want).max() < within * np.abs(want).max()


@pytest.mark.parametrize("kernel", DENSE)
@pytest.mark.parametrize(("solver", "within"), [("cholesky", 1e-9), ("cg", 2e-3)])
def test_gaussian_process_is_the_dense_solve(kernel: str, solver: str, within: float) -> None:
    scale = {"rbf": (2 * GAMMA) ** -0.5, "poly": GAMMA**-0.5}.get(kernel, 1 / GAMMA)
    ours = GaussianProcessRegressor(
        kernel, length_scale=scale, constant=2.0, alpha=0.05, optimizer=None, solver=solver
    ).fit(X, Y)
    covariance, across = 2 * DENSE[kernel](X, X) + 0.05 * np.eye(300), 2 * DENSE[kernel](NEW, X)
    mean, deviation = ours.predict(NEW, return_std=True)
    want = across @ np.linalg.solve(covariance, Y)
    own = 2 * np.diag(DENSE[kernel](NEW, NEW))
    spread = np.sqrt(own - (across * np.linalg.solve(covariance, across.T).T).sum(1))
    assert np.abs(mean - want).max() < within * np.abs(want).max()
    assert np.abs(deviation - spread).max() < within
    again = pickle.loads(pickle.dumps(ours)).predict(NEW, return_std=True)
    assert np.allclose(again[0], mean, rtol=1e-12) and np.allclose(again[1], deviation, rtol=1e-12)


@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "laplacian", "matern32"])
def test_a_search_ends_where_the_likelihood_is_flat(kernel: str) -> None:
    ours = GaussianProcessRegressor(kernel, alpha=0.01).fit(X[:80], Y[:80])
    points, targets = torch.from_numpy(X[:80] - ours._centre), torch.from_numpy(Y[:80, None])
    apart = ours._function().distances(points, points)
    at = (ours.length_scale_, ours.constant_)
    value, slope = ours._likelihood(apart, targets, *at)
    assert value == pytest.approx(ours.log_marginal_likelihood_value_) and np.abs(slope).max() < 1e-2
    for i in range(2):  # and the gradient is that of the value
        moved = [
            ours._likelihood(apart, targets, *np.where(np.arange(2) == i, 1 + h, 1) * (1.5, 0.7)) for h in (1e-5, -1e-5)
        ]
        _, slope = ours._likelihood(apart, targets, 1.5, 0.7)
        assert (moved[0][0] - moved[1][0]) / 2e-5 == pytest.approx(slope[i], rel=1e-4)


@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vectors_are_those_of_libsvm(kernel: str, classes: int) -> None:
    import sklearn.svm

    labels = np.digitize(X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.3 * RANDOM.normal(size=300), [0.2, 1.0][: classes - 1])
    settings = {"C": 2.0, "kernel": kernel, "tol": 1e-4}
    ours, theirs = SVC(**settings).fit(X, labels), sklearn.svm.SVC(**settings).fit(X, labels)
    assert (ours.predict(NEW) == theirs.predict(NEW)).mean() > 0.97
    assert np.abs(ours.decision_function(NEW) - theirs.decision_function(NEW)).max() < 2e-2
    assert len(ours.support_) == pytest.approx(len(theirs.support_), abs=3)
    pairs = (np.abs(ours.dual_coef_).sum(), ours.dual_coef_.sum(1))
    assert pairs[0] > 0 and np.abs(pairs[1]).max() < 1e-9  # y^T a = 0


@pytest.mark.parametrize(("degree", "coef0"), [(0, 1.0), (1, 0.0), (2, 0.0), (3, 0.0)])
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_polynomials_of_any_degree(degree: int, coef0: float, solver: str) -> None:
    """Of degree 0 all points are alike; an odd degree keeps the sign of a negative base."""
    make: Any = lambda a, b: (GAMMA * a @ b.T + coef0) ** degree  # noqa: E731
    name = "polynomial" if degree % 2 else "poly"  # scikit-learn's takes both
    ours = KernelRidge(2.0, kernel=name, gamma=GAMMA, degree=degree, coef0=coef0, solver=solver)
    few = X[:60]
    want = make(NEW, few) @ np.linalg.solve(make(few, few) + 2.0 * np.eye(60), Y[:60])
    assert np.abs(ours.fit(few, Y[:60]).predict(NEW) - want).max() < 2e-3 * np.abs(want).max()


def test_points_far_from_the_origin_and_close_together() -> None:
    """1e4 from the origin and 1e-3 apart, and some of them twice."""
    near = 1e-3 * RANDOM.normal(size=(120, 2))
    near[60:90] = near[:30]
    targets, scale = RANDOM.normal(size=120), 2e-3
    k = pairwise.rbf_kernel(near, gamma=1 / (2 * scale**2))
    want = k @ np.linalg.solve(k + 0.1 * np.eye(120), targets)
    for solver in ("cholesky", "cg"):
        ours = KernelRidge(0.1, kernel="rbf", gamma=1 / (2 * scale**2), solver=solver).fit(1e4 + near, targets)
        assert np.abs(ours.predict(1e4 + near) - want).max() < 2e-3
    labels = targets > 0
    moved, home = (SVC(gamma=1 / (2 * scale**2)).fit(p, labels) for p in (1e4 + near, near))
    values = moved.decision_function(1e4 + near), home.decision_function(near)
    assert np.abs(values[0] - values[1]).max() < 2e-2


def test_whole_numbers_are_parameters() -> None:
    whole = GaussianProcessRegressor(length_scale=2, constant=1, alpha=1, optimizer=None).fit(X, Y)
    real = GaussianProcessRegressor(length_scale=2.0, constant=1.0, alpha=1.0, optimizer=None).fit(X, Y)
    assert np.array_equal(whole.predict(NEW), real.predict(NEW))
    assert np.array_equal(
        KernelRidge(1, kernel="rbf", gamma=1).fit(X, Y).predict(NEW),
        KernelRidge(1.0, kernel="rbf", gamma=1.0).fit(X, Y).predict(NEW),
    )


def test_targets_have_each_their_alpha() -> None:
    targets = np.stack([Y, Y**2, -Y], 1)
    ours = KernelRidge([0.1, 1.0, 0.1], kernel="rbf", gamma=GAMMA).fit(X, targets).predict(NEW)
    for column, alpha in enumerate((0.1, 1.0, 0.1)):
        alone = KernelRidge(alpha, kernel="rbf", gamma=GAMMA).fit(X, targets[:, column]).predict(NEW)
        assert np.allclose(ours[:, column], alone, rtol=1e-9)
    with pytest.raises(ValueError, match="alpha must be positive"):
        KernelRidge([0.1, 0.2]).fit(X, targets)


def test_a_preconditioner_holds_what_is_worst_served() -> None:
    """Points on a line have a K of low rank; its partial factor is K, and conjugate gradients take a few steps."""
    points = torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None]
    kernel = kernels.of_gamma("rbf", 0.5)
    k = kernel.block(points, points)
    low = partial_cholesky(kernel, points, 30, 1e-12)
    assert low.shape[1] < 15 and float((k - low @ low.T).abs().max()) < 1e-9
    noise = torch.full((200,), 1e-2, dtype=torch.float64)
    found = [GradientSolver(kernel, points, noise, 1e-4, 500, rank) for rank in (0, 30)]
    right = torch.sin(3 * points)
    for solver in found:
        image = k @ solver.solve(right) + 1e-2 * solver.solve(right)
        assert float((image - right).norm() / right.norm()) < 1e-3
    assert found[1].iterations < found[0].iterations


def test_what_roundings_took_of_a_covariance_is_added() -> None:
    """Products of 1e4 to the third power beside a noise of 1e-6: K is definite, and its float64 form is not."""
    points = 100 + X[:30, :2]
    for estimator in (
        GaussianProcessRegressor("poly", optimizer=None), KernelRidge(1e-6, kernel="poly", gamma=1.0)
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="not positive definite in float64"):
            estimator.fit(points, Y[:30])
        assert np.abs(estimator.predict(points) - Y[:30]).mean() < np.abs(Y[:30]).mean()
    with pytest.raises(RuntimeError, match="not positive-definite"):  # what no rounding made is not mended
        KernelRidge(1e-6, kernel="poly", gamma=1.0, coef0=-5.0).fit(X[:30], Y[:30])


def test_a_tolerance_that_is_not_reached_is_told() -> None:
    with pytest.warns(ConvergenceWarning, match="relative residual"):
        KernelRidge(1e-7, kernel="rbf", gamma=GAMMA, solver="cg", tol=1e-12, max_iter=4).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match="working sets stopped after 1 rounds"):
        SVC(C=1e4, kernel="linear", max_iter=1, tol=1e-9).fit(X, RANDOM.normal(size=300) < Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRidge(0.1, kernel="rbf", gamma=GAMMA, solver="cg").fit(X, Y)


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        (KernelRidge(kernel="cosine"), "kernel must be one of linear, poly"), (KernelRidge(solver="lu"), "solver must"),
        (KernelRidge(kernel="rbf", gamma=-1), "gamma must be positive"), (SVC(C=0), "C must be positive"),
        (GaussianProcessRegressor(kernel="cosine"), "kernel must be one of linear, poly"),
        (GaussianProcessRegressor(kernel="poly", coef0=-1), "coef0 must be finite and at least 0"),
        (SVC(kernel="poly", degree=2.5), "degree must be a whole number"),
        (KernelRidge(kernel="poly", degree=-1), "degree must be a whole number"),
        (GaussianProcessRegressor(length_scale=0), "length_scale must be positive"),
        (GaussianProcessRegressor(optimizer="adam"), "optimizer must be"),
        (SVC(decision_function_shape="all"), "decision_function_shape must"),
    ],
)  # fmt: skip
def test_parameters_that_are_none_are_refused(estimator: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        estimator.fit(X, (Y > 0).astype(int))


def test_no_product_stores_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "STORED_NUMBERS", 2000)
    sizes: list[int] = []
    original = torch.cdist

    def watched(a: Any, b: Any, **how: Any) -> Any:
        sizes.append(a.shape[0] * b.shape[0])
        return original(a, b, **how)

    monkeypatch.setattr(torch, "cdist", watched)
    ours = KernelRidge(0.1, kernel="matern12", gamma=GAMMA, solver="cg").fit(X, Y)
    assert max(sizes, default=0) <= 16 * 300 and ours.n_iter_ > 1


@pytest.mark.usefixtures("quick_processes")
def test_without_scikit_learn_it_is_said_what_to_install() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import kernelworks.estimators as e\n"
        "try: e.SVC\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "kernelworks.estimators.SVC needs scikit-learn: pip install scikit-learn" in done.stdout
