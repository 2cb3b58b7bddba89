import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import optimize, stats

from attlas.attention import Layer, MultiHead, ReadOut, TransformerHead
from attlas.capacity import capacity_of
from attlas.errors import InputError
from attlas.gaussian import stream
from attlas.sparse_variables import trained_heads
from attlas.sparse_variables.construction import sink_head, threshold_head
from attlas.sparse_variables.embedding import Orthonormal
from attlas.sparse_variables.model import Architecture, logits_full
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.sparse_variables.trained_heads import (
    SPREADS,
    Heads,
    binary_kl,
    certify,
    kl_inverse,
    noisy_errors,
    pac_bayes,
    pac_bayes_samples,
    support_mass,
)
from tests.defaults import numbers_by_default
from tests.sampling import assert_mean_is, of_sample

LENGTH = 12
LINEAR = Architecture(
    dim=8, heads=4, mlp=False, weight_scale=0.5, token_scale=1.0, position_scale=1.0
)
BITS = np.random.default_rng(0).integers(0, 2, (30, LENGTH)).astype(np.uint8)


def draw_heads(seed):
    model = LINEAR.initialise(LENGTH, jax.random.key(seed))
    return model, Heads.of(
        dataclasses.replace(model, out_bias=jax.random.normal(jax.random.key(seed + 1), (8,)))
    )


def module_of(heads):
    """The heads as a module on the orthonormal tokens."""
    own, root = Orthonormal(LENGTH).special()[-1], np.sqrt(2)
    query, one = jnp.asarray(root * own)[:, None], jnp.ones((1, 1))
    weights = [jnp.asarray(root * w)[..., None] for w in heads]
    parts = tuple(TransformerHead(u, query, v, one) for u, v in zip(*weights, strict=True))
    return ReadOut(Layer(MultiHead(parts)), jnp.asarray(own / root), jnp.ones(1))


@pytest.fixture
def heads(float64):
    return draw_heads(0)[1]


