# %% [markdown]
# # How many samples
#
# The label is the majority of three of many bits: how many samples single out the three, how many
# does a learner need, and how many does a bound ask for?
#
# In the table, "singled out" is the fewest samples for which, with probability 0.8, no other three
# bits agree with all labels; "Occam" is a number of samples that suffices for an error of 0.1.

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
# The statistical floor ("singled out") grows with the logarithm of the length. So does, roughly,
# the score norm of a head that computes the function, and the margin of that head stays the same. A
# bound by norms and margin therefore depends on the length through logarithms only.

# %%
heads = [threshold_head(task) for task in tasks]
table["score norm"] = [round(float(head.score_norm), 2) for head in heads]
table["margin"] = [round(float(head.margin), 4) for head in heads]
table

# %% [markdown]
# The number of samples at which four of five trials succeed, for a learner that screens bits by
# their covariance with the label.

# %%
found = [
    find_threshold(jax.random.key(0), length, "screening", function="majority", trials=48, most=500)
    for length in lengths[:3]
]
for length, search in zip(lengths, found, strict=False):
    print(f"{length} bits: {search.threshold:.0f} samples, within {search.error:.0%}")
