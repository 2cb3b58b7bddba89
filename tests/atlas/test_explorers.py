"""Every formula of the explorers' scripts against the function whose twin it is."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from pytest import approx
from scipy import special, stats
from tools.explorers import ATTENTION, TRAINED, beliefs, letter_states, stored_encoder

from attlas import gaussian
from attlas.atlas.contents import Atlas
from attlas.atlas.explorers import Explorer
from attlas.atlas.notes import notes_of
from attlas.atlas.pages import write_atlas
from attlas.attention import softmax
from attlas.claims import catalogue
from attlas.kernels import Exponential, cme_attention
from attlas.order_parameters import Heads, Places, Problem, ValueSum, descend_online
from attlas.order_parameters import Overlaps as Matrices
from attlas.order_parameters.descent import Args, Inputs, _online_step
from attlas.order_parameters.problem import Draw, State, as_problems
from attlas.several_locations import random_starts
from attlas.single_location import SingleLocation, descend, risk
from attlas.single_location.claims.shared import outcomes
from attlas.single_location.landscape import (
    critical_lam,
    flow,
    stability,
    stable_step,
    swapped_point,
)
from attlas.single_location.population import ORACLE, Overlaps, risk_gradient
from attlas.sparse_variables.construction import threshold_head
from attlas.sparse_variables.task import SparseBoolean

pytestmark = pytest.mark.xdist_group("pages")
CLAIMS = (
    "single-location/zeta",
    "sparse-variables/threshold-margin",
    "latent-posterior/softmax-is-nadaraya-watson",
    "several-locations/attention-ahead",
)
TASKS = [(0.1, 400, 10, 0.5**0.5), (0.9, 40, 3, 1.2), (0.02, 4, 2, 0.25), (3.0, 1600, 50, 2.0)]
"""(lam, dim, length, gamma): the defaults, something between, and two corners of the sliders."""
NOTES = notes_of(catalogue().values()).values()
EXPLORERS = {explorer.name: explorer for notes in NOTES for explorer in notes.explorers}


@pytest.fixture(scope="module")
def pages(tested, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorers") / "atlas"
    return write_atlas(Atlas([tested(id) for id in CLAIMS]), folder).parent


@pytest.fixture
def on_page(browser, pages):
    """A function from the name of an explorer to one that computes on its page: the values of an
    expression of the variable `x` at a list of points."""

    def open_page(name):
        browser.open(pages / "explorers" / f"{name}.html")
        return lambda expression, points: np.array(
            browser.run(f"{json.dumps(points)}.map(x => {expression})")
        )

    return open_page


@pytest.fixture
def js(on_page):
    return on_page("portrait")


def constants(task):
    lam, dim, length, gamma = task
    return f"attlas.constants({{lam: {lam!r}, dim: {dim}, length: {length}, gamma: {gamma!r}}})"


def heads(count=12):
    """Overlaps of random unit vectors [5, n], the first of them on the manifold."""
    k, v = np.random.default_rng(5).standard_normal((2, count, 5))
    k[:3, 1], v[:3, 0] = 0, 0
    k, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, v))
    return np.array(Overlaps(k[:, 0], v[:, 1], v[:, 0], k[:, 1], (k * v).sum(1)))


def test_erf_and_the_smoothed_squares(js, float64):
    x = np.concatenate([np.linspace(-7, 7, 141), [2.4999, 2.5, 1e-9, 5.9, 6.1, 40.0]])
    assert js("attlas.erf(x)", x.tolist()) == approx(special.erf(x), abs=2e-15)
    pairs = [(t, s) for t in np.linspace(-9, 9, 19) for s in (0.005, 0.1, 0.7, 6.0)]
    t, s = np.array(pairs).T
    assert js("attlas.zeta(...x)", pairs) == approx(np.asarray(gaussian.zeta(t, s)), abs=2e-15)
    assert js("attlas.zetas(...x)", pairs) == approx(
        np.stack(gaussian.zeta_derivatives(t, s), 1), abs=1e-13
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_risk_its_gradient_and_the_flow(js, task):
    lam, *sizes = task
    at, points, c = SingleLocation(*sizes), heads(), constants(task)
    x = Overlaps(*points)
    assert js(f"attlas.risk({c}, x)", points.T.tolist()) == approx(
        np.asarray(risk(at, x, lam)), rel=1e-11
    )
    for name, twin in (("gradient", risk_gradient), ("velocity", flow)):
        found = np.stack(np.broadcast_arrays(*twin(at, x, lam)), 1)
        assert js(f"attlas.{name}({c}, x)", points.T.tolist()) == approx(
            found, rel=1e-9, abs=1e-10 * abs(found).max()
        )


@pytest.mark.parametrize("task", TASKS[:3])
def test_descent_step_by_step(js, task):
    lam, *sizes = task
    points, c = heads(), constants(task)
    alpha = float(js(f"attlas.safeStep({c})", [0])[0])
    path = descend(
        SingleLocation(*sizes),
        Overlaps(*points),
        lam=lam,
        step_size=alpha,
        steps=300,
        record_every=1,
    )
    for steps, error in ((1, 1e-12), (300, 1e-7)):
        last = path.sel(step=steps)
        loop = f"for (let i = 0; i < {steps}; i++) x = attlas.step(c, x, {alpha!r});"
        walk = f"(() => {{ const c = {c}; {loop} return x; }})()"
        assert js(walk, points.T.tolist()) == approx(
            np.stack([last[name] for name in Overlaps._fields], 1), abs=error
        )


def test_the_step_size_does_not_flip_anywhere_on_the_sliders(js):
    corners = [
        (lam, dim, length, gamma)
        for lam in (0.02, 0.1, 0.5)
        for dim in (15, 400, 1600)
        for length in (2, 10, 50)
        for gamma in (0.25, 0.5**0.5, 2.0)
    ]
    for task in corners:
        lam, *sizes = task
        at = SingleLocation(*sizes)
        if stability(at, ORACLE, lam)[-1] < 0:
            assert js(f"attlas.safeStep({constants(task)})", [0])[0] < stable_step(at, lam), task


@pytest.mark.parametrize("task", TASKS)
def test_points_and_levels_of_the_landscape(js, task):
    lam, *sizes = task
    at, c = SingleLocation(*sizes), constants(task)
    assert js(f"attlas.swapped({c})", [0])[0] == approx(np.stack(swapped_point(at, lam)), abs=1e-13)
    assert js(f"attlas.linearRisk({c})", [0])[0] == approx(at.linear_risk())
    if at.dim > 2 * at.gamma**2 * (at.length - 2):
        assert js(f"attlas.criticalLam({c})", [0])[0] == approx(critical_lam(at))


def test_starts_are_heads_and_ends_are_named_as_in_the_claims(js):
    places = [
        (kappa, nu, off)
        for kappa in (-0.98, 0.0, 0.6)
        for nu in (-0.5, 0.98)
        for off in (0.0, 0.3, 0.9)
    ]
    starts = js("attlas.start(...x)", places)
    Overlaps(*starts.T).checked()
    assert abs(starts[::3, 2:]).max() == 0, "without a share off it, the start is on the manifold"
    ends = np.vstack(
        [heads(40).T, [[0.95, 0.95, 0, 0, 0], [-0.95, -0.95, 0, 0, 0], [0, 0.01, 0.6, 0.99, 0]]]
    )
    path = xr.Dataset(
        {name: (("repeat", "step"), ends[:, [i]]) for i, name in enumerate(Overlaps._fields)}
    )
    named, told = js("attlas.ending(x)", ends.tolist()), outcomes(path)
    assert (np.isin(named, ("oracle", "mirror")) == told["oracle"].values).all()
    assert ((named == "swapped") == told["swapped"].values).all() and (
        named[-3:] == ["oracle", "mirror", "swapped"]
    ).all()


@pytest.mark.parametrize("task", [TASKS[0], (0.3, 100, 10, 1.0)])
def test_the_boundary_parts_the_two_basins(js, task):
    lam, *sizes = task
    curve = js(f"attlas.boundary({constants(task)})", [0])[0]
    inner = curve[20:-20:12]
    starts = np.concatenate([inner + 0.02, inner - 0.02])  # towards (1, 1), and towards (-1, -1)
    starts = starts.clip(-0.999, 0.999).T
    zero = np.zeros(starts.shape[1])
    at = SingleLocation(*sizes)
    alpha = 0.5 * stable_step(at, lam)
    path = descend(
        at,
        Overlaps(*starts, zero, zero, zero),
        lam=lam,
        step_size=alpha,
        steps=round(30 / alpha),
        record_every=10**6,
    )
    nu = path["nu"].isel(step=-1).values
    assert (nu[: len(inner)] > 0.9).all() and (nu[len(inner) :] < -0.9).all()


def test_the_table_of_gates_is_good_enough_for_pictures(js):
    for task in TASKS:
        c, points = constants(task), heads().T.tolist()
        exact = js(f"attlas.gradient({c}, x)", points)
        assert js(f"attlas.gradient(attlas.tabulated({c}), x)", points) == approx(
            exact, abs=3e-4 * abs(exact).max()
        )


def on_circle(angles):
    return jnp.stack([jnp.cos(jnp.asarray(angles)), jnp.sin(jnp.asarray(angles))], -1)


@pytest.mark.parametrize(
    ("temperature", "ridge"), [(0.1, 0.09), (0.003, 1e-4), (2.0, 10.0), (2.0, 1e-4)]
)
def test_one_row_of_attention(on_page, float64, temperature, ridge):
    js = on_page("estimator")
    keys = np.array(json.loads(EXPLORERS["estimator"].data)["keys"][:64])
    queries = [-3.1, -0.5, 0.0, 2.2]
    scores = on_circle(queries) @ on_circle(keys).T / temperature
    found = js(f"attlas.softmaxWeights(x, {keys.tolist()}, {temperature})", queries)
    assert found == approx(np.asarray(softmax(scores)), abs=1e-12)
    settings = {"ridge": ridge, "kernel": Exponential(temperature)}
    wanted = cme_attention(on_circle(queries), on_circle(keys), np.eye(len(keys)), **settings)
    found = js(f"attlas.cmeWeights(x, {keys.tolist()}, {temperature}, {ridge})", queries)
    rounding = (
        1e-15 / temperature * len(keys) / ridge
    )  # of the exponent, times the condition number
    assert found == approx(np.asarray(wanted), abs=max(rounding, 1e-13))


@pytest.mark.parametrize(
    ("length", "support", "c", "name"),
    [
        (20, (1, 5, 9), 4.0, "majority"),
        (50, (0, 7), 1.5, "and"),
        (10, (2, 3, 4, 8), 128.0, "or"),
        (30, (6,), 0.5, "and"),
        (12, (0, 1), 0.7, "or"),
    ],
)
def test_the_sparse_head(browser, on_page, length, support, c, name):
    on_page("sparse")
    twin = threshold_head(SparseBoolean(length, support, name), sharpness=c)
    head = browser.run(f"attlas.head({length}, {len(support)}, {c}, '{name}')")
    bits = np.zeros((3, length), int)
    bits[1, list(support[:1])], bits[2] = 1, 1
    weights = twin.weights(bits)[0, :-1]
    assert weights[list(support)] == approx(head["each"]) and head["leak"] == approx(
        1 - len(support) * head["each"]
    )
    assert np.delete(weights, support) == approx(head["other"])
    assert head["margin"] == approx(twin.margin) and twin.worst_margin() == approx(twin.margin)
    value = twin.read @ twin.mix @ twin.out
    norm = np.sqrt(2 * value @ twin.embedding.gram(support) @ value)
    assert head["scoreNorm"] == approx(twin.score_norm) and head["valueNorm"] == approx(norm)
    ones = bits[:, list(support)].sum(1)
    level = head["each"] * ones + head["leak"] * np.array([0, 0, 1])
    assert level - head["threshold"] == approx(twin(bits), abs=1e-12)


@pytest.mark.parametrize("attention", ATTENTION)
def test_the_networks_that_were_trained(on_page, float64, attention):
    js, explorer = on_page("belief"), EXPLORERS["belief"]
    content, rng = json.loads(explorer.data), np.random.default_rng(4)
    counts = np.concatenate([np.zeros((1, 6)), np.eye(6)[:1], rng.integers(0, 9, (6, 6))])
    for trained in TRAINED:
        for step in range(len(explorer.values["steps"])):
            encoder, probe = stored_encoder(content, attention, trained, step)
            place = f"model.networks.{attention}.{trained}[{step}]"
            opened = f"const model = explorer.data(), net = attlas.unpack(model.layout, {place})"
            found = f"attlas.forward(net, '{attention}', x)"

            def on_network(result, opened=opened, found=found):
                steps = f"{opened}, found = {found}; return {result};"
                return js(f"(() => {{ {steps} }})()", counts.tolist())

            states = letter_states(encoder, counts)
            assert on_network("found.state") == approx(states, abs=1e-9)
            said = beliefs(explorer.values, encoder, counts)
            assert on_network("attlas.expressed(model, found.prediction)") == approx(said, abs=1e-6)
            read = (np.c_[states, np.ones(len(states))] @ probe).clip(0)
            read /= read.sum(-1, keepdims=True)
            assert on_network("attlas.probed(net, found.state)") == approx(read, abs=1e-8)
    weights = on_network("found.weights")
    assert weights.shape == (8, 2, 7) and (weights[..., :-1][:, 0][counts == 0] == 0).all()
    if attention == "softmax":
        assert weights.sum(-1) == approx(1.0)


def test_the_exact_posterior_of_a_topic(on_page):
    js, values = on_page("belief"), EXPLORERS["belief"].values
    prior, words = np.array(values["prior"]), np.array(values["words"])
    counts = np.array([[0, 0, 0, 0, 0, 0], [3, 0, 1, 0, 2, 5], [0, 3, 0, 1, 2, 0]])
    wanted = prior * np.prod(words[None] ** counts[:, None], -1)
    wanted /= wanted.sum(-1, keepdims=True)
    assert js("attlas.posterior(explorer.data(), x)", counts.tolist()) == approx(wanted)
    assert wanted[1] == approx(wanted[2]), "a and b say the same, c and d too, and f nothing"
    mixed = js("attlas.predictive(explorer.data(), x)", wanted.tolist())
    assert mixed == approx(wanted @ words)
    assert js("attlas.expressed(explorer.data(), x)", mixed.tolist()) == approx(wanted, abs=1e-6)
    assert js("attlas.distance(x, [1, 0, 0])", wanted.tolist()) == approx(1 - wanted[:, 0])
    assert js("attlas.divergence(x, x)", wanted.tolist()) == approx(0)


HEADS = {"signals": [2.0, 1.0], "lam": 1.5, "length": 4, "unit": False}


def drawn_states(p, count=3, seed=6):
    """States (M, C) [count, p, 4 + p] with unit rows, and batches of two sequences in coordinates
    [count, 2, 4 + p, L]."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((count, p, 4 + p))
    u[:, :, 4:] = np.tril(u[:, :, 4:])
    x = rng.standard_normal((count, 2, 4 + p, HEADS["length"]))
    for i, signal in enumerate(HEADS["signals"]):
        x[:, :, 2 * i, i] += signal
    return u / np.linalg.norm(u, axis=-1, keepdims=True), x


