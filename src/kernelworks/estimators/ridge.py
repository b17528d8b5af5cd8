"""Kernel ridge regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelworks.estimators.kernel_functions import of_gamma
from kernelworks.estimators.linear_solve import SMALL, make_solver
from kernelworks.estimators.points import as_points, centre_of, gamma_of, products

__all__ = ["KernelRidge"]

KERNEL_NAMES = {"polynomial": "poly"}  # scikit-learn's class takes both


class KernelRidge(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Kernel ridge regression: ``f(x) = sum_j k(x, x_j) c_j`` with ``(K + alpha I) c = y``.

    Args:
        alpha: a positive number, or one for each target.
        kernel: "linear", "poly" (or "polynomial"), "rbf", "laplacian", "matern12", "matern32" or "matern52".
        gamma: of the kernel (``estimators/kernel_functions.py``): a number, "scale", or None for 1 / d.
        degree, coef0: of "poly".
        solver: "cholesky" stores K in float64 (n^2 numbers); "cg" stores none of it; "auto" is "cholesky" up to 1024
            points.
        tol: the relative residual at which "cg" stops.
        max_iter: its steps at most.
        device: where the work is done.

    Attributes: ``dual_coef_`` [n] or [n, targets], ``X_fit_`` [n, d], ``n_iter_`` (1 by "cholesky").

    Memory of "cg": about n (d + 100 + 6 targets) numbers. A step is one product with K: n^2 (3 d + 2 targets) flop.
    Raises: ValueError for parameters outside these; warns (ConvergenceWarning) where ``tol`` is not reached.
    Source: Murphy, Machine Learning, 2012, section 14.4.3; ``sklearn.kernel_ridge.KernelRidge``.
    """

    def __init__(
        self, alpha: Any = 1.0, *, kernel: str = "linear", gamma: Any = None, degree: int = 3, coef0: float = 1.0,
        solver: str = "auto", tol: float = 1e-5, max_iter: int = 1000, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.alpha, self.kernel, self.gamma, self.degree, self.coef0 = alpha, kernel, gamma, degree, coef0
        self.solver, self.tol, self.max_iter, self.device = solver, tol, max_iter, device

    def fit(self, X: Any, y: Any) -> KernelRidge:
        """Fits to points X [n, d] and targets y [n] or [n, targets]."""
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        kernel = self._kernel_function(X)
        self._centre = centre_of(kernel, X)
        points = as_points(X, self._centre, self.device)
        targets = torch.from_numpy(np.asarray(y, dtype=np.float64).reshape(len(X), -1)).to(self.device)
        alphas = np.atleast_1d(np.asarray(self.alpha, dtype=np.float64))
        if alphas.shape not in ((1,), (targets.shape[1],)) or not (alphas > 0).all():
            raise ValueError(f"alpha must be positive, one number or one for each of {targets.shape[1]} targets")
        coefficients, self.n_iter_ = torch.empty_like(targets), 1
        for alpha in np.unique(alphas):
            of_alpha = torch.from_numpy(np.flatnonzero(np.broadcast_to(alphas, targets.shape[1]) == alpha))
            noise = torch.full((len(X),), float(alpha), dtype=torch.float64, device=self.device)
            solver = make_solver(
                kernel, points, noise, solver=self.solver, tol=self.tol, max_iter=self.max_iter
            )  # fmt: skip
            coefficients[:, of_alpha] = solver.solve(targets[:, of_alpha])
            self.n_iter_ = max(self.n_iter_, getattr(solver, "iterations", 1))
        self.dual_coef_ = coefficients.cpu().numpy().reshape(y.shape)
        self.X_fit_ = X
        return self

    def _kernel_function(self, x: np.ndarray[Any, Any]) -> Any:
        if self.kernel != "linear":
            self._gamma = gamma_of(self.gamma, x)
        return self._fitted_kernel()

    def _fitted_kernel(self) -> Any:
        name = KERNEL_NAMES.get(self.kernel, self.kernel)
        return of_gamma(name, getattr(self, "_gamma", 1.0), self.degree, self.coef0)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The values at points X [m, d]: [m] or [m, targets]."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        kernel = self._fitted_kernel()
        fitted = as_points(self.X_fit_, self._centre, self.device)
        weights = torch.from_numpy(self.dual_coef_.reshape(len(self.X_fit_), -1)).to(self.device)
        exact = self.solver == "cholesky" or len(self.X_fit_) <= SMALL
        made = products(kernel, as_points(X, self._centre, self.device), fitted, weights, exact)
        return made.reshape(len(X), *self.dual_coef_.shape[1:])
