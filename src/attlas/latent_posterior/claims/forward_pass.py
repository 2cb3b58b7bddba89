"""Claims about inference in the forward pass of trained networks, on regression in pairs: single
heads, and encoders layer by layer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on, whole
from attlas.claims.rules import Approximation, Order, Rate
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, finite_runs, or_failed, over_runs, sides
from attlas.latent_posterior.claims.shared import LEGENDS, defining, log_figure
from attlas.latent_posterior.claims.variants import hardest
from attlas.latent_posterior.encoders import (
    PairHead,
    Recipe,
    Trained,
    excess_risk,
    explained,
    random_encoders,
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
        runs=24,
        sequences=1000,
    ),
    paper=dict(length=(8, 16, 32), steps=1500, batch=32, runs=24),
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
    best, scale, _ = np.transpose(
        [best_average(task, seen, row) for row in range(len(seen.counts))]
    )
    averaged = local_average(seen, best) * scale[:, None, None]
    said = np.asarray(represent(heads["softmax"], seen)[:, -1] @ heads["softmax"].read, float)
    apart = ((said - averaged) ** 2).mean((1, 2)).reshape(lanes) / risk[:, None]
    return {
        **on("tokens run", to_local_average=apart),
        **on("tokens run", best_temperature=best.reshape(lanes)),
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


class LocalAverage(NamedTuple):
    """A local average times a factor, and its mean square distance to the posterior mean."""

    temperature: float
    factor: float
    distance: float


def best_average(task: Pairs, seen: Data, row: int) -> LocalAverage:
    r"""The local average that is nearest to the Bayes predictor for these keys, exact over
    functions and noise: its temperature and factor minimise
    $(cw - w^*)^\top(G + \sigma^2I)(cw - w^*)$ for the weights w of the average and $w^*$ of the
    posterior mean."""
    length, powers = int(task.length[row]), np.asarray(task.powers[row], float)
    keys = np.asarray(seen.tokens, float)[row, :CONTEXTS, :length, :2]
    query = np.asarray(seen.query, float)[row, :CONTEXTS, None, :2]
    phi, asked = (harmonics(np.arctan2(x[..., 1], x[..., 0]), powers) for x in (keys, query))
    system = phi @ phi.swapaxes(1, 2) + float(task.noise[row]) ** 2 * np.eye(length)
    cross = (asked @ phi.swapaxes(1, 2))[:, 0]  # the system times the weights of Bayes
    scores = (keys @ query.swapaxes(1, 2))[..., 0]
    weights = special.softmax(scores / TEMPERATURES[:, None, None], -1)
    along = np.einsum("gni,ni->g", weights, cross)
    each = weights.swapaxes(0, 1)
    size = ((each @ system) * each).sum((0, 2))
    bayes = np.linalg.solve(system, cross[..., None])[..., 0]
    distance = ((bayes * cross).sum() - along**2 / size) / len(cross)
    best = int(distance.argmin())
    return LocalAverage(*map(float, (TEMPERATURES[best], along[best] / size[best], distance[best])))


def effective_temperature(head: PairHead) -> Float[np.ndarray, " run"]:
    r"""$\gamma/\sqrt{|\det QK^\top|}$: the temperature that a head has for keys that are not
    mapped, in the geometric mean over their directions."""
    both = np.einsum("nkr,njr->nkj", head.key if head.attention == "CME" else head.query, head.key)
    return np.exp(head.log_temperature) / np.sqrt(abs(np.linalg.det(both)))


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="attention that infers the latent, learnt",
    statement=r"A head of CME attention with learnt temperature, ridge and maps of keys and"
    r" values, trained on pairs of a Gaussian process of covariance $e^{-|k - k'|^2/2\gamma}$"
    r" with noise $\sigma$, finds the ridge $\sigma^2$ and the temperature $\gamma$ of the"
    r" posterior mean to within a quarter, at every length. A head of softmax attention finds,"
    r" to within a quarter, the temperature with which a local average of these keys, times a"
    r" factor, is nearest to the posterior mean.",
    words="CME attention can be exact Bayesian inference, and training makes it so: it finds"
    " the noise and the width of the kernel from examples. Softmax attention cannot, and finds"
    " the best local average.",
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
    theory = xr.concat([theory * xr.ones_like(learnt) for theory, learnt in pairs.values()], axis)
    return {
        "predicted": theory.mean("run"),
        "measured": found.mean("run"),
        # The best local average is sought on the contexts of each run, and errs too.
        **over_runs(found - theory),
        "before": xr.ones_like(theory.mean("run")),
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
    words="A trained softmax head is nearly the best local average, which is not the posterior"
    " mean at any temperature. In units of the Bayes risk its excess grows with the length.",
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


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="rates of attention, on trained heads",
    statement=r"On pairs as in `cme-layer-is-bayes`, the risk of softmax heads that were"
    r" trained at each length falls with the length as the theory of local averages has it at"
    r" these lengths, $\min_{c, \gamma}E\,(cw - w^*)^\top(G + \sigma^2I)(cw - w^*) +"
    r" E\,\mathrm{var}(f \mid X)$ with $w$ the weights of the average and $w^*$ those of the"
    r" posterior mean; the risk of heads of CME attention, which were trained at the second"
    r" length only, falls as $E\,\mathrm{var}(f \mid X)$; both to 0.05 in the exponent.",
    words="Longer contexts help trained attention as the theory says: each kind at its own rate."
    " CME attention keeps its rate at lengths that it was not trained at; a softmax head has to"
    " find another temperature at each.",
    hypotheses=(
        RUNS,
        defining("length has five values or more", lambda s: len(set(s.length)) >= 5),
        defining("length ascends", lambda s: list(s.length) == sorted(s.length)),
        defining(f"sequences <= {CONTEXTS}", lambda s: s.sequences <= CONTEXTS),
    ),
    quick=Setting(
        length=(4, 8, 16, 32, 64),
        temperature=0.5,
        noise=0.3,
        steps=300,
        batch=16,
        rate=0.2,
        runs=24,
        sequences=400,
    ),
    paper=dict(length=(4, 8, 16, 32, 64, 128), steps=600, rate=0.1, runs=16),
    cells=whole,
    budget="runs",
    precision="float32",
    long=True,
    rule=Rate(margin=0.05, along="tokens"),
    control=Control(
        "a local average that keeps the temperature of the shortest length",
        lambda e: {"measured": e.of_shortest},
    ),
    needs=("cme-layer-is-bayes", "softmax-rate", "cme-error"),
)
def heads_by_length(cell: Setting, draws: Draws) -> Values:
    sizes, once = len(cell.length), slice(cell.runs, 2 * cell.runs)
    task = regression(cell, np.repeat(cell.length, cell.runs))
    every = range(len(task.length))

    def keys(purpose: str) -> Array:
        return jax.random.split(draws(purpose), len(task.length))

    def trained(attention: str, some: slice, batch: int) -> PairHead:
        start = jax.vmap(lambda key: random_head(key, attention))(keys("weights")[some])
        here = jax.tree.map(lambda x: x[some], task)
        recipe = Recipe(cell.steps, batch, cell.rate)
        return train_encoders(start, here, keys("training")[some], recipe).encoders

    softmax = trained("softmax", slice(None), cell.batch)
    # On as many sequences as softmax heads of all lengths together.
    cme = trained("CME", once, sizes * cell.batch)
    cme = jax.tree.map(lambda x: np.concatenate([x] * sizes), cme)
    seen = draw_runs(task, keys("asked"), cell.sequences)
    least, bayes = posterior_risks(task, seen), task.bayes(seen)
    averages = [best_average(task, seen, row) for row in every]
    shortest = np.tile(np.array(averages[: cell.runs]), (sizes, 1))
    stays = local_average(seen, shortest[:, 0]) * shortest[:, 1, None, None]
    found = {
        "predicted": [least, least + [average.distance for average in averages]],
        "measured": [least + excess_risk(heads, task, seen) for heads in (cme, softmax)],
        "of_shortest": [least, least + ((stays - bayes) ** 2).mean((1, 2))],
    }
    values = {name: np.reshape(x, (2, sizes, cell.runs)) for name, x in found.items()}
    # For the keys that were drawn, which theory and heads share.
    apart = (values["measured"] - values["predicted"]).std(-1, ddof=1)
    return {
        **on("attention tokens", **{name: x.mean(-1) for name, x in values.items()}),
        **on("attention tokens", error=apart / cell.runs**0.5),
        **on("tokens", x=np.array(cell.length, float)),
        "repetitions": float(cell.runs),
        "attention": ["CME", "softmax"],
        "tokens": list(cell.length),
    }


def posterior_risks(task: Pairs, seen: Data) -> Float[np.ndarray, " run"]:
    r"""The mean of $\mathrm{var}(f \mid X) = \varphi^\top(I + \Phi^\top\Phi/\sigma^2)^{-1}\varphi$
    at the queries, for the features $\varphi$ of `Pairs.bayes`."""
    risks = []
    for row, (powers, noise) in enumerate(zip(task.powers, task.noise, strict=True)):
        keys, query = (np.asarray(x, float)[row, ..., :2] for x in (seen.tokens, seen.query))
        phi, asked = (harmonics(np.arctan2(x[..., 1], x[..., 0]), powers) for x in (keys, query))
        phi = phi * np.asarray(seen.counts, float)[row, ..., None]
        system = np.eye(phi.shape[-1]) + phi.swapaxes(1, 2) @ phi / noise**2
        spread = np.linalg.solve(system, asked[..., None])[..., 0]
        risks.append((asked * spread).sum(-1).mean())
    return np.array(risks)


@heads_by_length.figure
def risks_by_length(evidence: xr.Dataset) -> Figure:
    shown = evidence.isel(cell=0)
    figure = log_figure(
        shown,
        "Trained heads and longer contexts",
        "mean over runs; dashed: the theory at these lengths",
        y="mean square error",
    )
    kept = shown["of_shortest"].sel(attention="softmax", drop=True)
    name = "a local average of the shortest length's temperature"
    figure.lines("tokens", "predicted", color="attention", theory=True)
    figure.lines("tokens", {name: name}, data=kept.to_dataset(name=name), points=True)
    return figure.points("tokens", "measured", error="error", color="attention")


# --- layer by layer -------------------------------------------------------------------------------


@latent_posterior.measurement(
    "trained-layers",
    hypotheses=(
        RUNS,
        defining(
            "layers are 1, 2 and more, in ascending order",
            lambda s: tuple(s.layers[:2]) == (1, 2) and list(s.layers) == sorted(set(s.layers)),
        ),
    ),
    quick=Setting(
        layers=(1, 2),
        length=8,
        temperature=0.5,
        noise=0.3,
        width=12,
        steps=800,
        batch=24,
        rate=0.015,
        runs=20,
        sequences=1000,
    ),
    paper=dict(layers=(1, 2, 4), length=12, width=16, steps=1500, batch=32, rate=0.006, runs=16),
    cells=whole,
    budget="runs",
    precision="float32",
    long=True,
)
def trained_layers(cell: Setting, draws: Draws) -> Values:
    """Distances to the posterior mean, in units of its mean square: of encoders of so many layers,
    of one layer of CME attention and of the best local average; and what a linear probe leaves of
    it after each layer of the deepest, before training too. Runs that became non-finite are NaN."""
    task = regression(cell, np.full(cell.runs, cell.length))
    weights, training, asked = (
        jax.random.split(draws(name), cell.runs) for name in ("weights", "training", "asked")
    )
    seen = draw_runs(task, asked, 2 * cell.sequences)
    bayes = task.bayes(seen)
    size = (bayes**2).mean((1, 2))

    def networks(layers: int, attention: str) -> tuple[Any, Trained]:
        """Before and after training."""
        shape: dict[str, Any] = {"width": cell.width, "layers": layers, "attention": attention}
        start = random_encoders(weights, 3, 1, **shape)
        recipe = Recipe(cell.steps, cell.batch, cell.rate)
        return start, train_encoders(start, task, training, recipe)

    def lost(found: Trained) -> Float[np.ndarray, " run"]:
        return or_failed(excess_risk(found.encoders, task, seen) / size, found.finite)

    def left_by_probes(encoders: Any) -> Float[np.ndarray, "layer run"]:
        states = np.asarray(represent(encoders, seen), float)
        return np.stack([1 - explained(x, bayes) for x in states.swapaxes(0, 1)])

    found = [networks(layers, "softmax") for layers in cell.layers]
    (_, cme), (start, deepest) = networks(1, "CME"), found[-1]
    left = or_failed(left_by_probes(deepest.encoders), deepest.finite)
    nearest = [best_average(task, seen, row).distance for row in range(cell.runs)]
    return {
        **on("depth run", excess=np.stack([lost(after) for _, after in found])),
        **on("layer run", left=left, left_before=left_by_probes(start)),
        **on("run", cme=lost(cme), average=np.array(nearest) / size),
        "depth": [float(layers) for layers in cell.layers],
        "layer": [1.0 + layer for layer in range(cell.layers[-1])],
    }


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="inference layer by layer",
    statement="Encoders are trained on pairs as in `cme-layer-is-bayes`. The mean square"
    " distance of their answers to the posterior mean is smaller for two layers of softmax"
    " attention with MLPs than for one, and for one it is smaller than that of the best local"
    " average of the same keys and values. The part of the posterior mean that a linear probe"
    " does not explain falls with every layer of the deepest encoder, which has two (four at"
    " the paper's scale). One layer of CME attention with an MLP comes nearer to the posterior"
    " mean than all these encoders.",
    words="Layers of softmax attention approach the posterior mean step by step. With an MLP one of"
    " them is better than any local average; one layer that solves the ridge regression is better"
    " than two or four of them. Runs that become non-finite are left out."
    " More than a quarter of them leave nothing decided.",
    measured_by=trained_layers,
    rule=Order(),
    control=Control(
        "networks that are {size:.0%} of the way back to their weights before training, at the"
        " inequality where it is hardest to tell",
        lambda e, size: hardest(e, e.lower + size * (e.before - e.lower)),
        size=1.0,
    ),
    needs=("softmax-head-gap",),
)
def error_by_layer(evidence: xr.Dataset) -> Values:
    # Logarithms, since runs differ by factors.
    names = ("excess", "left", "left_before", "average", "cme")
    logs: Any = np.log(finite_runs(evidence[list(names)]))
    excess, left, before, average, cme = (logs[name] for name in names)

    def of(values: xr.DataArray, **place: float) -> xr.DataArray:
        return values.sel(place, drop=True)

    one, two = (of(excess, depth=float(layers)) for layers in (1, 2))
    untrained = xr.zeros_like(one)  # all of them say 0, at a distance of 1
    rows = [
        ("2 layers: 1 layer", two, one, untrained),
        ("1 layer: the best local average", one, average, untrained),
        ("CME: the best depth", cme, excess.min("depth"), untrained),
    ]
    for first in evidence["layer"].values[:-1]:
        later, then = of(left, layer=first + 1), of(before, layer=first + 1)
        rows.append((f"after layer {first + 1:g}: {first:g}", later, of(left, layer=first), then))
    found = sides(*((name, low, high) for name, low, high, _ in rows))
    back = xr.concat([row[-1] for row in rows], found["lower"]["inequality"]).mean("run")
    return {**found, "before": back}


@error_by_layer.figure
def distances_by_layer(evidence: xr.Dataset) -> Figure:
    shown = evidence.isel(cell=0).mean("run")
    depth, layer = "encoders of so many layers", "a probe after each layer of the deepest"
    untrained = "the probe, before training"
    figure = Figure(
        shown[["excess"]].rename({"excess": depth, "depth": "layer"}),
        "Layer by layer towards the posterior mean",
        "mean over runs, in units of the posterior mean's square",
        x="layers",
        y="distance to the posterior mean",
        log="y",
        legend={"series": None},
    )
    figure.lines("{layer:g}", {depth: depth}, points=True)
    probes = shown[["left", "left_before"]].rename({"left": layer, "left_before": untrained})
    names = {name: name for name in (layer, untrained)}
    figure.lines("{layer:g}", names, data=probes, points=True)
    figure.rule(float(shown["average"]), "the best local average")
    return figure.rule(float(shown["cme"]), "one layer of CME attention")
