r"""Bounds without the length: what a class of softmax heads can fit, and how far an output moves.

Heads are
$f(X) = \sum_h \sum_i \mathrm{softmax}_i(\langle u_h, x_i\rangle)\,\langle v_h, x_i\rangle$
with $|u_h| \le B_u$ (`query_norm`), $|v_h| \le B_v$ (`value_norm`) and tokens of norm at most R
(`radius`). The softmax is 1-Lipschitz from the largest to the sum of differences, so that
$|f_{u,v} - f_{u',v'}| \le B_vR^2|u - u'| + R|v - v'|$ for a head, at every length. Constants are
ours (Zhang et al. 2022 have the statement).
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from attlas.errors import positive, whole
from attlas.gaussian import Real


def head_rademacher(
    samples: Real,
    *,
    dim: int,
    query_norm: Real,
    value_norm: Real = 1.0,
    radius: Real = 1.0,
    heads: int = 1,
) -> Float[Any, "..."]:
    r"""Rademacher complexity of the class, of order $n^{-1/2}$ and without the length.

    $\mathrm{Rad}_n \le \min\left\{M,
    \inf_\epsilon\left[\epsilon + M\sqrt{2\ln N(\epsilon)/n}\right]\right\}$
    with $M = HB_vR$ (finite classes, on a cover) and the metric entropy in the supremum over
    sequences of any length, $\ln N(\epsilon) \le
    Hd\ln(1 + 4HB_uB_vR^2/\epsilon) + Hd\ln(1 + 4HB_vR/\epsilon)$.

    Arguments:
    - `samples` [...]: n.
    - `dim`: d, of the tokens; `heads`: H.
    - `query_norm`, `value_norm`, `radius` [...]: $B_u$, $B_v$ and R.
    """
    samples = np.asarray(positive("samples", samples), float)
    size = whole("heads", heads, 1) * whole("dim", dim, 1)
    largest = heads * np.asarray(value_norm) * radius
    axes = np.broadcast(samples, largest, query_norm).ndim
    grid = np.geomspace(1e-8, 1, 400).reshape(-1, *[1] * axes)  # epsilon as a share of M
    entropy = size * (np.log1p(4 * query_norm * radius / grid) + np.log1p(4 / grid))
    return np.minimum(largest, (largest * (grid + np.sqrt(2 * entropy / samples))).min(0))


def length_shift(
    length: Real, *, query_norm: Real, value_norm: Real = 1.0, radius: Real = 1.0
) -> Float[Any, "..."]:
    r"""How far a head's output is from its limit as the context grows.

    $\sqrt{E|f(X_L) - f(X_\infty)|^2} \le 2B_vR\sqrt{\rho_w/L}$ for tokens that are independent and
    alike given the latent, with $\rho_w = \cosh^2(B_uR)$ the most that $E w^2/(E w)^2$ can be for
    weights $w = e^{\langle u, x\rangle}$ (Kantorovich).

    Arguments:
    - `length` [...]: L, tokens of the context.
    - `query_norm`, `value_norm`, `radius` [...]: $B_u$, $B_v$ and R.
    """
    spread = np.cosh(np.asarray(query_norm, float) * radius)
    return 2 * value_norm * radius * spread / np.sqrt(np.asarray(positive("length", length), float))
