"""Claims about inference in the forward pass of trained networks: regression in pairs, locations
and mixtures."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims import Control, Draws, Setting, Values, on, whole
from attlas.claims.rules import Approximation, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs
from attlas.latent_posterior.claims.shared import LEGENDS, defining
from attlas.latent_posterior.encoders import (
    PairHead,
    Recipe,
    excess_risk,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import (
    Pairs,
    draw_runs,
    rbf_powers,
)

DEGREES = 10
"""Harmonics of a kernel on the circle; the rest of one of temperature .5 is below 1e-8."""


def regression(cell: Setting, lengths: np.ndarray) -> Pairs:
    """Gaussian processes on the circle, one for each length."""
    powers = np.tile(rbf_powers(cell.temperature, DEGREES), (len(lengths), 1))
    return Pairs(powers, np.full(len(lengths), cell.noise), lengths)


def sides(*pairs: tuple[str, xr.DataArray, xr.DataArray]) -> dict[str, xr.DataArray]:
    """What `Order` reads of several inequalities, each with its name, the lower and the upper
    side, with an axis of runs."""
    names = xr.Variable("inequality", [name for name, _, _ in pairs])
    lower = xr.concat([low for _, low, _ in pairs], names)
    upper = xr.concat([high for _, _, high in pairs], names)
    return {
        "lower": lower.mean("run"),
        "upper": upper.mean("run"),
        **over_runs(upper - lower),
    }


# --- single heads ---------------------------------------------------------------------------------


def random_head(key: Array, attention: str) -> PairHead:
    """A head with maps of keys near the identity, temperature 1 and ridge 1."""
    query, keys = jnp.eye(2) + 0.3 * jax.random.normal(key, (2, 2, 2))
    return PairHead(query, keys, jnp.ones((1, 1)), jnp.zeros(()), jnp.zeros(()), attention)


@latent_posterior.measurement(
    "trained-heads",
    hypotheses=(
        RUNS,
        defining(
            "length has two values or more, in ascending order",
            lambda s: len(s.length) >= 2 and list(s.length) == sorted(set(s.length)),
        ),
    ),
    quick=Setting(
        length=(8, 16),
        temperature=0.5,
        noise=0.3,
        steps=400,
        batch=64,
        rate=0.2,
        runs=16,
        sequences=1000,
    ),
    paper=dict(length=(8, 16, 32, 64), steps=3000, rate=0.1),
    cells=whole,
    budget="runs",
    precision="float32",
    long=True,
)
def trained_heads(cell: Setting, draws: Draws) -> Values:
    """Heads of CME and of softmax attention, trained on pairs of each length: what their risk
    exceeds that of Bayes by, in units of it, and what they learnt."""
    lanes = (len(cell.length), cell.runs)
    task = regression(cell, np.repeat(cell.length, cell.runs))

    def keys(purpose: str) -> Array:
        return jax.random.split(draws(purpose), lanes[0] * lanes[1])

    seen = draw_runs(task, keys("asked"), cell.sequences)
    risk = ((task.bayes(seen) - np.asarray(seen.target)) ** 2).mean((1, 2)).reshape(lanes).mean(1)
    heads = {}
    for attention in ("CME", "softmax"):
        start = jax.vmap(lambda key, name=attention: random_head(key, name))(keys("weights"))
        recipe = Recipe(cell.steps, cell.batch, cell.rate)
        heads[attention] = train_encoders(start, task, keys("training"), recipe).encoders
    excess = [excess_risk(head, task, seen).reshape(lanes) for head in heads.values()]
    shares = np.stack(excess) / risk[:, None]
    learnt = [effective_temperature(head).reshape(lanes) for head in heads.values()]
    return {
        **on("attention tokens run", excess=shares, learnt_temperature=np.stack(learnt)),
        **on("tokens run", learnt_ridge=np.exp(heads["CME"].log_ridge).reshape(lanes)),
        "attention": list(heads),
        "tokens": list(cell.length),
    }


def effective_temperature(head: PairHead) -> Float[np.ndarray, " run"]:
    r"""$\gamma/\sqrt{|\det QK^\top|}$: the temperature that a head has for keys that are not
    mapped, in the geometric mean over their directions."""
    both = np.einsum("nkr,njr->nkj", head.key if head.attention == "CME" else head.query, head.key)
    return np.exp(head.log_temperature) / np.sqrt(abs(np.linalg.det(both)))


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="attention that infers the latent, learnt",
    statement=r"A head of CME attention with learnt temperature, ridge and maps of keys and values,"
    r" trained on pairs of a Gaussian process of covariance $e^{-|k - k'|^2/2\gamma}$ with noise"
    r" $\sigma$, finds the ridge $\sigma^2$ and the temperature $\gamma$ of the posterior mean to a"
    r" quarter, at every length.",
    words="Attention that can be exact Bayesian inference becomes it by training: it finds the"
    " noise and the width of the kernel from examples.",
    measured_by=trained_heads,
    rule=Approximation(margin=0.25),
    control=Control(
        "heads that are {size:.0%} of the way back to where training began",
        lambda e, size: {"measured": e.measured + size * (e.before - e.measured)},
    ),
    needs=("cme-is-posterior-mean",),
)
def cme_layer_is_bayes(evidence: xr.Dataset) -> Values:
    theory = {"ridge": evidence["noise"] ** 2, "temperature": evidence["temperature"]}
    learnt = evidence.sel(attention="CME", drop=True)
    axis = xr.Variable("parameter", list(theory))
    found = xr.concat([learnt[f"learnt_{name}"] for name in theory], axis)
    predicted = xr.concat(list(theory.values()), axis) * xr.ones_like(found.mean("run"))
    return {
        "predicted": predicted,
        "measured": found.mean("run"),
        **over_runs(found),
        "before": xr.ones_like(predicted),
    }


@cme_layer_is_bayes.figure
def learnt_parameters(evidence: xr.Dataset) -> Figure:
    title, note = "What a CME head learns", "dashed: noise variance, and the kernel of the prior"
    figure = Figure(evidence.isel(cell=0), title, note, x="tokens L", y="learnt value", log="xy")
    figure.lines("tokens", "predicted", color="parameter", theory=True)
    return figure.points("tokens", "measured", error="error", color="parameter")


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="where CME attention is Bayes and softmax attention is not",
    statement=r"On the pairs of the claim `cme-layer-is-bayes`, a trained head of CME attention has"
    r" a risk within 5 % of the Bayes risk at every length. That of a trained head of softmax"
    r" attention lies further above it, and in units of the Bayes risk the further the longer the"
    r" context.",
    words="A local average is no posterior mean, whatever its temperature, and longer contexts show"
    " it more.",
    measured_by=trained_heads,
    rule=Order(),
    control=Control(
        "a softmax head whose excess is {size:.0%} smaller, the more so the longer the context",
        lambda e, size: {"upper": e.upper - size * e.of_softmax},
    ),
    needs=("cme-layer-is-bayes", "softmax-floor"),
)
def softmax_head_gap(evidence: xr.Dataset) -> Values:
    cme, softmax = (evidence["excess"].sel(attention=name) for name in ("CME", "softmax"))
    lengths = evidence["tokens"].values
    margin = xr.full_like(cme.isel(tokens=0, drop=True), 0.05)
    rows = [(f"CME, L = {n}: 5 %", cme.sel(tokens=n, drop=True), margin) for n in lengths]
    points = [margin, *(softmax.sel(tokens=n, drop=True) for n in lengths)]
    names = ["5 %", *(f"softmax, L = {n}" for n in lengths)]
    rows += [(f"{names[i]}: {names[i + 1]}", points[i], points[i + 1]) for i in range(len(lengths))]
    found = sides(*rows)
    upper = found["upper"]
    grown = xr.DataArray([0.0] * len(lengths) + [1.0] * len(lengths), dims="inequality")
    return {**found, "of_softmax": upper * grown}


@softmax_head_gap.figure
def excess_of_heads(evidence: xr.Dataset) -> Figure:
    shown = evidence[["excess"]].isel(cell=0)
    shown = shown.mean("run").assign(spread=shown["excess"].std("run") / shown.sizes["run"] ** 0.5)
    title, note = "Trained heads beside Bayes", "mean over runs"
    y = "excess risk, of the Bayes risk"
    figure = Figure(shown, title, note, x="tokens L", y=y, log="xy", legend=LEGENDS)
    figure.lines("tokens", "excess", color="attention")
    return figure.points("tokens", "excess", error="spread", color="attention").rule(0.05, "5 %")
