"""Claims about masked pretraining and what a task gains from it.

The condition number, its equality case, blindness, probes.
"""

from dataclasses import replace

import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together, whole
from attlas.claims.rules import Agreement, Approximation, Bound, Order
from attlas.figure import Figure, agreement
from attlas.gaussian import Estimate
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import LEGENDS, defining, log_figure, random_topics
from attlas.latent_posterior.inference import mixture_law, sequences
from attlas.latent_posterior.models import FiniteLatent, posterior_of
from attlas.latent_posterior.pretraining import (
    LinearGaussian,
    masked_operator,
    masked_topics,
    on_simplex,
    tangent,
    unconstrained,
)
from attlas.latent_posterior.transfer import condition_number
from attlas.rademacher import mean_of


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="masked pretraining",
    statement=r"The minimiser of the masked risk, $E[v \mid X_{-i}]$ for one hidden token or"
    r" several, is $T\pi_{X_{-i}}$ with $T_{wz} = P(w \mid z)$: a linear image of the posterior"
    r" given the tokens that are left.",
    words="The best prediction of a hidden word is a fixed matrix times the posterior of the"
    " latent.",
    hypotheses=(defining("length - hidden = left", lambda s: s.length - s.hidden == s.left),),
    quick=Setting(length=(4, 5), hidden=(1, 2), left=3, latents=3, vocabulary=4),
    paper=dict(length=(5, 6, 7), hidden=(1, 2, 3), left=4),
    cells=together("length", "hidden"),
    rule=Agreement(),
    control=Control("the posterior of a uniform prior", lambda e: {"predicted": e.uniform}),
    needs=("predictive",),
)
def masked_minimiser(cell: Setting, draws: Draws) -> Values:
    model = random_topics(draws.stream("topics"), cell.latents, cell.vocabulary)
    # The law of the tokens that are left and one hidden token; other hidden ones are summed over.
    law = mixture_law(model, cell.length).sum(axis=tuple(range(cell.left, cell.length - 1)))
    # Least squares of the hidden word, an indicator, on an indicator of the sequence.
    root = np.sqrt(law.reshape(-1, cell.vocabulary, 1))
    tokens = (root * np.eye(len(root))[:, None]).reshape(-1, len(root))
    hidden = (root * np.eye(cell.vocabulary)).reshape(-1, cell.vocabulary)
    least_squares = np.linalg.lstsq(tokens, hidden)[0]
    likelihood = model.log_likelihood(sequences(cell.vocabulary, cell.left))
    priors = model.prior, np.full(cell.latents, 1 / cell.latents)
    predicted, uniform = (
        posterior_of(prior, likelihood) @ masked_operator(model).T for prior in priors
    )
    values = {"predicted": predicted, "uniform": uniform, "measured": least_squares}
    return {**on("sequence word", **values), "error": 0.0}


@masked_minimiser.figure
def guesses_of_a_hidden_word(evidence: xr.Dataset) -> Figure:
    ways = {"predicted": "image of the posterior", "uniform": "with a uniform prior"}
    figure = Figure(
        evidence,
        "The best guess of a hidden word",
        x="probability of a word, by least squares",
        y="the same from a posterior",
    )
    return figure.diagonal("measured", "predicted").points("measured", ways)


# --- the condition number ----------------------------------------------------------------------

LATENTS = 4
SPREAD_FINITE = defining("samples > 7", lambda s: s.samples > 7)
RISKS = ["pretraining", "task"]
CONDITION = "condition number κ"


def pretrained(kappa: float, length: int, weakest: bool = True) -> LinearGaussian:
    """A masked target that shows directions with sizes from 1 to kappa^(-1/2), and a task.

    The task reads the weakest direction, or the strongest.
    """
    sizes = np.geomspace(1, kappa**-0.5, LATENTS)
    task = np.eye(LATENTS)[[-1 if weakest else 0]]
    return LinearGaussian(np.eye(LATENTS), np.diag(sizes), task, length)


