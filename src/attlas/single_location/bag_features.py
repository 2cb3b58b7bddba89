r"""Features of instances in which a linear head is not linear in the instance.

$$\varphi(x) = K^{-1/2}k(x), \qquad k_j(x) = e^{-\gamma|x - z_j|^2/d},\quad K_{ij} = k_j(z_i),$$

with $m$ centres $z_j$ drawn among the instances, those of a bag together as likely as another
bag's, and $x$ scaled: Nystrom's features of the Gaussian kernel (Williams and Seeger 2001). The
norm of a direction is that of its function in the kernel's space, so that a penalty of it asks for
smooth functions: features are not to be scaled one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.metrics.pairwise import rbf_kernel

from attlas.single_location.bag_heads import Scaling

CENTRES = 128
CUT = 1e-8
"""Share of the largest eigenvalue below which one is rounding."""


@dataclass(frozen=True)
class Features:
    """Similarities to centres.

    - `scaling`: of the instances.
    - `centres` [m, d]: scaled instances.
    - `whiten` [m, r]: $K^{-1/2}$, in the basis of its r eigenvectors that rounding leaves.
    - `sharpness`: $\\gamma$.
    """

    scaling: Scaling
    centres: Float[np.ndarray, "m d"]
    whiten: Float[np.ndarray, "m r"]
    sharpness: float

    @classmethod
    def of(
        cls,
        instances: Sequence[np.ndarray],
        weight: Float[np.ndarray, " n"],
        sharpness: float,
        seed: int = 0,
        count: int = CENTRES,
    ) -> "Features":
        """With at most `count` centres, drawn with `seed`; `weight` [n] is that of the bags."""
        scaling = Scaling.of(instances, weight)
        bags, _ = scaling(instances)
        share = np.repeat(weight / bags.lengths, bags.lengths)
        count = min(count, int((share > 0).sum()))
        rng = np.random.default_rng(seed)
        places = rng.choice(len(share), count, replace=False, p=share / share.sum())
        centres = bags.tokens[np.sort(places)]
        values, vectors = np.linalg.eigh(similarity(centres, centres, sharpness))
        seen = values > CUT * values[-1]
        whiten = vectors[:, seen] / np.sqrt(values[seen])
        return cls(scaling, centres, whiten, float(sharpness))

    def __call__(self, instances: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The features [length, r] of the instances of each bag."""
        bags, _ = self.scaling(instances)
        lifted = similarity(bags.tokens, self.centres, self.sharpness) @ self.whiten
        return np.split(lifted, bags.first[1:])


def similarity(
    x: Float[np.ndarray, "n d"], z: Float[np.ndarray, "m d"], sharpness: float
) -> Float[np.ndarray, "n m"]:
    r"""$e^{-\gamma|x - z|^2/d}$."""
    return rbf_kernel(x, z, gamma=sharpness / x.shape[1])
