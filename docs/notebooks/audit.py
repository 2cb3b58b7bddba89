# %% [markdown]
# # Audit and estimators
#
# This notebook audits a transformer that is held in memory, and then fits an estimator that names
# the instance of a bag which decides its label.
#
# The model here is a random one with one layer, so that the notebook needs no files. Give a folder,
# a file, or a model of `transformers` in its place.

# %%
import numpy as np

import attlas
from attlas.estimators import SingleLocationClassifier

rng = np.random.default_rng(0)
shapes = {
    "wte": (50, 16),
    "wpe": (32, 16),
    "h.0.attn.c_attn": (16, 48),
    "h.0.attn.c_proj": (16, 16),
}
shapes |= {"h.0.mlp.c_fc": (16, 64), "h.0.mlp.c_proj": (64, 16)}
shapes |= dict.fromkeys(("h.0.ln_1", "h.0.ln_2", "ln_f"), (16,))
arrays = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
arrays |= {f"{name}.bias": np.zeros(shapes[name][-1]) for name in shapes if "w" not in name}
config = {"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 1}
config |= {"n_positions": 32, "vocab_size": 50}
audit = attlas.audit_model(
    arrays, config=config, tokens=rng.integers(50, size=(4, 20)).tolist(), probes="none"
)
audit

# %% [markdown]
# The quantities of each head are a Dataset.

# %%
audit.heads[["qk_spectral", "qk_stable_rank"]].to_dataframe().round(2)

# %% [markdown]
# A bag has two to eight instances and is positive if the first feature of some instance is above
# 1.4. The estimator is not told which instance that is. The share below is over the bags that it
# was fitted on.

# %%
bags = [rng.normal(size=(rng.integers(2, 9), 3)) for _ in range(200)]
positive = [bag[:, 0].max() > 1.4 for bag in bags]
model = SingleLocationClassifier(random_state=0).fit(bags, positive)
print(model.explain())

# %%
named = model.predict_location(bags)
deciding = [int(bag[:, 0].argmax()) for bag in bags]
hits = [a == b for a, b, yes in zip(named, deciding, positive, strict=True) if yes]
print(f"the deciding instance was named in {np.mean(hits):.0%} of the positive bags")