def test_a_trained_layer_is_a_module_on_the_tokens_of_the_constructions(float64):
    model = LINEAR.initialise(LENGTH, jax.random.key(3))
    model = dataclasses.replace(model, out_bias=jnp.arange(8.0))
    found = Heads.of(model)
    both = logits_full(model, BITS)
    embedding = Orthonormal(LENGTH)
    tokens = (embedding.places(0, LENGTH) + embedding.special()[BITS.astype(int)]) / np.sqrt(2)
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=-1), 1)
    for form in (found, found.nearest(), found.nearest(draw_heads(5)[1])):
        np.testing.assert_allclose(
            jax.vmap(module_of(form))(tokens), both[:, 1] - both[:, 0], rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(form(BITS), both[:, 1] - both[:, 0], rtol=1e-12, atol=1e-12)


def test_attention_and_values_add_up_to_the_output_of_the_heads(heads):
    weights = heads.weights(BITS)
    values = heads.value[:, :LENGTH] + heads.value[:, LENGTH : LENGTH + 2].T[BITS].swapaxes(-1, -2)
    values = np.concatenate([values, np.broadcast_to(heads.value[:, -1:], (30, 4, 1))], -1)
    np.testing.assert_allclose((weights * values).sum((1, 2)), heads(BITS), rtol=1e-10, atol=1e-12)
    scores = heads.score[1, :LENGTH] + heads.score[1, LENGTH + BITS[3].astype(int)]
    powers = np.exp(np.append(scores, heads.score[1, -1]))
    np.testing.assert_allclose(weights[3, 1], powers / powers.sum(), rtol=1e-10)


def test_no_other_weights_of_the_same_function_are_nearer(heads):
    other = draw_heads(7)[1]
    near = heads.nearest(other)

    def distance(moves):
        """After any move that changes no output: numbers between bits and places, common scores,
        values between heads."""
        score, value = near.score.copy(), near.value.copy()
        places, bits, shared = np.split(np.append(moves, 0), [4, 8])[0], moves[4:8], moves[8:12]
        score[:, :-3] += places[:, None]
        score[:, -3:-1] += bits[:, None]
        score[:, -1] += places + bits
        value[:, :-3] += shared[:, None]
        value[:, -3:-1] -= shared[:, None]
        passed = moves[12:15]
        value[0, -3:] += passed.sum()
        value[1:, -3:] -= passed[:, None]
        moved = Heads(score, value)
        np.testing.assert_allclose(moved(BITS), heads(BITS), rtol=1e-9, atol=1e-9)
        return ((score - other.score) ** 2).sum() + ((value - other.value) ** 2).sum()

    least = distance(np.zeros(15))
    rng = np.random.default_rng(1)
    assert all(
        distance(size * rng.normal(size=15)) > least for size in (1e-3, 0.1, 3.0) for _ in range(5)
    )


def test_norms_give_the_capacity_of_the_module(heads):
    for counted in (False, True):
        ours = heads.capacity(count_parameters=counted)
        theirs = capacity_of(module_of(heads), LENGTH, constant="sharp", count_parameters=counted)
        assert ours.log_samples_for(0.5, margin=0.1) == approx(
            theirs.log_samples_for(0.5, margin=0.1), rel=1e-12
        )
    pair = Heads.stacked([heads, draw_heads(2)[1]])
    alone = [h.capacity().log_entropy(0.1, 100) for h in (heads, draw_heads(2)[1])]
    np.testing.assert_allclose(pair.capacity().log_entropy(0.1, 100), alone)


def test_a_construction_keeps_outputs_and_norms(float64):
    head = sink_head(SparseBoolean(LENGTH, (1, 4, 6)))
    found = Heads.of_construction(head)
    np.testing.assert_allclose(found(BITS), head(BITS), atol=1e-12)
    assert found.norms()[0] == approx(head.score_norm)
    assert found.nearest().norms()[0] < head.score_norm


def test_attention_on_the_support_is_split_by_label():
    label = np.array([0, 0, 1], np.uint8)
    weights = np.zeros((3, 2, 6))
    weights[:2, 0, 3], weights[0, 1, 0], weights[1, 1, 5] = 1, 1, 1
    weights[2, :, 4] = 1
    found = support_mass(weights, Batch(BITS[:3, :5], label), SparseBoolean(5, (0, 3)))
    np.testing.assert_array_equal(found, [[1, 0.5], [0, 0]])


# --- PAC-Bayes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.0, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("nats", [1e-4, 0.05, 0.7, 3.0])
def test_the_inverse_of_the_binary_divergence_is_its_root(q, nats):
    assert binary_kl(q, 0.6) == approx(stats.entropy([q, 1 - q], [0.6, 0.4]))
    root = optimize.brentq(lambda p: stats.entropy([q, 1 - q], [p, 1 - p]) - nats, q, 1 - 1e-15)
    assert kl_inverse(q, nats) == approx(root, rel=1e-9)


def test_the_samples_asked_for_are_those_at_which_the_bound_arrives():
    empirical, nats = np.array([0.0, 0.1, 0.3]), np.array([5.0, 200.0, 0.0])
    samples = pac_bayes_samples(empirical, nats, 0.4, 0.01)
    np.testing.assert_allclose(pac_bayes(empirical, nats, samples, 0.01), 0.4, rtol=1e-9)
    assert pac_bayes_samples(0.5, 1.0, 0.4) == np.inf


def test_the_bound_holds_for_noisy_thresholds():
    """x uniform on [0, 1], label 1 above 0.4 but wrong with probability 0.1; a threshold fitted to
    the samples, with normal noise, whose true error is an integral. A bound without the divergence
    fails far more often than it may."""
    rng = np.random.default_rng(0)
    m, noise, delta, repeats = 20, 0.03, 0.1, 400
    draws = noise * stats.norm.ppf((np.arange(500) + 0.5) / 500)
    x = rng.uniform(size=(repeats, m))
    label = (x > 0.4) != (rng.uniform(size=x.shape) < 0.1)
    grid = np.linspace(0, 1, 101)
    fitted = grid[((x[:, None] > grid[:, None]) != label[:, None]).mean(-1).argmin(-1)]
    cut = fitted[:, None] + draws
    empirical = ((x[:, None] > cut[..., None]) != label[:, None]).mean((-1, -2))
    true = (0.1 + 0.8 * np.minimum(abs(np.clip(cut, 0, 1) - 0.4), 1)).mean(-1)
    nats = (fitted - 0.5) ** 2 / (2 * noise**2)
    broken = (true > pac_bayes(empirical, nats, m, delta)).mean()
    naive = (true > kl_inverse(empirical, 0 * nats + 0.001)).mean()
    assert broken <= delta < naive


def test_a_certificate_says_what_its_noise_does(heads):
    start = draw_heads(2)[1]
    wide = Heads(20 * heads.score, 20 * heads.value)
    batch = Batch(BITS[None], (np.asarray(wide(BITS)) > 0).astype(np.uint8)[None])
    found = certify(
        Heads.stacked([wide]), Heads.stacked([start]), batch, jax.random.key(0), draws=400
    )
    near = wide.nearest(start)
    (u, v) = found.spread[0]
    assert u in SPREADS and v in SPREADS
    # The divergence of two normal laws with one covariance, from their densities at draws of
    # the first.
    rng = np.random.default_rng(0)
    drawn = [w + s * rng.normal(size=(4000, *w.shape)) for w, s in zip(near, (u, v), strict=True)]
    logs = [
        (stats.norm.logpdf(x, w, s) - stats.norm.logpdf(x, w0, s)).sum((1, 2))
        for x, w, w0, s in zip(drawn, near, start, (u, v), strict=True)
    ]
    ratio = sum(logs)
    assert_mean_is(found.nats[0], *of_sample(ratio), most=0.001, sigmas=5)
    wrong = (np.asarray(Heads(*map(jnp.asarray, drawn))(BITS)) > 0) != batch.label[0]
    shares = wrong.mean(-1)
    assert found.empirical[0] > shares.mean() - 4 * shares.std() / 400**0.5
    assert found.error[0] == approx(pac_bayes(found.empirical[0], found.nats[0], 30, 0.05 / 50))


def test_without_noise_errors_are_those_of_the_heads(heads):
    label = np.random.default_rng(4).integers(0, 2, 30).astype(np.uint8)
    own = (np.asarray(heads(BITS)) > 0) != label
    found = noisy_errors(
        Heads.stacked([heads]),
        Batch(BITS[None], label[None]),
        np.zeros((1, 2, 2)),
        jax.random.key(0),
        3,
    )
    np.testing.assert_allclose(found, np.full((1, 2, 3), own.mean()), rtol=1e-6)


def test_errors_with_noise_are_those_of_heads_with_noise(heads):
    label = np.random.default_rng(4).integers(0, 2, (2, 30)).astype(np.uint8)
    pair, spread = Heads.stacked([heads, draw_heads(2)[1]]), np.array([[[0.5, 2.0]], [[1.5, 0.3]]])
    batch = Batch(np.stack([BITS, BITS[::-1]]), label)
    found = noisy_errors(pair, batch, spread, jax.random.key(0), 70)
    noise = stream(jax.random.key(0)).standard_normal((70, 2, *heads.score.shape))
    for n, own in enumerate(pair.each()):
        for draw in (0, 63, 64, 69):
            u, v = spread[n, 0][:, None, None] * noise[draw]
            said = Heads(own.score + u, own.value + v)(batch.bits[n]) > 0
            assert found[n, 0, draw] == approx((said != label[n]).mean())


def test_a_certificate_by_hand(heads):
    """Noise by the fewest samples among all pairs, for each of which delta / 50 is paid."""
    start = Heads.stacked([draw_heads(2)[1], draw_heads(4)[1]])
    wide = Heads.stacked([Heads(9 * heads.score, 30 * heads.value), draw_heads(4)[1]])
    label = np.stack([(np.asarray(own(BITS)) > 0) for own in wide.each()]).astype(np.uint8)
    batch, key = Batch(np.stack([BITS, BITS]), label), jax.random.key(3)
    gap, delta, draws = 0.4, 0.1, 90
    found = certify(wide, start, batch, key, gap=gap, delta=delta, draws=draws)
    near = [own.nearest(own0) for own, own0 in zip(wide.each(), start.each(), strict=True)]
    pairs = [(u, v) for u in SPREADS for v in SPREADS]
    keys, spreads = jax.random.split(key), np.broadcast_to(pairs, (2, 25, 2))
    rough = noisy_errors(Heads.stacked(near), batch, spreads, keys[0], 16).mean(-1)
    chosen = noisy_errors(Heads.stacked(near), batch, found.spread[:, None], keys[1], draws)
    for n, own in enumerate(near):
        moved = [((x - x0[n]) ** 2).sum() for x, x0 in zip(own, start, strict=True)]
        nats = [moved[0] / 2 / u**2 + moved[1] / 2 / v**2 for u, v in pairs]
        needed = [
            pac_bayes_samples(min(e + 1 / 16, 1), k, gap, delta / 50)
            for e, k in zip(rough[n], nats, strict=True)
        ]
        best = int(np.argmin(needed))
        assert tuple(found.spread[n]) == pairs[best] and found.nats[n] == approx(nats[best])
        empirical = kl_inverse(chosen[n, 0].mean(), np.log(2 / delta) / draws)
        assert found.empirical[n] == approx(empirical)
        expected = pac_bayes(empirical, nats[best], 30, delta / 50)
        assert found.error[n] == approx(expected)
        expected = pac_bayes_samples(empirical, nats[best], gap, delta / 50)
        assert found.samples[n] == approx(expected)


def test_what_is_no_sum_of_linear_heads_is_named():
    with pytest.raises(InputError, match="the model has an MLP"):
        Heads.of(Architecture(dim=8, hidden=8).initialise(4, jax.random.key(0)))
    with pytest.raises(InputError, match=r"threshold_head has a ReLU, or \[CLS\] is no key"):
        Heads.of_construction(threshold_head(SparseBoolean(9, (1, 2))))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(trained_heads) == [
        "pac_bayes delta=0.05",
        "pac_bayes_samples delta=0.05",
        "certify gap=0.5 delta=0.05 draws=1000",
    ]
