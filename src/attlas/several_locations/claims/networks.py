"""Claims about networks without attention on the same tokens."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on
from attlas.claims.rules import Order
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import Network, Overlaps, Problem, Tokens, best_overlaps, risk
from attlas.several_locations.claims import several_locations
from attlas.several_locations.task import heads_problem


class Concatenated(eqx.Module):
    """The tokens of single-location regression behind one another as one token of Ld coordinates:
    its directions are the keys at the L places, then the values; the latent is the place."""

    signal: float
    length: int = eqx.field(static=True)
    uniforms: int = eqx.field(static=True, default=1)

    def __call__(self, uniforms: Any) -> Tokens:
        place = jnp.minimum(jnp.floor(uniforms[0] * self.length).astype(int), self.length - 1)
        keys = self.signal * jax.nn.one_hot(place, self.length, dtype=uniforms.dtype)
        one = jnp.ones(1, uniforms.dtype)
        return Tokens(jnp.concatenate([keys, 0 * keys])[None], one, one, place)


def value_there(teacher: Any, tokens: Tokens, noise: Any) -> Any:
    return teacher[0, teacher.shape[1] // 2 + tokens.latent]


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="a nonlinear network without attention, after Proposition 3",
    statement=r"One informative token at a place $J$ uniform among $L$, all spreads 1,"
    r" $y = \langle X_J, v^*\rangle$. A predictor that reads the whole sequence through $w$ linear"
    r" functionals, such as a network of width $w$ with any activation and anything behind it, has"
    r" a risk of at least $1 - w/L$. Trained networks $\sum_{j \le w}a_j\tanh(\sum_l\langle X_l,"
    r" u_{lj}\rangle + b_j) + c$, the best of several starts on fresh sequences, stay above it,"
    r" and for $w \le L/2$ one softmax head with one key and one value is below it.",
    words="Without attention a unit is needed for every place where the token may be. Attention"
    " uses one key and one value at all places.",
    hypotheses=(
        Hypothesis("width at least 2", lambda s: min(s.lengths) * min(s.shares) >= 2),
        Hypothesis("signal >= 3", lambda s: s.signal >= 3),
    ),
    quick=Setting(lengths=(4, 8), shares=(0.5, 1.0), signal=6.0, starts=4, points=4096, trips=150),
    paper=dict(lengths=(8, 16), shares=(0.25, 0.5, 1.0), starts=8, points=8192, trips=300),
    cells=whole,
    budget="points",
    rule=Order(),
    control=Control(
        "a network leaves 1 - w/L and {size:.0%} of w/L more",
        lambda e, size: {"lower": xr.where(e.network > 0, 1 - (1 - size) * (1 - e.lower), e.lower)},
        size=0.5,
    ),
)
def network_without_attention(cell: Setting, draws: Draws) -> Values:
    seed, names, rows = draws.integer("points"), list[str](), list[tuple[float, ...]]()
    risks, heads = np.zeros((len(cell.lengths), len(cell.shares))), []
    for i, length in enumerate(cell.lengths):
        oracle = np.diag([cell.signal, 1.0])[None]
        head = risk(
            heads_problem(length, cell.signal),
            Overlaps(oracle, oracle**2),
            points=4 * cell.points,
            seed=seed,
        )
        heads.append(float(head.mean[0]))
        for j, share in enumerate(cell.shares):
            width = round(share * length)
            start = {"bias": np.zeros(width), "readout": np.full(width, 0.5), "constant": 0.0}
            problem = Problem(Concatenated(cell.signal, length), value_there, Network())
            best = best_overlaps(
                problem,
                width,
                directions=2 * length,
                starts=cell.starts,
                scale=0.5,
                parameters=start,
                points=cell.points,
                trips=cell.trips,
                seed=seed,
            )
            names.append(f"network, L = {length}, w = {width}")
            found, error = risk(
                problem,
                Overlaps(best["best_m"].values, best["best_q"].values),
                {name: best[f"parameter_{n}"].values for n, name in enumerate(sorted(start))},
                points=32 * cell.points,
                seed=seed + 2,
            )
            risks[i, j], least = found[0], 1 - width / length
            rows.append((least, found[0], error[0], 1))
            if share <= 0.5:
                names.append(f"head, L = {length}, w = {width}")
                rows.append((heads[-1], least, float(head.error[0]), 0))
    lower, upper, error, network = map(np.array, zip(*rows, strict=True))
    return {
        **on("comparison", lower=lower, upper=upper, error=error, network=network),
        **on("length share", risk=risks, least=np.tile(1 - np.array(cell.shares), (len(heads), 1))),
        **on("length", head=np.array(heads)),
        "comparison": names,
        "length": list(cell.lengths),
        "share": list(cell.shares),
        "repetitions": 16,
    }


@network_without_attention.figure
def risk_by_width(evidence: xr.Dataset) -> Figure:
    title = "Networks without attention"
    note = "risk of trained networks on fresh sequences; dashed: 1 - w/L; grey: one softmax head"
    shown = evidence.isel(cell=0)
    shown = shown.assign(attention=shown["head"].broadcast_like(shown["risk"]))
    figure = Figure(shown, title, note, x="width w of the network, of L", y="risk", zero="y")
    figure.lines("share", "least", theory=True)
    figure.lines("share", "attention", detail="length", ink="#888888")
    return figure.lines("share", "risk", color="length", points=True)