def heads_of(p):
    return Problem(Places(HEADS["length"], HEADS["signals"]), ValueSum(), Heads(lam=HEADS["lam"]))


@pytest.mark.parametrize("p", [2, 4, 6])
@pytest.mark.parametrize("unit", [False, True])
def test_a_step_of_heads_that_part(on_page, p, unit):
    js, (u, x) = on_page("parting"), drawn_states(p)
    bartlett = np.tril(np.random.default_rng(7).standard_normal((p, p)))
    task = json.dumps({**HEADS, "unit": unit})
    points = [(a.tolist(), b.tolist()) for a, b in zip(u, x, strict=True)]
    found = js(
        f"attlas.step({task}, x[0], x[1], 0.1, {bartlett.tolist()}).map(r => [...r])", points
    )
    means = np.zeros((4 + p, HEADS["length"]))
    means[0, 0], means[2, 1] = HEADS["signals"]
    nothing = np.zeros((1, 1, 2))
    for state, batch, given in zip(u, x, found, strict=True):
        draw = Draw(np.moveaxis(batch - means, 0, -1)[None], nothing + 0.5, nothing)
        with jax.enable_x64(True):
            wanted = _online_step("unit" if unit else "none")(
                State(state[None, :, :4], state[None, :, 4:]),
                Inputs(jax.tree.map(jnp.float32, draw), bartlett[None], 0, True),
                Args(as_problems(heads_of(p), 1), lambda t: jnp.array([0.1]), None),
            )
        assert given == approx(np.asarray(wanted.u[0]), abs=3e-6)


