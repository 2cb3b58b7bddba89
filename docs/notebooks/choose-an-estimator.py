# %% [markdown]
# # Which estimator
#
# Three questions about data, each with an estimator whose theory answers it: which instance of a
# bag decides the target, how a number is distributed at given features, and which few bits
# determine the label. `explain()` says in words what an estimator found.

# %%
import numpy as np
import pandas as pd

from attlas.estimators import (
    ConditionalMeanRegressor,
    SingleLocationRegressor,
    SparseAttentionClassifier,
)
from attlas.figure import Figure

# %% [markdown]
# ## One instance of a bag decides
#
# A bag has five instances. One of them has a larger first feature, and the target is the cosine of
# twice its second feature, plus noise. The estimator is not told which instance it is. The target
# is uncorrelated with every feature, so that a linear model of the features predicts no better than
# a constant.

# %%
rng = np.random.default_rng(0)
X, place = rng.normal(size=(160, 5, 3)), rng.integers(5, size=160)
X[np.arange(160), place, 0] += 5
y = np.cos(2 * X[np.arange(160), place, 1]) + 0.1 * rng.normal(size=160)
model = SingleLocationRegressor(random_state=0).fit(X, y)
print(model.explain())
print(f"the deciding instance named: {(model.predict_location(X) == place).mean():.0%}")

# %%
shares = model.attention(X[:6])
shown = pd.DataFrame(
    {
        "instance": np.tile(np.arange(5), 6),
        "attention": shares.ravel(),
        "bag": np.repeat([f"bag {i}, {k} decides" for i, k in enumerate(place[:6])], 5),
    }
)
Figure(shown, "Attention over six bags").bars("instance", "attention").facet("bag", columns=3)

# %% [markdown]
# ## The law of a number at a point
#
# The noise grows with x and is skewed. A mean and a standard deviation at each x would not show
# the skew.

# %%
x = rng.uniform(0, 10, (300, 1))
z = np.sin(x[:, 0]) + 0.1 * x[:, 0] * rng.exponential(size=300)
law = ConditionalMeanRegressor().fit(x, z)
print(law.explain())
grid = np.linspace(0, 5, 400)
curves = [
    pd.DataFrame({"value": grid, "density": row, "at": f"x = {at:g}"})
    for at, row in zip((2.0, 8.0), law.predict_density([[2.0], [8.0]], grid), strict=True)
]
Figure(pd.concat(curves), "The law at two points").lines("value", "density", color="at")

# %% [markdown]
# ## A function of a few of many bits
#
# There are eighty examples of a hundred bits. The label is the OR of columns 7 and 61, and about
# one label in twenty is wrong.

# %%
bits = rng.integers(0, 2, (80, 100))
label = (bits[:, 7] | bits[:, 61]) ^ (rng.random(80) < 0.05)
table = SparseAttentionClassifier(random_state=0).fit(bits, label)
print(table.explain())

# %%
shown = pd.DataFrame(
    {
        "pattern": [" ".join(map(str, bits)) for bits, *_ in table.truth_table()],
        "probability": table.table_,
    }
)
named = " and ".join(f"column {i}" for i in table.support_)
Figure(shown, f"The learned table of {named}").bars("pattern", "probability")
