"""Gaussian process regression."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from kernelworks.estimators.kernel_functions import KernelFunction, need_kernel
from kernelworks.estimators.linear_solve import SMALL, CholeskySolver, GradientSolver, make_solver
from kernelworks.estimators.points import as_points, centre_of, products

__all__ = ["GaussianProcessRegressor"]

DEVIATION_POINTS = 64  # points of a prediction whose deviations are solved for together


class GaussianProcessRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression with the covariance ``constant k(x, x') + alpha delta``, of mean zero.

    Args:
        kernel: "linear", "poly", "rbf", "laplacian", "matern12", "matern32" or "matern52".
        length_scale: of the kernel, a positive number; where the search begins. "linear" has none.
        degree, coef0: of "poly": a whole number of at least 0, and a number of at least 0, without which it is the
            covariance of no process.
        constant: the variance of the process (a factor of "linear" and "poly"), a positive number; where the search
            begins.
        alpha: the variance of the noise, a positive number.
        optimizer: "fmin_l_bfgs_b" searches the length scale and the constant of the largest likelihood, of at most
            ``subset`` points drawn at random; None keeps them.
        length_scale_bounds, constant_bounds: of the search.
        subset: points whose likelihood is formed at most: subset^2 numbers.
        normalize_y: whether targets are centred and scaled to variance 1 first.
        solver, tol, max_iter, device: as in ``KernelRidge``.
        random_state: draws the subset.

    Attributes: ``length_scale_``, ``constant_``, ``alpha_`` [n] or [n, targets] (the weights), ``X_train_``,
    ``log_marginal_likelihood_value_`` of the points that were searched on (None without a search).

    Memory of "cg" as ``KernelRidge``'s. Standard deviations take a solve each, 64 at a time.
    Raises: ValueError for parameters outside these; warns (ConvergenceWarning) where ``tol`` is not reached.
    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1;
    ``sklearn.gaussian_process.GaussianProcessRegressor``.
    """

    def __init__(
        self, kernel: str = "rbf", *, length_scale: float = 1.0, constant: float = 1.0, alpha: float = 1e-6,
        optimizer: str | None = "fmin_l_bfgs_b", length_scale_bounds: tuple[float, float] = (1e-5, 1e5),
        constant_bounds: tuple[float, float] = (1e-5, 1e5), subset: int = 512, normalize_y: bool = False,
        solver: str = "auto", tol: float = 1e-5, max_iter: int = 1000, device: str = "cpu", random_state: Any = None,
        degree: int = 3, coef0: float = 1.0,
    ) -> None:  # fmt: skip
        self.degree, self.coef0 = degree, coef0
        self.kernel, self.length_scale, self.constant, self.alpha = kernel, length_scale, constant, alpha
        self.optimizer, self.subset, self.normalize_y, self.random_state = optimizer, subset, normalize_y, random_state
        self.length_scale_bounds, self.constant_bounds = length_scale_bounds, constant_bounds
        self.solver, self.tol, self.max_iter, self.device = solver, tol, max_iter, device

    # ------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any) -> GaussianProcessRegressor:
        """Fits to points X [n, d] and targets y [n] or [n, targets]."""
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        self._check()
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        self._mean, self._spread = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
        if self.normalize_y:
            spread = targets.std(0)
            self._mean, self._spread = targets.mean(0), np.where(spread > 0, spread, 1.0)
        scaled = torch.from_numpy((targets - self._mean) / self._spread).to(self.device)
        self._shape = y.shape[1:]
        self._centre = centre_of(self._function_of(1.0), X)
        points = as_points(X, self._centre, self.device)
        self.length_scale_, self.constant_ = float(self.length_scale), float(self.constant)
        self.log_marginal_likelihood_value_: float | None = None
        if self.optimizer is not None:
            self._search(points, scaled)
        self._solver = self._make_solver(points)
        self.alpha_ = (self._solver.solve(scaled) / self.constant_).cpu().numpy().reshape(y.shape)
        self.n_iter_ = max(1, getattr(self._solver, "iterations", 1))
        self.X_train_, self.y_train_ = X, y
        return self

    def _check(self) -> None:
        need_kernel(self.kernel, self.degree)
        if not 0.0 <= self.coef0 < float("inf"):
            raise ValueError(f"coef0 must be finite and at least 0, got {self.coef0!r}")
        for name in ("length_scale", "constant", "alpha"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)!r}")
        if self.optimizer not in (None, "fmin_l_bfgs_b"):
            raise ValueError(f"optimizer must be 'fmin_l_bfgs_b' or None, got {self.optimizer!r}")

    def _function(self) -> KernelFunction:
        return self._function_of(self.length_scale_)

    def _function_of(self, length_scale: float) -> KernelFunction:
        return KernelFunction(self.kernel, length_scale, int(self.degree), float(self.coef0))

    def _make_solver(self, points: Tensor) -> CholeskySolver | GradientSolver:
        """Of ``K + alpha / constant``: what it solves is over the constant."""
        noise = torch.full((len(points),), self.alpha / self.constant_, dtype=torch.float64, device=self.device)
        return make_solver(
            self._function(), points, noise, solver=self.solver, tol=self.tol, max_iter=self.max_iter
        )  # fmt: skip

    def _search(self, points: Tensor, targets: Tensor) -> None:
        """The length scale and the constant of the largest likelihood, by gradients."""
        from scipy.optimize import minimize

        if len(points) > self.subset:
            drawn = check_random_state(self.random_state).choice(len(points), self.subset, replace=False)
            points, targets = points[torch.from_numpy(drawn)], targets[torch.from_numpy(drawn)]

        distances = self._function().distances(points, points)

        def loss(logs: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            try:
                value, slope = self._likelihood(distances, targets, *np.exp(logs))
            except RuntimeError:  # torch.linalg.LinAlgError: no covariance in float64
                return np.inf, np.zeros(2)
            return -value, -slope

        bounds = np.log([self.length_scale_bounds, self.constant_bounds])
        start = np.clip(np.log([self.length_scale_, self.constant_]), bounds[:, 0], bounds[:, 1])
        found = minimize(loss, start, method="L-BFGS-B", jac=True, bounds=bounds)
        if not np.isfinite(found.fun):
            told = "no covariance of the search was positive definite: raise alpha"
            warnings.warn(told, ConvergenceWarning, stacklevel=3)
            return
        self.length_scale_, self.constant_ = (float(number) for number in np.exp(found.x))
        self.log_marginal_likelihood_value_ = -float(found.fun)

    def _likelihood(
        self, distances: Tensor, targets: Tensor, scale: float, constant: float
    ) -> tuple[float, np.ndarray[Any, Any]]:
        """The logarithm of the likelihood, and its gradient by those of the length scale and of the constant."""
        k, by_scale = self._function_of(float(scale)).of_distances(distances)
        covariance = constant * k
        covariance.diagonal().add_(self.alpha)
        factor = torch.linalg.cholesky(covariance)
        weights = torch.cholesky_solve(targets, factor)
        size, many = float(factor.diagonal().log().sum()), targets.shape[1]
        value = -0.5 * float((targets * weights).sum()) - many * size - 0.5 * targets.numel() * float(np.log(2 * np.pi))
        pull = weights @ weights.T - many * torch.cholesky_inverse(factor)  # twice the derivative by the covariance
        slope = [0.5 * constant * float((pull * by).sum()) for by in (by_scale, k)]
        return value, np.array(slope)

    # ------------------------------------------------------------ predict

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean at points X [m, d], and with ``return_std`` its standard deviation, of the process without
        noise."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        points, fitted = (as_points(x, self._centre, self.device) for x in (X, self.X_train_))
        weights = torch.from_numpy(self.alpha_.reshape(len(fitted), -1)).to(self.device)
        exact = isinstance(self._solver, CholeskySolver) or len(fitted) <= SMALL
        made = self.constant_ * products(self._function(), points, fitted, weights, exact)
        mean = (made * self._spread + self._mean).reshape(len(X), *self._shape)
        if not return_std:
            return mean
        deviation = self._deviation(points, fitted)[:, None] * self._spread
        return mean, deviation.reshape(len(X), *self._shape)

    def _deviation(self, points: Tensor, fitted: Tensor) -> np.ndarray[Any, Any]:
        found = []
        for part in points.split(DEVIATION_POINTS):
            k = self._function().block(fitted, part)
            if isinstance(self._solver, CholeskySolver):
                known = self._solver.half_solve(k).square().sum(0)
            else:
                known = (k * self._solver.solve(k)).sum(0)
            found.append(self.constant_ * (self._function().diagonal(part) - known).clamp(min=0.0))
        deviation: np.ndarray[Any, Any] = torch.cat(found).sqrt().cpu().numpy()
        return deviation

    def __getstate__(self) -> dict[str, Any]:
        """Without what solves, which is made again."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_solver"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "X_train_"):
            self._solver = self._make_solver(as_points(self.X_train_, self._centre, self.device))