def test_what_heads_predict_and_bayes_too(on_page):
    js, (u, x) = on_page("parting"), drawn_states(4)
    task, sequences = json.dumps(HEADS), x.reshape(-1, *x.shape[2:])
    h = np.einsum("pk,skl->slp", u[0], sequences)
    wanted = [float(heads_of(4).head(jnp.asarray(one), np.ones(4), None)) for one in h]
    points = sequences.tolist()
    assert js(f"attlas.predict({task}, {u[0].tolist()}, x).sum", points) == approx(wanted, abs=1e-5)
    target = sequences[:, 1, 0] + sequences[:, 3, 1]
    assert js(f"attlas.target({task}, x)", points) == approx(target)
    assert js(f"attlas.risk({task}, {u[0].tolist()}, x)", [points])[0] == approx(
        np.mean((wanted - target) ** 2), rel=1e-5
    )
    odds = np.exp(2 * sequences[:, 0, :, None] + sequences[:, 2, None, :]) * (1 - np.eye(4))
    odds /= odds.sum((1, 2), keepdims=True)
    values = (odds.sum(2) * sequences[:, 1] + odds.sum(1) * sequences[:, 3]).sum(1)
    assert js(f"attlas.bayes({task}, x)", points) == approx(values)
    assert js("attlas.parted(x)", u.tolist()) == approx(
        abs(u[:, 1, 1] + u[:, 3, 3] - u[:, 1, 3] - u[:, 3, 1]) / 2
    )


