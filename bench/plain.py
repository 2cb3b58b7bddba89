r"""What a direct script does: one head, step by step in NumPy, with $\zeta$ and its derivatives by
adaptive quadrature.

Written from Marion et al. 2025 (Theorem 1, Definition 1) and sharing no formula with the library,
whose descent it must follow; `tests/test_bench.py` holds it to that.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.integrate import quad

from attlas.single_location.task import SingleLocation

Vector = Float[np.ndarray, " dim"]


def mean(f: Callable[[float], float], t: float, spread: float) -> float:
    r"""$E[f(t + sG)]$ with $G \sim N(0, 1)$."""
    # The default tolerance and a finite range are the quickest choice, and reach twelve
    # digits here.
    value, _ = quad(lambda g: f(t + spread * g) * math.exp(-g * g / 2), -10, 10)
    return value / math.sqrt(2 * math.pi)


def slope(x: float) -> float:
    """Derivative of erf; the next two are -2x and 4x^2 - 2 times as large."""
    return 2 / math.sqrt(math.pi) * math.exp(-x * x)


def square(x: float) -> float:
    return math.erf(x) ** 2


def square_1(x: float) -> float:
    """First derivative of erf^2."""
    return 2 * math.erf(x) * slope(x)


def square_2(x: float) -> float:
    first = slope(x)
    return 2 * first * (first - 2 * x * math.erf(x))


def square_3(x: float) -> float:
    first = slope(x)
    return 2 * first * ((4 * x * x - 2) * math.erf(x) - 6 * x * first)


def zeta(t: float, spread: float) -> float:
    return mean(square, t, spread)


def gradients(
    task: SingleLocation, k: Vector, v: Vector, overlaps: tuple[float, ...], lam: float
) -> tuple[Vector, Vector]:
    """Gradients of the population risk in k and in v."""
    kappa, nu, theta, eta, rho = overlaps
    m, gamma, length, _ = task.constants
    t, s, others = lam * m * kappa, lam * gamma, length - 1
    d = math.sqrt(1 + 2 * s**2)
    u = t / d
    # Means of erf and its derivatives over the informative token, and of erf^2 and its derivatives.
    e0, e1 = math.erf(u), slope(u) / d
    e2, e3 = -2 * u * e1 / d, (4 * u**2 - 2) * e1 / d**2
    z0, z1, z2, z3 = (mean(f, t, s) for f in (square, square_1, square_2, square_3))
    # E[erf(lam a) b] = c rho and E[erf(lam a)^2 b^2] = const + q rho^2 over another token.
    c = 2 * lam / math.sqrt(math.pi * (1 + 2 * lam**2))
    q = 8 * lam**2 / (math.pi * math.sqrt(1 + 4 * lam**2) * (1 + 2 * lam**2))

    g = lam * gamma**2
    signal = nu * e1 + lam * eta * (m * theta * e2 + g * rho * e3)
    square_part = (
        ((m * theta) ** 2 + gamma**2) * z1 + 2 * g * m * theta * rho * z2 + (g * rho) ** 2 * z3
    )
    by_kappa = (
        lam
        * m
        * (
            -2 * gamma**2 * signal
            + square_part
            + 2 * others * c * rho * (m * theta * e1 + g * rho * e2)
        )
    )
    by_nu = -2 * gamma**2 * e0
    by_theta = 2 * m * (-g * eta * e1 + m * theta * z0 + g * rho * z1 + others * c * rho * e0)
    by_eta = -2 * g * (m * theta * e1 + g * rho * e2)
    by_rho = -2 * g**2 * eta * e2 + 2 * g * m * theta * z1 + 2 * g**2 * rho * z2
    by_rho += (
        2 * others * (rho * (q + (length - 2) * c**2) + c * (m * theta * e0 + 2 * g * rho * e1))
    )
    by_k = by_kappa * task.k_star + by_eta * task.v_star + by_rho * v
    by_v = by_nu * task.v_star + by_theta * task.k_star + by_rho * k
    return by_k, by_v


def move(x: Vector, gradient: Vector, step_size: float) -> Vector:
    """A step against the gradient along the sphere, and back onto it."""
    moved = x - step_size * (gradient - (gradient @ x) * x)
    return moved / np.linalg.norm(moved)


def plain_descent(
    task: SingleLocation, k: Vector, v: Vector, *, lam: float, step_size: float, steps: int
) -> Float[np.ndarray, "record 5"]:
    """Projected gradient descent from unit vectors `k` and `v`; the five overlaps before each step
    and after the last."""
    path = []
    for _ in range(steps):
        overlaps = _overlaps(task, k, v)
        path.append(overlaps)
        by_k, by_v = gradients(task, k, v, overlaps, lam)
        k, v = move(k, by_k, step_size), move(v, by_v, step_size)
    return np.array([*path, _overlaps(task, k, v)])


def _overlaps(task: SingleLocation, k: Vector, v: Vector) -> tuple[float, ...]:
    products = k @ task.k_star, v @ task.v_star, v @ task.k_star, k @ task.v_star, k @ v
    return tuple(map(float, products))
