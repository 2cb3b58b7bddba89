"""Claims about inference in the forward pass of trained networks: regression in pairs, locations
and mixtures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on, whole
from attlas.claims.rules import Approximation, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs, sides
from attlas.latent_posterior.claims.shared import LEGENDS, defining
from attlas.latent_posterior.encoders import (
    PairHead,
    Recipe,
    excess_risk,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import (
    Data,
    Pairs,
    draw_runs,
    harmonics,
    rbf_powers,
)

DEGREES = 10
"""Harmonics of a kernel on the circle; the rest of one of temperature .5 is below 1e-8."""


def regression(cell: Setting, lengths: np.ndarray) -> Pairs:
    """Gaussian processes on the circle, one for each length."""
    powers = np.tile(rbf_powers(cell.temperature, DEGREES), (len(lengths), 1))
    return Pairs(powers, np.full(len(lengths), cell.noise), lengths)


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
    # Nadaraya-Watson on the same keys and values, at the temperature that the theory has for it.
    firsts = range(0, lanes[0] * lanes[1], cell.runs)
    best, scale = np.transpose([best_average(task, seen, row) for row in firsts])
    averaged = local_average(seen, np.repeat(best, cell.runs))
    averaged = averaged * np.repeat(scale, cell.runs)[:, None, None]
    said = np.asarray(represent(heads["softmax"], seen)[:, -1] @ heads["softmax"].read, float)
    apart = ((said - averaged) ** 2).mean((1, 2)).reshape(lanes) / risk[:, None]
    return {
        **on("tokens run", to_local_average=apart),
        **on("tokens", best_temperature=best),
        **on("attention tokens run", excess=shares, learnt_temperature=np.stack(learnt)),
        **on("tokens run", learnt_ridge=np.exp(heads["CME"].log_ridge).reshape(lanes)),
        "attention": list(heads),
        "tokens": list(cell.length),
    }


TEMPERATURES = np.geomspace(0.02, 2, 60)
"""Among which the best local average is sought."""
CONTEXTS = 400
"""On which it is sought."""


def local_average(seen: Data, temperature: Float[Any, " run"]) -> Float[np.ndarray, "run n 1"]:
    """Nadaraya-Watson estimates at the query, with a Gaussian kernel of this squared bandwidth."""
    tokens, query = np.asarray(seen.tokens, float), np.asarray(seen.query, float)
    products = np.einsum("rntk,rnk->rnt", tokens[..., :2], query[..., :2])
    scores = products / np.reshape(temperature, (-1, 1, 1))
    weights = special.softmax(np.where(np.asarray(seen.counts) > 0, scores, -np.inf), -1)
    return np.einsum("rnt,rntv->rnv", weights, tokens[..., 2:])


def best_average(task: Pairs, seen: Data, row: int) -> tuple[float, float]:
    r"""The temperature and the factor of the local average that is nearest to the Bayes predictor
    for these keys, exact over functions and noise: they minimise
    $(cw - w^*)^\top(G + \sigma^2I)(cw - w^*)$ for the weights w of the average and $w^*$ of the
    posterior mean."""
    length, powers = int(task.length[row]), np.asarray(task.powers[row], float)
    keys = np.asarray(seen.tokens, float)[row, :CONTEXTS, :length, :2]
    query = np.asarray(seen.query, float)[row, :CONTEXTS, None, :2]
    phi, asked = (harmonics(np.arctan2(x[..., 1], x[..., 0]), powers, np) for x in (keys, query))
    system = phi @ phi.swapaxes(1, 2) + float(task.noise[row]) ** 2 * np.eye(length)
    cross = (asked @ phi.swapaxes(1, 2))[:, 0]  # the system times the weights of Bayes
    scores = (keys @ query.swapaxes(1, 2))[..., 0]
    weights = special.softmax(scores / TEMPERATURES[:, None, None], -1)
    along = np.einsum("gni,ni->g", weights, cross)
    size = np.einsum("gni,nij,gnj->g", weights, system, weights)
    best = int((along**2 / size).argmax())
    return float(TEMPERATURES[best]), float(along[best] / size[best])


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
    r" quarter, at every length. A head of softmax attention finds, to a quarter, the temperature"
    r" with which a local average of these keys, times a factor, is nearest to the posterior mean.",
    words="Attention that can be exact Bayesian inference becomes it by training: it finds the"
    " noise and the width of the kernel from examples. Attention that cannot finds the best that a"
    " local average can do.",
    measured_by=trained_heads,
    rule=Approximation(margin=0.25),
    control=Control(
        "heads that are {size:.0%} of the way back to where training began",
        lambda e, size: {"measured": e.measured + size * (e.before - e.measured)},
    ),
    needs=("cme-is-posterior-mean",),
)
def cme_layer_is_bayes(evidence: xr.Dataset) -> Values:
    cme, softmax = (evidence.sel(attention=name, drop=True) for name in ("CME", "softmax"))
    pairs = {
        "ridge": (evidence["noise"] ** 2, cme["learnt_ridge"]),
        "temperature": (evidence["temperature"], cme["learnt_temperature"]),
        "temperature, softmax": (evidence["best_temperature"], softmax["learnt_temperature"]),
    }
    axis = xr.Variable("parameter", list(pairs))
    found = xr.concat([learnt for _, learnt in pairs.values()], axis)
    like = xr.ones_like(found.isel(parameter=0, drop=True).mean("run"))
    predicted = xr.concat([theory * like for theory, _ in pairs.values()], axis)
    return {
        "predicted": predicted,
        "measured": found.mean("run"),
        **over_runs(found),
        "before": xr.ones_like(predicted),
    }


@cme_layer_is_bayes.figure
def learnt_parameters(evidence: xr.Dataset) -> Figure:
    title, note = "What heads learn", "dashed: what the theory has for each"
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
    r" context: it is nearer to the best Nadaraya-Watson average of the same keys and values, times"
    r" a factor, than to the posterior mean.",
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
    cme, softmax = (
        evidence["excess"].sel(attention=name, drop=True) for name in ("CME", "softmax")
    )
    lengths = evidence["tokens"].values
    margin = xr.full_like(cme.isel(tokens=0, drop=True), 0.05)
    rows = [(f"CME, L = {n}: 5 %", cme.sel(tokens=n, drop=True), margin) for n in lengths]
    points = [margin, *(softmax.sel(tokens=n, drop=True) for n in lengths)]
    names = ["5 %", *(f"softmax, L = {n}" for n in lengths)]
    rows += [(f"{names[i]}: {names[i + 1]}", points[i], points[i + 1]) for i in range(len(lengths))]
    near = evidence["to_local_average"]
    for n in lengths:
        average, bayes = (x.sel(tokens=n, drop=True) for x in (near, softmax))
        rows.append((f"to the average: to Bayes, L = {n}", average, bayes))
    found = sides(*rows)
    upper = found["upper"]
    grown = xr.DataArray([0.0] * len(lengths) + [1.0] * 2 * len(lengths), dims="inequality")
    return {**found, "of_softmax": upper * grown}


@softmax_head_gap.figure
def excess_of_heads(evidence: xr.Dataset) -> Figure:
    shown = evidence[["excess"]].isel(cell=0)
    shown = shown.mean("run").assign(spread=shown["excess"].std("run") / shown.sizes["run"] ** 0.5)
    title = "Trained heads beside Bayes"
    note = "mean over runs; dashed: from the softmax head to the best local average"
    y = "excess risk, of the Bayes risk"
    figure = Figure(shown, title, note, x="tokens L", y=y, log="xy", legend=LEGENDS)
    figure.lines("tokens", "excess", color="attention")
    shown_apart = evidence["to_local_average"].isel(cell=0).mean("run")
    apart = shown_apart.to_dataset(name="softmax, to the local average")
    figure.lines("tokens", "softmax, to the local average", data=apart, theory=True)
    return figure.points("tokens", "excess", error="spread", color="attention").rule(0.05, "5 %")
