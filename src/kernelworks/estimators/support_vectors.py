"""Classification by support vectors."""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from kernelworks.estimators.kernel_functions import KernelFunction, of_gamma
from kernelworks.estimators.points import Columns, as_points, centre_of, gamma_of
from kernelworks.estimators.working_set import Dual, solve_dual

__all__ = ["SVC"]

SMALL = 2048  # support vectors whose products are always blocks in float64


class SVC(ClassifierMixin, BaseEstimator):
    """Classification by support vectors: ``sign(sum_j a_j y_j k(x, x_j) + b)``; several classes by pairs of them.

    Args:
        C: the largest multiplier, a positive number.
        kernel: "linear", "poly", "rbf", "laplacian", "matern12", "matern32" or "matern52".
        degree, coef0: of "poly".
        gamma: of the kernel (``estimators/kernel_functions.py``): a number, "scale" or "auto".
        tol: by how much the optimality conditions may be violated.
        class_weight: factors of C by class, or "balanced".
        max_iter: rounds of a working set at most, -1 for as many as it takes (10,000 at most, and 10^6 pairs of points
            or 100 n).
        decision_function_shape: "ovr" for a value a class, "ovo" for one a pair of classes.
        device: where products with K are formed.

    Attributes: ``classes_``, ``support_`` (indices), ``support_vectors_``, ``dual_coef_`` [pairs, support vectors],
    ``intercept_`` [pairs], ``n_iter_`` [pairs] rounds.

    Memory: about n (d + 6) numbers and a working set's 256^2; K is never stored. A round is a product of n rows with at
    most 256 columns: 256 n (3 d + 2) flop, in float32, or in float64 where K's numbers are so large that ``tol`` asks
    for it.
    Raises: ValueError for parameters outside these; warns (ConvergenceWarning) where ``tol`` is not reached.
    Source: Chang and Lin, LIBSVM, 2011; ``sklearn.svm.SVC``.
    """

    def __init__(
        self, *, C: float = 1.0, kernel: str = "rbf", degree: int = 3, gamma: Any = "scale", coef0: float = 0.0,
        tol: float = 1e-3, class_weight: Any = None, max_iter: int = -1, decision_function_shape: str = "ovr",
        device: str = "cpu",
    ) -> None:  # fmt: skip
        self.C, self.kernel, self.degree, self.gamma, self.coef0 = C, kernel, degree, gamma, coef0
        self.tol, self.class_weight, self.max_iter, self.device = tol, class_weight, max_iter, device
        self.decision_function_shape = decision_function_shape

    def fit(self, X: Any, y: Any) -> SVC:
        """Fits to points X [n, d] and their classes y [n]."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"SVC needs at least 2 classes, got {len(self.classes_)} class")
        if not 0.0 < self.C < float("inf"):
            raise ValueError(f"C must be positive and finite, got {self.C!r}")
        if self.decision_function_shape not in ("ovr", "ovo"):
            raise ValueError(f"decision_function_shape must be 'ovr' or 'ovo', got {self.decision_function_shape!r}")
        self._gamma = gamma_of(self.gamma, X)
        self._centre = centre_of(self._kernel_function(), X)
        points = as_points(X, self._centre, self.device)
        limits = self.C * compute_class_weight(self.class_weight, classes=self.classes_, y=y)[codes]
        found: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Dual]] = []
        for first, second in combinations(range(len(self.classes_)), 2):
            inside = np.flatnonzero((codes == first) | (codes == second))
            signs = np.where(codes[inside] == first, 1.0, -1.0)
            if len(self.classes_) == 2:  # a positive value says the second class
                signs = -signs
            dual = self._solve(points[torch.from_numpy(inside)], signs, limits[inside])
            found.append((inside, signs, dual))
        self._keep(X, found)
        return self

    def _kernel_function(self) -> KernelFunction:
        return of_gamma(self.kernel, self._gamma, self.degree, self.coef0)

    def _solve(self, points: Tensor, signs: np.ndarray[Any, Any], limits: np.ndarray[Any, Any]) -> Dual:
        columns = Columns(self._kernel_function(), points)
        dual = solve_dual(columns, signs, limits, tol=self.tol, max_iter=self.max_iter)
        if not dual.violation <= self.tol:
            why = ", as near as float64 tells K's numbers apart: scale the features" * (dual.violation <= dual.floor)
            warnings.warn(
                f"the working sets stopped after {dual.rounds} rounds with a violation of {dual.violation:.1e}, above "
                f"tol={self.tol:.1e}{why}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return dual

    def _keep(self, x: np.ndarray[Any, Any], found: list[Any]) -> None:
        weights = np.zeros((len(found), len(x)))
        for row, (inside, signs, dual) in zip(weights, found, strict=True):
            row[inside] = signs * dual.multipliers
        self.support_ = np.flatnonzero(np.any(weights != 0, 0))
        self.support_vectors_ = x[self.support_]
        self.dual_coef_ = weights[:, self.support_]
        self.intercept_ = np.array([dual.intercept for _, _, dual in found])
        self.n_iter_ = np.array([dual.rounds for _, _, dual in found], dtype=np.int32)

    def _pairs(self, X: Any) -> np.ndarray[Any, Any]:
        """The value of every pair of classes [m, pairs]."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        made = np.zeros((len(X), len(self.intercept_)))
        if len(self.support_):
            points, known = (as_points(x, self._centre, self.device) for x in (X, self.support_vectors_))
            near = 0.0 if len(known) <= SMALL else 0.1 * self.tol
            everyone = np.arange(len(known))
            made, _ = Columns(self._kernel_function(), known, points).product(everyone, self.dual_coef_.T, near)
        values: np.ndarray[Any, Any] = made + self.intercept_
        return values

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """[m] of two classes, else [m, classes] (votes, and within equal ones the pairs' values) or [m, pairs]."""
        pairs = self._pairs(X)
        if len(self.classes_) == 2:
            one: np.ndarray[Any, Any] = pairs[:, 0]
            return one
        return pairs if self.decision_function_shape == "ovo" else self._votes(pairs)

    def _votes(self, pairs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        count = len(self.classes_)
        votes, sums = np.zeros((len(pairs), count)), np.zeros((len(pairs), count))
        for column, (first, second) in enumerate(combinations(range(count), 2)):
            value = pairs[:, column]
            sums[:, first] += value
            sums[:, second] -= value
            votes[:, first] += value > 0
            votes[:, second] += value <= 0
        made: np.ndarray[Any, Any] = votes + sums / (3 * (np.abs(sums) + 1))
        return made

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The classes of points X [m, d]."""
        pairs = self._pairs(X)
        if len(self.classes_) == 2:
            best = (pairs[:, 0] > 0).astype(int)
        else:
            best = self._votes(pairs).argmax(1)
        found: np.ndarray[Any, Any] = self.classes_[best]
        return found