def measured_excesses(model: LinearGaussian, cell: Setting, draws: Draws) -> Estimate:
    """Mean excess risks of pretraining and of the task."""
    found = model.pretrain(draws("runs"), cell.samples, cell.repeats)
    return mean_of(np.stack([found.pretraining, found.downstream]))


@latent_posterior.claim(
    kind="simulation",
    origin="ours",
    reference="pretraining excess and downstream excess, in mean",
    statement=r"Tokens are $z + \sigma e$ in $d$ dimensions, a hidden value is $Az + s\,e'$,"
    r" and a task $Bz$ reads the direction which $A$ shows most weakly. Pretraining by least"
    r" squares on $n$ sequences has the mean excess $\frac{d}{n-d-1}\sum_j(a_j^2P + s^2)$, and"
    r" the task $\frac{d}{n-d-1}(P + \kappa s^2)$ with $P = \frac{\sigma^2}{\sigma^2 + L}$ and"
    r" $\kappa = 1/a_{min}^2$.",
    words="The excess risk of a task grows linearly with the condition number, while that of"
    " pretraining hardly changes.",
    hypotheses=(SPREAD_FINITE,),
    quick=Setting(kappa=(1.0, 16.0, 256.0, 4096.0), length=20, samples=60, repeats=1000),
    paper=dict(kappa=(1.0, 4.0, 16.0, 64.0, 256.0, 1024.0), samples=200, repeats=4000),
    cells=together("kappa"),
    budget="repeats",
    rule=Agreement(),
    control=Control(
        "a task that reads the strongest direction, whose condition number is 1",
        lambda e: {"predicted": e.strongest},
    ),
    needs=("masked-minimiser",),
)
def transfer_price(cell: Setting, draws: Draws) -> Values:
    model = pretrained(cell.kappa, cell.length)
    easy = pretrained(cell.kappa, cell.length, weakest=False)
    measured = measured_excesses(model, cell, draws)
    formulas = {"predicted": model.expected(cell.samples), "strongest": easy.expected(cell.samples)}
    return {
        **on("risk", measured=measured, **formulas),
        "allowed": cell.kappa * measured.mean[0],
        "risk": RISKS,
    }


@transfer_price.figure
def price_of_a_dim_direction(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence,
        "The price of a dimly seen direction",
        "lines: closed form; dots: least squares; dashed: κ times the pretraining excess",
        x=CONDITION,
        y="mean excess risk",
    )
    figure.lines("kappa", "allowed", theory=True).lines("kappa", "predicted", color="risk")
    return figure.points("kappa", "measured", error="error", color="risk", size=46)


@latent_posterior.claim(
    kind="simulation",
    origin="ours",
    reference="masked pretraining, a share of the tokens hidden",
    statement=r"With $h$ of $L$ tokens hidden, least squares of the hidden values $Az + s\,e'$"
    r" on the $L - h$ tokens $z + \sigma e$ that are left has the mean excess"
    r" $\frac{d}{n-d-1}\sum_j(a_j^2P + \frac{s^2}{h})$ with $P = \frac{\sigma^2}{\sigma^2 + L -"
    r" h}$, and a task that reads the weakest direction $\frac{d}{n-d-1}(P + \frac{\kappa"
    r" s^2}{h})$: more hidden tokens average the noise, not the latent that they share, and"
    r" leave less to read it from.",
    words="Hiding more tokens gives more targets and less context; the excess of pretraining"
    " and of a task is computed for every share.",
    hypotheses=(SPREAD_FINITE, defining("hidden < length", lambda s: s.hidden < s.length)),
    quick=Setting(hidden=(1, 4, 8, 12), length=16, kappa=16.0, samples=60, repeats=1000),
    paper=dict(hidden=(1, 2, 4, 8, 16, 24, 28, 30), length=32, samples=200, repeats=8000),
    cells=together("hidden"),
    budget="repeats",
    long=True,
    rule=Agreement(),
    control=Control(
        "hidden tokens that are independent of one another", lambda e: {"predicted": e.independent}
    ),
    needs=("transfer-price", "masked-minimiser"),
)
def masked_share(cell: Setting, draws: Draws) -> Values:
    one = pretrained(cell.kappa, cell.length - cell.hidden)
    model = replace(one, hidden=cell.hidden)
    return {
        **on(
            "risk",
            predicted=model.expected(cell.samples),
            measured=measured_excesses(model, cell, draws),
            independent=np.array(one.expected(cell.samples)) / cell.hidden,
        ),
        "risk": RISKS,
    }


