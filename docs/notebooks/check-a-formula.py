# %% [markdown]
# # Check your own formula
#
# You have a closed form and a sampler; do they agree, and how small a mistake would you have seen?
#
# The formula here: one token's share of attention among $L$ tokens with independent random scores
# has the mean $1/L$, however sharp the softmax is.

# %%
import numpy as np

import attlas


def first_weight(rng, n, length, sharpness):
    scores = np.exp(sharpness * rng.normal(size=(n, length)))
    return scores[:, 0] / scores.sum(1)


grid = {"length": [2, 5, 20], "sharpness": [0.5, 3.0]}
right = attlas.check(lambda length, sharpness: 1 / length, first_weight, grid=grid, quiet=True)
right

# %% [markdown]
# A formula that is 5 % off is refuted, and the refutation was repeated with fresh numbers.

# %%
wrong = attlas.check(lambda length, sharpness: 1.05 / length, first_weight, grid=grid, quiet=True)
wrong.verdict

# %% [markdown]
# Statements of other forms have functions of their own: `check_rate` tests an exponent. Here the
# statement is that the largest of $L$ random weights with the sum 1 shrinks like $L^{-1}$. It is
# wrong: the mean of the largest weight is $(1 + 1/2 + \dots + 1/L)/L$.


# %%
def largest_weight(rng, n, length):
    return rng.dirichlet(np.ones(length), size=n).max(1)


attlas.check_rate(
    largest_weight, along="length", exponent=-1.0, grid={"length": [4, 8, 16, 32, 64]}, quiet=True
)

# %% [markdown]
# `to_latex` gives a sentence and a table for a paper; `right.to_claim("mine.py")` writes a claim
# file for the atlas.

# %%
print(right.to_latex())