def test_random_numbers_have_their_laws(on_page):
    js = on_page("parting")
    for name, law in {
        "uniform()": stats.uniform(),
        "normal()": stats.norm(),
        **{f"chi({n})": stats.chi(n) for n in (1, 2, 3, 96)},
    }.items():
        draw = f"Array.from({{length: 4000}}, () => r.{name})"
        many = f"(() => {{ const r = attlas.source(x); return {draw}; }})()"
        assert stats.kstest(js(many, [5])[0], law.cdf).pvalue > 1e-3, name
    roots = js("attlas.wishart(attlas.source(x), 3, 2).map(r => [...r])", list(range(400)))
    products = roots @ roots.swapaxes(1, 2)
    assert (abs(products.mean(0) - 2 * np.eye(3)) < 5 * np.sqrt(2 * (1 + np.eye(3)) / 400)).all()
    assert (np.linalg.matrix_rank(products) == 2).all()


def test_runs_of_heads_have_the_law_of_online_descent(on_page):
    js, runs, dim, steps = on_page("parting"), 400, 9, 6
    task = {**HEADS, "length": 3}
    begin = f"const t = {json.dumps(task)}, r = attlas.source(x), "
    start = f"u = attlas.start(t, {dim}, 1.2, [[0.3, -0.1], [0.1, 0.4]], r);"
    ended = f"[...attlas.run(t, {dim}, 0.1, {steps}, 2, u, r, 1)].pop().u"
    whole = f"return [u, {ended}].map(v => v.map(w => [...w]));"
    found = js(f"(() => {{ {begin}{start}{whole} }})()", list(range(runs)))
    m, c = found[:, 0, :, :4], found[:, 0, :, 4:]
    assert m[:, 1, [1, 3]] == approx(np.tile([0.3, -0.1], (runs, 1))) and m[:, 3, [1, 3]] == approx(
        np.tile([0.1, 0.4], (runs, 1))
    )
    gaussian_part = random_starts(np.random.default_rng(2), runs, 4, 4, dim, 1.2)
    beyond = (
        np.einsum("npk,npk->np", c, c),
        gaussian_part.q - np.einsum("npr,nqr->npq", gaussian_part.m, gaussian_part.m),
    )
    for i in range(4):
        assert stats.ks_2samp(beyond[0][:, i], beyond[1][:, i, i]).pvalue > 1e-3
    assert stats.kstest(m[:, 0, 0], stats.norm(scale=1.2 / np.sqrt(dim)).cdf).pvalue > 1e-3
    walked = descend_online(
        Problem(Places(3, HEADS["signals"]), ValueSum(), Heads(lam=HEADS["lam"])),
        Matrices(m, m @ m.swapaxes(1, 2) + c @ c.swapaxes(1, 2)),
        dim=dim, batch_size=2, step_size=0.1, steps=steps, points=0, seed=3,
    ).isel(step=-1)  # fmt: skip
    last = found[:, 1]
    q = last @ last.swapaxes(1, 2)
    for i in range(4):
        for j in range(4):
            assert stats.ks_2samp(last[:, i, j], walked.m.values[:, i, j]).pvalue > 1e-4
            assert stats.ks_2samp(q[:, i, j], walked.q.values[:, i, j]).pvalue > 1e-4


