# %% [markdown]
# # How many samples
#
# A function of three of many bits: how many samples single out the three, how many do learners
# need, and what do bounds say?

# %%
import jax
import pandas as pd

from attlas.capacity import occam_samples
from attlas.sparse_variables import SparseBoolean, find_threshold, threshold_head

lengths = (10, 20, 40, 80)
tasks = [SparseBoolean(length, (0, 1, 2), "majority") for length in lengths]
table = pd.DataFrame(
    {
        "length": lengths,
        "singled out": [task.floor() for task in tasks],
        "Occam, error 0.1": [round(occam_samples(t.log_hypotheses, 0.1)) for t in tasks],
    }
)
table

# %% [markdown]
# The statistical floor grows with the logarithm of the length. So do the norms of a head that
# computes the function, which is why a bound by norms does.

# %%
heads = [threshold_head(task) for task in tasks]
table["score norm"] = [round(float(head.score_norm), 2) for head in heads]
table["margin"] = [round(float(head.margin), 4) for head in heads]
table

# %% [markdown]
# A learner that screens bits by their covariance with the label, at the size where four of five of
# its trials succeed.

# %%
found = [
    find_threshold(jax.random.key(0), length, "screening", function="majority", trials=48, most=500)
    for length in lengths[:3]
]
for length, search in zip(lengths, found, strict=False):
    print(f"{length} bits: {search.threshold:.0f} samples, within {search.error:.0%}")
