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

from attlas.covers import between
from attlas.errors import positive, whole
from attlas.gaussian import Real


def head_entropy(
    eps: Real,
    *,
    dim: int,
    query_norm: Real,
    value_norm: Real = 1.0,
    radius: Real = 1.0,
    heads: int = 1,
) -> Float[Any, "..."]:
    r"""Metric entropy of the class in the supremum over sequences of any length.

    $\ln N(\epsilon) \le Hd\ln\left(1 + \frac{4HB_uB_vR^2}{\epsilon}\right)
    + Hd\ln\left(1 + \frac{4HB_vR}{\epsilon}\right)$.
    """
    size = whole("heads", heads, 1) * whole("dim", dim, 1)
    scale = 4 * heads * value_norm * radius / np.asarray(positive("eps", eps), float)
    return size * (np.log1p(scale * query_norm * radius) + np.log1p(scale))


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
    with $M = HB_vR$ (finite classes, on a cover).
    """
    samples = np.asarray(positive("samples", samples), float)
    largest = heads * np.asarray(value_norm) * radius
    grid = np.geomspace(1e-8, 1, 400).reshape(
        -1, *[1] * np.broadcast(samples, largest, query_norm).ndim
    )
    norms = {"query_norm": query_norm, "value_norm": value_norm, "radius": radius}
    entropy = head_entropy(grid * largest, dim=dim, heads=heads, **norms)
    return np.minimum(largest, (grid * largest + largest * np.sqrt(2 * entropy / samples)).min(0))


def head_risk_gap(
    samples: Real, *, delta: Real = 0.05, label: Real = 1.0, **norms: Any
) -> Float[Any, "..."]:
    r"""What the risk exceeds the empirical risk by, for all heads of the class at once.

    With probability $1 - \delta$ at most
    $4(M + Y)\,\mathrm{Rad}_n + (M + Y)^2\sqrt{\frac{\ln(1/\delta)}{2n}}$ for the squared loss on
    labels of size at most Y (`label`), and always at most $(M + Y)^2$. `norms` are those of
    `head_rademacher`.
    """
    largest = norms.get("heads", 1) * norms.get("value_norm", 1.0) * norms.get("radius", 1.0)
    scale = largest + label
    deviation = np.log(1 / between("delta", delta)) / (2 * np.asarray(samples, float))
    gap = 4 * scale * head_rademacher(samples, **norms) + scale**2 * np.sqrt(deviation)
    return np.minimum(scale**2, gap)


def deep_gap(
    samples: Real,
    *,
    depth: int,
    dim: int,
    hidden: int,
    head_dim: int,
    outputs: int = 1,
    heads: int = 1,
    norms: Any = (),
    radius: Real = 1.0,
    delta: Real = 0.05,
) -> Float[Any, "..."]:
    r"""The form of the bound for a Transformer of `depth` blocks, up to an absolute constant.

    $R^2\,\frac{\bar D\ln(1 + n\bar B) + \ln(1/\delta)}{n}$ with
    $\bar D = \text{depth}^2\,d\,(d_F + d_h + d) + d\,d_y$ and $\bar B$ the product of R, depth, the
    number of heads and the `norms` of all matrices. PAC-Bayes with balls around the trained
    weights; no length in it. Our reading of the outline.
    """
    samples = np.asarray(positive("samples", samples), float)
    sizes = {
        "depth": depth,
        "dim": dim,
        "hidden": hidden,
        "head_dim": head_dim,
        "outputs": outputs,
        "heads": heads,
    }
    for name, value in sizes.items():
        whole(name, value, 1)
    count = depth**2 * dim * (hidden + head_dim + dim) + dim * outputs
    size = radius * depth * heads * np.prod([positive("norms", b) for b in norms])
    confidence = np.log(1 / between("delta", delta))
    return radius**2 * (count * np.log1p(samples * size) + confidence) / samples


def weight_spread(query_norm: Real, radius: Real = 1.0) -> Float[Any, "..."]:
    r"""$\rho_w = \frac{(1 + r)^2}{4r} = \cosh^2(B_uR)$ with $r = e^{2B_uR}$.

    The most that $E w^2/(E w)^2$ can be for weights $w = e^{\langle u, x\rangle}$ (Kantorovich).
    """
    return np.cosh(np.asarray(query_norm, float) * radius) ** 2


def length_shift(
    length: Real, *, query_norm: Real, value_norm: Real = 1.0, radius: Real = 1.0
) -> Float[Any, "..."]:
    r"""How far a head's output is from its limit as the context grows.

    $\sqrt{E|f(X_L) - f(X_\infty)|^2} \le 2B_vR\sqrt{\rho_w/L}$ for tokens that are independent and
    alike given the latent.
    """
    length = np.asarray(positive("length", length), float)
    return 2 * value_norm * radius * np.sqrt(weight_spread(query_norm, radius) / length)