def test_pages_are_small_and_link_to_claims_that_exist(pages):
    ours = "sentence events portrait schedule estimator belief sparse parting"
    assert set(EXPLORERS) == set(ours.split())
    for explorer in EXPLORERS.values():
        assert (pages / explorer.path).stat().st_size < 500_000
        assert explorer.path in (pages / "index.html").read_text()
        assert explorer.related and set(explorer.related) <= set(catalogue())


def test_an_atlas_has_the_explorers_of_its_maps(tested, tmp_path):
    pages = write_atlas(Atlas([tested(CLAIMS[1])]), tmp_path / "atlas").parent
    names = {path.name for path in (pages / "explorers").iterdir()}
    assert names == {"explorers.js", "explorers.css", "sparse.html", "sparse.js"}


def test_data_cannot_end_the_element_that_it_stands_in(tmp_path):
    (tmp_path / "toy.json").write_text('{"a":"</script>"}')
    toy = Explorer("my-map", tmp_path, "toy", "A toy", "Words.")
    assert "<" not in toy.data and json.loads(toy.data) == {"a": "</script>"}
    assert toy.path == "explorers/toy.html"


def softmax_head(tokens, k, v):
    weights = special.softmax(tokens @ k)
    return [*weights, weights @ tokens @ v]


def test_a_sentence_is_read_by_the_head_that_was_trained(on_page):
    model = EXPLORERS["sentence"].content
    slots = {slot: texts[0] for slot, texts in model["known"].items()}
    cases = [
        (slots | {"opening": "well", "verdict": "dirty", "adjective": "nice"}, "adjective last", 5),
        (slots | {"animal": "eagle", "adjective": "foul", "size": "big"}, "adjective first", 4),
    ]
    found = on_page("sentence")(
        "(() => { const model = explorer.data(), drawn = attlas.arrange(model, ...x),"
        " tokens = attlas.tokenise(model, drawn), a = attlas.attend(model, tokens);"
        " return [drawn.second, drawn.place, a.linear, ...a.weights, a.head]; })()",
        [case[:2] for case in cases],
    )
    for (chosen, order, begins), (second, place, linear, *answers) in zip(
        cases, found, strict=True
    ):
        words = " ".join((model["first"], model["second"][order])).format(**chosen).split()
        tokens = np.array([model["vectors"][word] for word in words])
        tokens[begins:, model["part"]] += model["mean"]
        assert (second, place) == (begins, words.index(chosen["adjective"], begins))
        at = np.array(model["linear"])[: len(words)]
        assert linear == approx((tokens * at).sum() + model["constant"], abs=1e-9)
        assert answers == approx(softmax_head(tokens, np.array(model["k"]), model["v"]), abs=1e-9)


def test_a_record_is_read_by_the_head_that_was_trained(on_page):
    model = EXPLORERS["events"].content
    tokens = [record["tokens"] for record in model["records"]]
    found = on_page("events")(
        "(() => { const model = explorer.data(), a = attlas.look(x, model.k, model.v);"
        " return [...a.weights, a.said]; })()",
        tokens,
    )
    k, v = np.array(model["k"]), np.array(model["v"])
    assert found == approx(np.array([softmax_head(np.array(x), k, v) for x in tokens]), abs=1e-9)
    places = [record["place"] for record in model["records"]]
    assert (found[:, :-1].argmax(1) == places).mean() > 0.8