@masked_share.figure
def tokens_to_hide(evidence: xr.Dataset) -> Figure:
    figure = Figure(
        evidence,
        "How many tokens to hide",
        "lines: closed form; dots: least squares; dashed: if hidden tokens were independent",
        x=f"tokens hidden of {int(evidence['length'].max())}",
        y="mean excess risk",
        log="y",
        legend=LEGENDS,
    )
    figure.lines("hidden", "independent", color="risk", theory=True)
    figure.lines("hidden", "predicted", color="risk")
    return figure.points("hidden", "measured", error="error", color="risk", size=46)


@latent_posterior.claim(
    kind="simulation",
    origin="ours",
    reference="infinite condition number",
    statement=r"If the task reads a direction that $A$ does not show, $\kappa = \infty$: the"
    r" pretraining excess falls as $\frac{d}{n-d-1}\mathrm{tr}\,\Sigma$, and the downstream"
    r" excess stays at $E|B(I - A^+A)\mu|^2$, both within 10 %, at every $n$ tested.",
    words="If the pretraining target does not depend on a direction that the task reads, more"
    " sequences lower the error of pretraining and not that of the task.",
    quick=Setting(samples=(40, 400), length=20, faint=0.1, repeats=1000),
    paper=dict(samples=(100, 1000, 3000)),
    cells=together("samples"),
    budget="repeats",
    rule=Approximation(margin=0.1),
    control=Control(
        "pretraining that sees the direction faintly, with a tenth of the size",
        lambda e: {"measured": e.seen, "error": e.seen_error},
    ),
    needs=("transfer-price",),
)
def blind_pretraining(cell: Setting, draws: Draws) -> Values:
    task = np.eye(LATENTS)[[-1]] + 0.2 * np.eye(LATENTS)[[0]]
    sizes = [np.diag([1.0] * (LATENTS - 1) + [size]) for size in (0.0, cell.faint)]
    models = [LinearGaussian(np.eye(LATENTS), shown, task, cell.length) for shown in sizes]
    blind, faint = (measured_excesses(model, cell, draws) for model in models)
    # At great n only what stays is left of the downstream excess.
    predicted = [models[0].expected(cell.samples)[0], models[0].expected(10**9)[1]]
    return {**on("risk", predicted=predicted, measured=blind, seen=faint), "risk": RISKS}


@blind_pretraining.figure
def excess_of_a_blind_pretraining(evidence: xr.Dataset) -> Figure:
    return log_figure(
        evidence,
        "Blind pretraining",
        "more sequences do not show a direction that the masked target never depends on",
        x="sequences of pretraining n",
        y="mean excess risk",
        legend={**LEGENDS, "series": "the direction is seen"},
    ).lines("samples", {"measured": "not at all", "seen": "faintly"}, color="risk", points=True)


# --- probes ------------------------------------------------------------------------------------

LABEL_NOISE = 0.5
PROBES = Setting(dim=12, length=20, samples=600, labels=40)
MORE_PROBES = Setting(dim=30, samples=2000, labels=100)
WAYS = ["probe on pretraining", "from scratch"]


def pretrained_tokens(cell: Setting, kappa: float, draws: Draws) -> LinearGaussian:
    """The same with tokens of many dimensions, of which a few random ones carry the latent."""
    mixing = Draws("latent-posterior/probe-crossover", draws.seed).stream("mixing")
    plain = pretrained(kappa, cell.length)
    directions = np.linalg.qr(mixing.standard_normal((cell.dim, LATENTS)))[0]
    return LinearGaussian(3 * directions, plain.masked, plain.task, cell.length)


