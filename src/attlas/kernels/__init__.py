r"""Kernels, and attention that conditions: the conditional mean embedding (CME) of values given
keys.

$$\mathrm{CME}(q; K, V) = V^\top (G + \text{ridge}\, I)^{-1} g_q, \qquad
G_{ij} = k(k_i, k_j),\quad (g_q)_i = k(k_i, q).$$

This is kernel ridge regression of values on keys, the mean of a Gaussian process, and, for
$v = z\,\phi(k) + \text{noise}$ with a Gaussian $z$, the exact predictive mean (Zhang et al. 2022).
`ridge` always belongs to the Gram matrix; Bayes' value is the variance of the noise over that of
the prior, and the ridge of the covariance operator is `ridge / length`.

`functions` has the kernels, `attention` the exact, differentiable CME, batched over leading axes
(sequences, heads), `fit` the conditioning on one long context, exact or approximate.
"""

from attlas.kernels.attention import cme_attention, cme_variance
from attlas.kernels.fit import CME, METHODS, fit_cme
from attlas.kernels.functions import RBF, Exponential, Kernel, Linear, Polynomial
