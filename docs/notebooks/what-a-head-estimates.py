# %% [markdown]
# # What a head estimates
#
# A head that reads pairs of keys and values and is asked at a query estimates a conditional mean:
# softmax attention as a kernel smoother, attention that conditions (`cme_attention`) as kernel
# ridge regression.

# %%
import jax.numpy as jnp
import numpy as np
import pandas as pd

from attlas.attention import softmax_attention
from attlas.figure import Figure
from attlas.kernels import RBF, cme_attention

rng = np.random.default_rng(0)
keys = rng.uniform(-1, 1, size=(40, 1))
values = np.sin(3 * keys) + 0.1 * rng.normal(size=keys.shape)
queries = np.linspace(-1, 1, 81)[:, None]


def smooth(temperature):
    """Softmax attention with the scores of a Gaussian kernel."""
    lifted = [np.concatenate([x, -(x**2) / 2, np.ones_like(x)], 1) for x in (queries, keys)]
    lifted[0][:, 1:] = np.concatenate([np.ones_like(queries), -(queries**2) / 2], 1)
    return np.asarray(
        softmax_attention(*map(jnp.asarray, [*lifted, values]), temperature=temperature)
    )[:, 0]


curves = {
    "the truth": np.sin(3 * queries[:, 0]),
    "softmax": smooth(0.02),
    "conditioning": np.asarray(cme_attention(queries, keys, values, ridge=0.02, kernel=RBF(0.1)))[
        :, 0
    ],
}
shown = pd.concat(
    pd.DataFrame({"query": queries[:, 0], "value": curve, "estimate": name})
    for name, curve in curves.items()
)
Figure(shown, "One context of forty pairs").lines("query", "value", color="estimate")

# %% [markdown]
# Mean squared errors: the smoother is biased where the function bends and at the ends;
# conditioning is less so.

# %%
for name in ("softmax", "conditioning"):
    print(f"{name}: {np.mean((curves[name] - curves['the truth']) ** 2):.5f}")

# %% [markdown]
# The smoother is a weighted mean, and the weights are those of Nadaraya and Watson:

# %%
weights = np.exp(-((queries - keys.T) ** 2) / 2 / 0.02)
watson = (weights @ values / weights.sum(1, keepdims=True))[:, 0]
print("equal:", np.allclose(watson, smooth(0.02), atol=1e-4))
