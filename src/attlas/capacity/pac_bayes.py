r"""PAC-Bayes: a certificate for a linear rule from the sample that it was fitted on.

A rule $\mathrm{sign}\langle v, x\rangle$ whose direction is drawn from $N(\mu w, I)$ with $|w| = 1$
errs on (x, y) with probability $\Phi(-\mu\, y\langle w, x\rangle/|x|)$, and is $\mu^2/2$ nats from
the prior $N(0, I)$, whatever the dimension. Langford and Shawe-Taylor 2003; Maurer 2004.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import log_ndtr, rel_entr

from attlas.covers import between
from attlas.errors import InputError, whole
from attlas.gaussian import Real

SHARPNESS = tuple(float(x) for x in 2.0 ** np.arange(-2, 8.5, 0.5))
r"""The factors $\mu$ among which the best is chosen. The choice costs nothing: like w, it
belongs to the posterior, and the bound holds for all posteriors at once."""


def kl_inverse(share: Real, budget: Real) -> Real:
    r"""The largest $p$ with $\mathrm{kl}(q\|p) = q\ln\frac qp + (1-q)\ln\frac{1-q}{1-p}$ at most
    `budget`, by bisection, for a `share` q of errors; numbers or arrays."""
    q, budget = np.broadcast_arrays(np.asarray(share, float), np.asarray(budget, float))
    if not ((q >= 0) & (q <= 1)).all():
        raise InputError("a share of errors must lie between 0 and 1")
    low, high = q.copy(), np.ones_like(q)
    for _ in range(60):
        middle = (low + high) / 2
        inside = rel_entr(q, middle) + rel_entr(1 - q, 1 - middle) <= budget
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return high[()]


class Certificate(NamedTuple):
    r"""With probability $1 - \delta$ over the sample, a rule drawn from $N(\mu w, I)$ errs with
    probability `bound` at most; `error` is its share of errors on the sample, `nats` what it costs:
    $\frac{\mu^2}2 + \ln(\text{choices})$."""

    bound: Real
    error: Real
    sharpness: Real
    nats: Real


def margin_certificate(
    margins: Float[Any, "*s n"], *, choices: int = 1, delta: Real = 0.05
) -> Certificate:
    r"""The certificate of linear rules by their normalised margins
    $y_i\langle w, x_i\rangle/|w||x_i|$ on n independent samples:
    $$\mathrm{kl}(\hat e\|e) \le \frac1n\Big(\frac{\mu^2}2 + \ln\frac{2\sqrt n}{\delta}
    + \ln(\text{choices})\Big)$$ at the best $\mu$ of `SHARPNESS`.

    It holds for every w and $\mu$ at once, so that both may be fitted on the same samples; samples
    drawn without replacement from a finite population do as well (Hoeffding 1963, Theorem 4).

    Arguments:
    - `margins`: [..., n]. `delta`: $\delta$.
    - `choices`: how many representations of x, fixed before the sample was seen, the rule was
      chosen from.
    """
    margins = np.asarray(margins, float)
    n = margins.shape[-1]
    whole("choices", choices, 1)
    mu = np.array(SHARPNESS)
    error = np.exp(log_ndtr(-mu[:, None] * margins[..., None, :])).mean(-1)
    nats = mu**2 / 2 + math.log(choices)
    budget = (nats + np.log(2 * math.sqrt(n) / np.asarray(between("delta", delta)))) / n
    bound = np.asarray(kl_inverse(error, budget))
    best = bound.argmin(-1)[..., None]
    at = [np.take_along_axis(x, best, -1)[..., 0] for x in (bound, error)]
    return Certificate(at[0][()], at[1][()], mu[best[..., 0]], nats[best[..., 0]])
