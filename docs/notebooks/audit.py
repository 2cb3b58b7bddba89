# %% [markdown]
# # Audit and estimators
#
# A transformer in memory, audited; then a bag of instances of which one decides, and an estimator
# that says which.
#
# The model here is a random one with one layer, so that the notebook needs nothing. In its place
# give a folder, a file, or a model of `transformers`.

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
# Bags of two to eight instances; a bag is positive if some instance has a large first feature. The
# estimator is not told which.

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
