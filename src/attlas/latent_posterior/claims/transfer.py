"""Claims about masked pretraining and what a task gains from it: the condition number, its equality case, blindness, probes, coverage."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from attlas.claims.compat import (
    Agreement,
    Approximation,
    Bound,
    Control,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.latent_posterior.claims.shared import FIGURES, PAPER, random_topics
from attlas.latent_posterior.inference import mixture_law, sequences
from attlas.latent_posterior.models import FiniteLatent, compositions, log_ways, posterior_of
from attlas.latent_posterior.pretraining import (
    LinearGaussian,
    masked_operator,
    masked_topics,
    on_simplex,
    tangent,
    unconstrained,
)
from attlas.latent_posterior.transfer import condition_number, coverage_number

MASKED = "latent-posterior/masked-minimiser"


@claim(
    MASKED,
    source=PAPER,
    reference="masked pretraining",
    statement=r"The minimiser of the masked risk, $E[v \mid X_{-i}]$ for one hidden token or several, is $T\pi_{X_{-i}}$ with $T_{wz} = P(w \mid z)$: a linear image of the posterior given the tokens that are left.",
    words="Who predicts a hidden word best has the latent's posterior, seen through a matrix.",
    hypotheses=(
        Hypothesis("length - hidden >= 1", lambda s: s.length > s.hidden, defining=True),
        Hypothesis(
            "length - hidden = left", lambda s: s.length - s.hidden == s.left, defining=True
        ),
    ),
    quick=Setting(length=(4, 5), hidden=(1, 2), left=3, latents=3, vocabulary=4),
    paper=Setting(length=(5, 6, 7), hidden=(1, 2, 3), left=4, latents=3, vocabulary=4),
    rule=Agreement(),
    control=Control("the posterior of a uniform prior", lambda e: e.assign(predicted=e["uniform"])),
    figure=drawn_by(f"{FIGURES}.transfer:masked"),
    cells=together("length", "hidden"),
    needs=("latent-posterior/predictive",),
    origin="our reading",
)
def masked_minimiser(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    model = random_topics(key_for(seed, MASKED, "topics"), cell.latents, cell.vocabulary)
    # The law of the tokens that are left and of one hidden token; the other hidden ones are summed over.
    law = mixture_law(model, cell.length).sum(axis=tuple(range(cell.left, cell.length - 1)))
    law = law.reshape(-1, cell.vocabulary)
    left, operator = sequences(cell.vocabulary, cell.left), masked_operator(model)
    likelihood = model.log_likelihood(left)
    posteriors = [
        posterior_of(p, likelihood) for p in (model.prior, np.full(cell.latents, 1 / cell.latents))
    ]
    axes = ("cell", "sequence", "word")
    predicted, uniform = (posterior @ operator.T for posterior in posteriors)
    return xr.Dataset(
        {
            "predicted": (axes, predicted[None]),
            "uniform": (axes, uniform[None]),
            "measured": (axes, (law / law.sum(1, keepdims=True))[None]),
            "error": 0.0,
        }
    )


# --- the condition number --------------------------------------------------------------------------------------------

INEQUALITY = "latent-posterior/transfer-inequality"


@claim(
    INEQUALITY,
    source=PAPER,
    reference="condition number of pretraining and task",
    statement=r"$|D\delta|^2 \le \kappa\,|T\delta|^2$ for every error $\delta$ of a representation, with $\kappa = \sigma_{max}(DT^+)^2$: the downstream excess is at most the condition number times the pretraining excess."
    r" The witness attains it.",
    words="How much of what pretraining got wrong the task can see is one number, and there is an error for which it is all.",
    hypotheses=(
        Hypothesis("targets >= dim", lambda s: s.targets >= s.dim, defining=True),
        Hypothesis("outputs >= 2", lambda s: s.outputs >= 2, defining=True),
    ),
    quick=Setting(dim=(3, 8), targets=10, outputs=3, pairs=50, directions=200),
    paper=Setting(dim=(3, 8, 30), targets=40, outputs=3, pairs=100, directions=1000),
    rule=Bound(rounding=1e-9),
    control=Control(
        "the second largest ratio in place of the largest",
        lambda e: e.assign(bound=e["bound"] * e["second"]),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:inequality"),
    cells=together("dim"),
    origin="our reading",
)
def transfer_inequality(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    rng = stream(key_for(seed, INEQUALITY, "operators"))
    rows = (cell.targets, cell.outputs, cell.directions)
    t, d, errors = (rng.standard_normal((cell.pairs, count, cell.dim)) for count in rows)
    found = [condition_number(*pair) for pair in zip(t, d, strict=True)]
    errors[:, 0] = [pair.witness for pair in found]
    gains = np.linalg.svd(d @ np.linalg.pinv(t), compute_uv=False)

    def squares(operator: np.ndarray) -> np.ndarray:
        return (np.einsum("pij,pkj->pki", operator, errors) ** 2).sum(-1)

    axes = ("cell", "pair", "direction")
    kappa = np.array([pair.value for pair in found])
    return xr.Dataset(
        {
            "bound": (axes, (kappa[:, None] * squares(t))[None]),
            "measured": (axes, squares(d)[None]),
            "second": (("cell", "pair"), (gains[:, 1] ** 2 / gains[:, 0] ** 2)[None]),
            "error": 0.0,
        }
    )


PRICE = "latent-posterior/transfer-price"
LATENTS = 4


def pretrained(kappa: float, length: int, weakest: bool = True) -> LinearGaussian:
    """A masked target whose directions are seen with sizes from 1 down to $\\kappa^{-1/2}$, and a task that reads the weakest, or the strongest."""
    sizes = np.geomspace(1, kappa**-0.5, LATENTS)
    task = np.eye(LATENTS)[[-1 if weakest else 0]]
    return LinearGaussian(np.eye(LATENTS), np.diag(sizes), task, length)


SEEN = Hypothesis("kappa >= 1", lambda s: s.kappa >= 1, defining=True)


def transfer_price(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    model = pretrained(cell.kappa, cell.length)
    found = model.pretrain(key_for(seed, PRICE, "runs"), cell.samples, cell.repeats)
    runs = np.stack([found.pretraining, found.downstream])
    axes = ("cell", "risk")
    return xr.Dataset(
        {
            "predicted": (axes, [model.expected(cell.samples)]),
            "measured": (axes, runs.mean(1)[None]),
            "error": (axes, runs.std(1, ddof=1)[None] / np.sqrt(cell.repeats)),
            "strongest": (
                axes,
                [pretrained(cell.kappa, cell.length, weakest=False).expected(cell.samples)],
            ),
            "allowed": ("cell", [cell.kappa * found.pretraining.mean()]),
            "largest": ("cell", [(found.downstream / found.pretraining).max()]),
        },
        coords={"risk": ["pretraining", "task"]},
    )


PRICED = {
    "hypotheses": (SEEN, Hypothesis("samples > 7", lambda s: s.samples > 7, defining=True)),
    "quick": Setting(kappa=(1.0, 16.0, 256.0, 4096.0), length=20, samples=60, repeats=1000),
    "paper": Setting(
        kappa=(1.0, 4.0, 16.0, 64.0, 256.0, 1024.0), length=20, samples=200, repeats=4000
    ),
    "cells": together("kappa"),
    "budget": "repeats",
    "origin": "ours",
}

claim(
    PRICE,
    source="attlas",
    reference="pretraining excess and downstream excess, in mean",
    statement=r"Tokens $z + \sigma e$ in d dimensions, a hidden value $Az + s\,e'$, a task $Bz$ that reads the direction which A shows weakest: pretraining by least squares on n sequences has the mean excess"
    r" $\frac{d}{n-d-1}\sum_j(a_j^2P + s^2)$, and the task $\frac{d}{n-d-1}(P + \kappa s^2)$ with $P = \frac{\sigma^2}{\sigma^2 + L}$ and $\kappa = 1/a_{min}^2$.",
    words="What a task pays for pretraining that sees its direction dimly grows in proportion to the condition number, while pretraining looks the same.",
    rule=Agreement(),
    control=Control(
        "a task that reads the strongest direction, whose condition number is 1",
        lambda e: e.assign(predicted=e["strongest"]),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:price"),
    needs=(INEQUALITY,),
    **PRICED,
)(transfer_price)

claim(
    "latent-posterior/transfer-runs",
    source=PAPER,
    reference="condition number of pretraining and task",
    statement=r"In each of these runs of pretraining the downstream excess is at most $\kappa$ times the pretraining excess; $\kappa$ cannot be replaced by the condition number of a task that reads the strongest direction, which is 1.",
    words="No run of pretraining costs the task more than the condition number allows.",
    rule=Bound(rounding=1e-9),
    fit=lambda e: e.assign(bound=e["kappa"], measured=e["largest"], error=0.0),
    control=Control(
        "the condition number of the task that reads the strongest direction",
        lambda e: e.assign(bound=1.0),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:runs"),
    needs=(INEQUALITY,),
    **{**PRICED, "origin": "our reading"},
)(transfer_price)


SHARE = "latent-posterior/masked-share"


@claim(
    SHARE,
    long=True,
    source="attlas",
    reference="masked pretraining, a share of the tokens hidden",
    statement=r"With h of L tokens hidden, least squares of the hidden values $Az + s\,e'$ on the $L - h$ tokens $z + \sigma e$ that are left has the mean excess $\frac{d}{n-d-1}\sum_j(a_j^2P + \frac{s^2}{h})$ with"
    r" $P = \frac{\sigma^2}{\sigma^2 + L - h}$, and a task that reads the weakest direction $\frac{d}{n-d-1}(P + \frac{\kappa s^2}{h})$: more hidden tokens average the noise, not the latent that they share, and leave less to read it from.",
    words="Hiding more tokens gives more targets and less context, and what is best can be computed.",
    hypotheses=(
        SEEN,
        Hypothesis("1 <= hidden < length", lambda s: 1 <= s.hidden < s.length, defining=True),
        Hypothesis("samples > 7", lambda s: s.samples > 7, defining=True),
    ),
    quick=Setting(hidden=(1, 4, 8, 12), length=16, kappa=16.0, samples=60, repeats=1000),
    paper=Setting(
        hidden=(1, 2, 4, 8, 16, 24, 28, 30), length=32, kappa=16.0, samples=200, repeats=8000
    ),
    rule=Agreement(),
    control=Control(
        "hidden tokens that are independent of one another",
        lambda e: e.assign(predicted=e["independent"]),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:share"),
    cells=together("hidden"),
    budget="repeats",
    needs=(PRICE, MASKED),
    origin="ours",
)
def masked_share(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    one = pretrained(cell.kappa, cell.length - cell.hidden)
    model = replace(one, hidden=cell.hidden)
    found = model.pretrain(key_for(seed, SHARE, "runs"), cell.samples, cell.repeats)
    runs = np.stack([found.pretraining, found.downstream])
    axes = ("cell", "risk")
    return xr.Dataset(
        {
            "predicted": (axes, [model.expected(cell.samples)]),
            "measured": (axes, runs.mean(1)[None]),
            "error": (axes, runs.std(1, ddof=1)[None] / np.sqrt(cell.repeats)),
            "independent": (axes, np.array([one.expected(cell.samples)]) / cell.hidden),
        },
        coords={"risk": ["pretraining", "task"]},
    )


BLIND = "latent-posterior/blind-pretraining"


@claim(
    BLIND,
    source="attlas",
    reference="infinite condition number",
    statement=r"If the task reads a direction that A does not show, $\kappa = \infty$: the pretraining excess falls as $\frac{d}{n-d-1}\mathrm{tr}\,\Sigma$, and the downstream excess stays at $E|B(I - A^+A)\mu|^2$, both within 10 %,"
    r" however large n is.",
    words="Pretraining that is blind to what a task reads gets better and better, and the task does not.",
    quick=Setting(samples=(40, 400), length=20, faint=0.1, repeats=1000),
    paper=Setting(samples=(100, 1000, 3000), length=20, faint=0.1, repeats=1000),
    rule=Approximation(margin=0.1),
    control=Control(
        "pretraining that sees the direction faintly, with a tenth of the size",
        lambda e: e.assign(measured=e["seen"], error=e["spread"]),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:blind"),
    cells=together("samples"),
    budget="repeats",
    needs=(PRICE,),
    origin="ours",
)
def blind_pretraining(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = np.eye(LATENTS)[[-1]] + 0.2 * np.eye(LATENTS)[[0]]
    shown = {size: np.diag([1.0] * (LATENTS - 1) + [size]) for size in (0.0, cell.faint)}
    models = [LinearGaussian(np.eye(LATENTS), a, task, cell.length) for a in shown.values()]
    runs = [m.pretrain(key_for(seed, BLIND, "runs"), cell.samples, cell.repeats) for m in models]
    values = np.array([[run.pretraining, run.downstream] for run in runs])
    mean, error = values.mean(-1), values.std(-1, ddof=1) / np.sqrt(cell.repeats)
    kappa = condition_number(shown[0.0], task)
    floor = models[0].expected(10**9)[1] if np.isinf(kappa.value) else 0.0
    axes = ("cell", "risk")
    return xr.Dataset(
        {
            "predicted": (axes, [[models[0].expected(cell.samples)[0], floor]]),
            "measured": (axes, mean[:1]),
            "error": (axes, error[:1]),
            "seen": (axes, mean[1:]),
            "spread": (axes, error[1:]),
        },
        coords={"risk": ["pretraining", "task"]},
        attrs={"reason": kappa.reason},
    )


# --- probes ----------------------------------------------------------------------------------------------------------

PROBES = "latent-posterior/probe-crossover"
LABEL_NOISE = 0.5
WAYS = ["probe on pretraining", "from scratch"]


def pretrained_tokens(kappa: float, dim: int, length: int, seed: int) -> LinearGaussian:
    """The same with tokens of many dimensions, of which a few random ones carry the latent."""
    drawn = stream(key_for(seed, PROBES, "mixing")).standard_normal((dim, LATENTS))
    plain = pretrained(kappa, length)
    return LinearGaussian(3 * np.linalg.qr(drawn)[0], plain.masked, plain.task, length)


@claim(
    PROBES,
    source=PAPER,
    reference="linear probes and few labels",
    statement=r"With two to five labels for each dimension of the tokens, and ten or more sequences for each to pretrain on, a linear probe on what masked pretraining learnt has a lower excess risk than least squares on the tokens where the condition number is 1, and a higher one where it is $10^4$.",
    words="Pretraining saves labels if it saw what the task reads, and costs them if it hardly did.",
    hypotheses=(
        Hypothesis("labels > dim", lambda s: s.labels > s.dim, defining=True),
        Hypothesis(
            "2 dim <= labels <= 5 dim, and dim >= 8",
            lambda s: 2 * s.dim <= s.labels <= 5 * s.dim and s.dim >= 8,
        ),
        Hypothesis("samples >= 10 dim", lambda s: s.samples >= 10 * s.dim),
        Hypothesis(
            "kappa runs from 1 to 10000",
            lambda s: s.kappa[0] == 1 and s.kappa[-1] == 10_000,
            defining=True,
        ),
    ),
    quick=Setting(
        kappa=(1.0, 10.0, 100.0, 1000.0, 10_000.0),
        dim=12,
        length=20,
        samples=600,
        labels=40,
        repeats=64,
    ),
    paper=Setting(
        kappa=(1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 10_000.0),
        dim=30,
        length=20,
        samples=2000,
        labels=100,
        repeats=64,
    ),
    rule=Order(),
    control=Control(
        "the probe always wins", lambda e: e.assign(lower=e["probe_ends"], upper=e["scratch_ends"])
    ),
    figure=drawn_by(f"{FIGURES}.transfer:crossover"),
    budget="repeats",
    needs=(PRICE,),
    origin="our reading",
)
def probe_crossover(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    probe, scratch, theory = [], [], []
    for kappa in cell.kappa:
        model = pretrained_tokens(kappa, cell.dim, cell.length, seed)
        found = model.pretrain(
            key_for(seed, PROBES, "runs"), cell.samples, cell.repeats
        ).coefficients
        labelled = (key_for(seed, PROBES, "labels"), cell.labels, cell.repeats, LABEL_NOISE)
        probe.append(model.probe(found, *labelled))
        scratch.append(model.probe(None, *labelled))
        theory.append(
            [np.mean(model.expected_probe(way, cell.labels, LABEL_NOISE)) for way in (found, None)]
        )
    runs = np.array([probe, scratch])
    mean, gap = runs.mean(-1), (runs[0] - runs[1]).std(-1, ddof=1) / np.sqrt(cell.repeats)
    ends = [0, -1]
    lower, upper = ([mean[i, 0], mean[1 - i, -1]] for i in (0, 1))
    return xr.Dataset(
        {
            "lower": (("cell", "end"), [lower]),
            "upper": (("cell", "end"), [upper]),
            "error": (("cell", "end"), gap[ends][None]),
            "repetitions": ("cell", [cell.repeats]),
            "probe_ends": (("cell", "end"), mean[0, ends][None]),
            "scratch_ends": (("cell", "end"), mean[1, ends][None]),
            "excess": (("cell", "way", "number"), mean[None]),
            "theory": (("cell", "way", "number"), np.transpose(theory)[None]),
            "spread": (
                ("cell", "way", "number"),
                runs.std(-1, ddof=1)[None] / np.sqrt(cell.repeats),
            ),
        },
        coords={"way": WAYS, "number": list(cell.kappa)},
    )


PROBE_PRICE = "latent-posterior/probe-price"


@claim(
    PROBE_PRICE,
    source="attlas",
    reference="linear probes and few labels, in mean",
    statement=r"A linear probe with n labels on p features $\hat G\bar x$ of pretraining has the mean excess risk $v_G - v + \frac{p\,v_G}{n-p-1}$, $v_G$ the variance that is left of a label given the features"
    r" and v given all tokens; least squares from scratch is the case of p = d features with $v_G = v$.",
    words="What a probe saves by having few features and loses by having the wrong ones, to the last digit.",
    hypotheses=(
        SEEN,
        Hypothesis(
            "labels > dim + 3, so that the variance is finite",
            lambda s: s.labels > s.dim + 3,
            defining=True,
        ),
    ),
    quick=Setting(
        kappa=(1.0, 100.0, 10_000.0), dim=12, length=20, samples=600, labels=40, repeats=4000
    ),
    paper=Setting(
        kappa=(1.0, 16.0, 256.0, 10_000.0),
        dim=30,
        length=20,
        samples=2000,
        labels=100,
        repeats=8000,
    ),
    rule=Agreement(),
    control=Control(
        "features that are fixed, with n in place of n - p - 1",
        lambda e: e.assign(predicted=e["fixed"]),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:probe_price"),
    cells=together("kappa"),
    budget="repeats",
    needs=(PROBES,),
    origin="ours",
)
def probe_price(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """One pretraining, probed with many sets of labels."""
    (cell,) = cells
    model = pretrained_tokens(cell.kappa, cell.dim, cell.length, seed)
    (found,) = model.pretrain(key_for(seed, PROBE_PRICE, "run"), cell.samples, 1).coefficients
    predicted, fixed, runs = [], [], []
    for features in (found, None):
        runs.append(
            model.probe(
                features,
                key_for(seed, PROBE_PRICE, "labels"),
                cell.labels,
                cell.repeats,
                LABEL_NOISE,
            )
        )
        price, limit = (
            float(model.expected_probe(features, n, LABEL_NOISE)) for n in (cell.labels, 10**12)
        )
        p = LATENTS if features is not None else cell.dim
        predicted.append(price)
        fixed.append(limit + (price - limit) * (cell.labels - p - 1) / cell.labels)
    axes = ("cell", "way")
    return xr.Dataset(
        {
            "predicted": (axes, [predicted]),
            "fixed": (axes, [fixed]),
            "measured": (axes, np.mean(runs, 1)[None]),
            "error": (axes, np.std(runs, 1, ddof=1)[None] / np.sqrt(cell.repeats)),
        },
        coords={"way": WAYS},
    )


SIMPLEX = "latent-posterior/simplex-hides"


@claim(
    SIMPLEX,
    source="attlas",
    reference="a negative result",
    statement=r"A representation that is a softmax over the latents, trained on the masked objective, does not show the condition number: its downstream excess over its pretraining excess stays below $\sqrt\kappa$"
    r" for $\kappa$ up to 1024, where that of a linear representation comes near $\kappa$.",
    words="A representation that cannot leave the simplex shows at most the root of how ill-conditioned its pretraining was.",
    hypotheses=(SEEN,),
    quick=Setting(
        kappa=(1.0, 32.0, 1024.0), length=7, samples=4000, noise=1.0, steps=200, repeats=48
    ),
    paper=Setting(
        kappa=(1.0, 4.0, 16.0, 64.0, 256.0, 1024.0),
        length=9,
        samples=4000,
        noise=1.0,
        steps=400,
        repeats=96,
    ),
    rule=Bound(),
    control=Control(
        "a linear representation, which may leave the simplex",
        lambda e: e.assign(measured=e["free"], error=e["spread"]),
    ),
    figure=drawn_by(f"{FIGURES}.transfer:simplex"),
    cells=together("kappa"),
    budget="repeats",
    needs=(PRICE, MASKED),
    origin="ours",
)
def simplex_hides(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    model = FiniteLatent(np.full(LATENTS, 1 / LATENTS), 0.4 * np.eye(LATENTS) + 0.6 / LATENTS)
    masked = masked_topics(
        model, cell.length, np.geomspace(1, cell.kappa**-0.5, LATENTS - 1), cell.noise
    )
    task = tangent(LATENTS)[:, -1:].T
    drawn = masked.sample(
        key_for(seed, SIMPLEX, "samples"), cell.samples, cell.repeats, model.words
    )
    found = {}
    for name, representation in (
        ("", on_simplex(masked, *drawn, steps=cell.steps)),
        ("free ", unconstrained(masked, *drawn)),
    ):
        error = representation - masked.posterior
        pre, down = masked.excess(error, masked.operator), masked.excess(error, task)
        ratio = down.mean() / pre.mean()
        found[name] = ratio, (down - ratio * pre).std(ddof=1) / np.sqrt(cell.repeats) / pre.mean()
    return xr.Dataset(
        {
            "bound": ("cell", [float(np.sqrt(cell.kappa))]),
            "measured": ("cell", [found[""][0]]),
            "error": ("cell", [found[""][1]]),
            "repetitions": ("cell", [cell.repeats]),
            "free": ("cell", [found["free "][0]]),
            "spread": ("cell", [found["free "][1]]),
            "condition": ("cell", [condition_number(masked.operator, task, simplex=True).value]),
        }
    )


COVERAGE = "latent-posterior/coverage"


@claim(
    COVERAGE,
    source=PAPER,
    reference="shift from pretraining to task",
    statement=r"$E_{down}[\ell(X)] \le \sup\frac{dP_{down}}{dP_{pre}}\,E_{pre}[\ell(X)]$ for every loss $\ell \ge 0$ of a sequence, with equality for a loss at the sequence that the task favours most.",
    words="A task whose sequences are other than those of pretraining pays by how much more often it meets some of them.",
    quick=Setting(length=(3, 8), latents=3, vocabulary=4, losses=100),
    paper=Setting(length=(3, 8, 20), latents=3, vocabulary=4, losses=1000),
    rule=Bound(rounding=1e-9),
    control=Control("no factor, as if nothing had shifted", lambda e: e.assign(bound=e["before"])),
    figure=drawn_by(f"{FIGURES}.transfer:coverage"),
    cells=together("length"),
    origin="our reading",
)
def coverage(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    topics = random_topics(key_for(seed, COVERAGE, "topics"), cell.latents, cell.vocabulary)
    counts = compositions(cell.length, cell.vocabulary)
    likelihood = np.exp(
        topics.log_likelihood_of_counts(counts.astype(float)) + log_ways(counts)[:, None]
    )
    skewed = np.asarray(topics.prior) ** 3
    before, after = (likelihood @ law for law in (topics.prior, skewed / skewed.sum()))
    losses = stream(key_for(seed, COVERAGE, "losses")).exponential(size=(cell.losses, len(counts)))
    losses[0] = np.arange(len(counts)) == np.argmax(after / before)
    factor = coverage_number(before / before.sum(), after / after.sum())
    axes = ("cell", "loss")
    return xr.Dataset(
        {
            "bound": (axes, factor * (losses @ before)[None]),
            "measured": (axes, (losses @ after)[None]),
            "before": (axes, (losses @ before)[None]),
            "error": 0.0,
        }
    )