@latent_posterior.claim(
    kind="simulation",
    origin="our reading",
    reference="linear probes and few labels",
    statement=r"With two to five labels for each dimension of the tokens, and ten or more sequences"
    r" for each to pretrain on, a linear probe on what masked pretraining learnt has a lower excess"
    r" risk than least squares on the tokens where the condition number is 1, and a higher one"
    r" where it is $10^4$.",
    words="Pretraining saves labels if it saw what the task reads, and costs them if it hardly"
    " did.",
    hypotheses=(
        defining("labels > dim", lambda s: s.labels > s.dim),
        Hypothesis(
            "2 dim <= labels <= 5 dim, and dim >= 8",
            lambda s: 2 * s.dim <= s.labels <= 5 * s.dim and s.dim >= 8,
        ),
        Hypothesis("samples >= 10 dim", lambda s: s.samples >= 10 * s.dim),
        defining("kappa runs from 1 to 10000", lambda s: s.kappa[0] == 1 and s.kappa[-1] == 10_000),
    ),
    quick=Setting(kappa=(1.0, 10.0, 100.0, 1000.0, 10_000.0), repeats=200, **PROBES),
    paper=dict(kappa=(1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 10_000.0), **MORE_PROBES),
    cells=whole,
    budget="repeats",
    rule=Order(),
    control=Control(
        "the probe always wins", lambda e: {"lower": e.probe_ends, "upper": e.scratch_ends}
    ),
    needs=("transfer-price",),
)
def probe_crossover(cell: Setting, draws: Draws) -> Values:
    found, theory = [], []
    for kappa in cell.kappa:
        model = pretrained_tokens(cell, kappa, draws)
        learnt = model.pretrain(draws("runs"), cell.samples, cell.repeats).coefficients
        labelled = (draws("labels"), cell.labels, cell.repeats, LABEL_NOISE)
        found.append([model.probe(features, *labelled) for features in (learnt, None)])
        prices = (model.expected_probe(f, cell.labels, LABEL_NOISE) for f in (learnt, None))
        theory.append([np.mean(price) for price in prices])
    runs = np.array(found).swapaxes(0, 1)
    excess = mean_of(runs)
    probe, scratch = excess.mean[:, [0, -1]]
    return {
        **on(
            "end",
            lower=[probe[0], scratch[1]],
            upper=[scratch[0], probe[1]],
            error=mean_of(runs[0] - runs[1]).error[[0, -1]],
            probe_ends=probe,
            scratch_ends=scratch,
        ),
        **on("way number", excess=excess, theory=np.transpose(theory)),
        "repetitions": cell.repeats,
        "way": WAYS,
        "number": list(cell.kappa),
    }


@probe_crossover.figure
def probe_against_scratch(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence,
        "A probe against training from scratch",
        "lines: in mean",
        x=CONDITION,
        y="excess risk of the task",
    )
    figure.lines("number", "theory", color="way")
    figure.points("number", "excess", error="excess_error", color="way", size=45)
    probe, scratch = evidence["theory"].isel(cell=0).values
    gap = np.log(probe / scratch)
    if gap[0] < 0 < gap[-1]:
        crossing = np.exp(np.interp(0, gap, np.log(evidence["number"].values)))
        figure.rule(float(crossing), f"κ = {crossing:.2g}", axis="x")
    return figure


