# %% [markdown]
# # The landscape of single-location descent
#
# The target depends on one of several tokens, and a head must find out which: where does gradient
# descent lead it?
#
# A hidden direction $k^*$ marks the token and a hidden direction $v^*$ reads it; the head has a key
# $k$ and a value $v$. The risk is a closed form of five overlaps of these vectors. On the paper's
# manifold two of them are free, $\kappa$ (of $k$ with $k^*$) and $\nu$ (of $v$ with $v^*$); the
# other three are 0.

# %%
import numpy as np
import pandas as pd

import attlas
from attlas.figure import Figure
from attlas.single_location import (
    ORACLE,
    GeometricDecay,
    SingleLocation,
    descend,
    risk,
    sphere_start,
)

task = SingleLocation(dim=100, length=10)
print(f"risk at the oracle {risk(task, ORACLE, task.best_lam()):.4f}")
print(f"risk of predicting 0 {task.constant_risk():.4f}")

# %% [markdown]
# Descent from random starts on the sphere, with a sharpness that falls to the one that is best at
# the oracle. The cost does not depend on the dimension: the path of the overlaps is exact.

# %%
start = sphere_start(task, 0, 12)
lam = GeometricDecay(0.6, task.best_lam(), steps=4000)
paths = descend(task, start, lam=lam, step_size=0.005, steps=8000)
Figure(
    paths.assign(run=("repeat", np.arange(12).astype(str))),
    "Risk along twelve descents",
    x="step",
    y="risk",
).lines("step", "risk", color="run").rule(task.constant_risk(), "predicting 0")

# %% [markdown]
# They end at the oracle $(\kappa, \nu) = (1, 1)$, at its mirror image $(-1, -1)$ (the same
# function, because the gate is odd), or at a swapped point, where the value points along $k^*$ and
# the key along $v^*$. Swapped points are off the manifold, and here their risk is lower than the
# oracle's.

# %%
ends = paths.isel(step=-1)
names = ("kappa", "nu", "theta", "eta", "risk")
table = pd.DataFrame({name: ends[name].values.round(3) + 0.0 for name in names})
table.sort_values("risk").head(12)

# %% [markdown]
# The claim that the closed form holds, tested by simulation.

# %%
attlas.run("single-location/closed-form-risk")