@latent_posterior.claim(
    kind="simulation",
    origin="ours",
    reference="linear probes and few labels, in mean",
    statement=r"A linear probe with $n$ labels on $p$ features $\hat G\bar x$ of pretraining"
    r" has the mean excess risk $v_G - v + \frac{p\,v_G}{n-p-1}$, $v_G$ the variance that is"
    r" left of a label given the features and $v$ given all tokens; least squares from scratch"
    r" is the case of $p = d$ features with $v_G = v$.",
    words="The mean excess risk of a linear probe in closed form: what it saves by having few"
    " features and what it loses by features that miss something.",
    hypotheses=(
        defining(
            "labels > dim + 3, so that the variance is finite", lambda s: s.labels > s.dim + 3
        ),
    ),
    quick=Setting(kappa=(1.0, 100.0, 10_000.0), repeats=4000, **PROBES),
    paper=dict(kappa=(1.0, 16.0, 256.0, 10_000.0), repeats=8000, **MORE_PROBES),
    cells=together("kappa"),
    budget="repeats",
    rule=Agreement(),
    control=Control(
        "features that are fixed, with n in place of n - p - 1", lambda e: {"predicted": e.fixed}
    ),
    needs=("probe-crossover",),
)
def probe_price(cell: Setting, draws: Draws) -> Values:
    """One pretraining, probed with many sets of labels."""
    model = pretrained_tokens(cell, cell.kappa, draws)
    (learnt,) = model.pretrain(draws("run"), cell.samples, 1).coefficients
    predicted, fixed, runs = [], [], []
    for features, p in ((learnt, LATENTS), (None, cell.dim)):
        runs.append(model.probe(features, draws("labels"), cell.labels, cell.repeats, LABEL_NOISE))
        price, limit = (
            float(model.expected_probe(features, n, LABEL_NOISE)) for n in (cell.labels, 10**12)
        )
        predicted.append(price)
        fixed.append(limit + (price - limit) * (cell.labels - p - 1) / cell.labels)
    measured = mean_of(np.array(runs))
    return {**on("way", predicted=predicted, fixed=fixed, measured=measured), "way": WAYS}


@probe_price.figure
def costs_of_a_probe(evidence: xr.Dataset) -> Figure:
    title = "What a probe costs"
    return agreement(evidence, title, what="mean excess risk", color="way", legend=LEGENDS)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="a negative result",
    statement=r"A representation that is a softmax over the latents, trained on the masked"
    r" objective, does not show the condition number: its downstream excess over its pretraining"
    r" excess stays below $\sqrt\kappa$ for $\kappa$ up to 1024, where that of a linear"
    r" representation comes near $\kappa$.",
    words="A representation that is a law over the latents magnifies its pretraining error by"
    " less than the root of the condition number; a linear one comes near the condition"
    " number itself.",
    quick=Setting(
        kappa=(1.0, 32.0, 1024.0), length=7, samples=4000, noise=1.0, steps=200, repeats=48
    ),
    paper=dict(kappa=(1.0, 4.0, 16.0, 64.0, 256.0, 1024.0), length=9, steps=400, repeats=96),
    cells=together("kappa"),
    budget="repeats",
    rule=Bound(),
    control=Control(
        "a linear representation, which may leave the simplex",
        lambda e: {"measured": e.free, "error": e.free_error},
    ),
    needs=("transfer-price", "masked-minimiser"),
)
def simplex_hides(cell: Setting, draws: Draws) -> Values:
    model = FiniteLatent(np.full(LATENTS, 1 / LATENTS), 0.4 * np.eye(LATENTS) + 0.6 / LATENTS)
    sizes = np.geomspace(1, cell.kappa**-0.5, LATENTS - 1)
    masked = masked_topics(model, cell.length, sizes, cell.noise)
    task = tangent(LATENTS)[:, -1:].T
    drawn = masked.sample(draws("samples"), cell.samples, cell.repeats, model.words)

    def ratio(representation: np.ndarray) -> Estimate:
        """The downstream excess over the pretraining excess."""
        error = representation - masked.posterior
        pre, down = masked.excess(error, masked.operator), masked.excess(error, task)
        ratio = down.mean() / pre.mean()
        return Estimate(ratio, mean_of(down - ratio * pre).error / pre.mean())

    return {
        "bound": float(np.sqrt(cell.kappa)),
        "measured": ratio(on_simplex(masked, *drawn, steps=cell.steps)),
        "free": ratio(unconstrained(masked, *drawn)),
        "condition": condition_number(masked.operator, task, simplex=True).value,
        "repetitions": cell.repeats,
    }


@simplex_hides.figure
def ratios_of_excesses(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence,
        "The simplex shows the root of the condition number, at most",
        "dashed: κ itself, the largest possible ratio",
        x=CONDITION,
        y="downstream excess over pretraining excess",
        legend={"series": "representation"},
    )
    figure.lines("kappa", {"measured": "softmax over latents", "free": "linear"}, points=True)
    return figure.lines("kappa", "condition", theory=True)
