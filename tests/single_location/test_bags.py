"""A fit finds the instance that decides."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import special

from attlas.errors import InputError
from attlas.single_location import SingleLocation
from attlas.single_location import bags as bags_module
from attlas.single_location.bag_heads import Heads, Scaling
from attlas.single_location.bags import (
    MIN_GAIN,
    _descend_grid,
    _Run,
    _Task,
    fit_selection,
    linear_aside,
)
from tests.conftest import SEED
from tests.defaults import numbers_by_default


def ragged(rng, count=23, dim=5, longest=90):
    return [rng.normal(size=(rng.integers(1, longest), dim)) for _ in range(count)]


def drawn(dim, samples, seed):
    task = SingleLocation(dim=dim, noise=0.1, key=jax.random.key(seed))
    batch = task.sample(jax.random.key(seed + 1), samples)
    return (
        task,
        list(np.asarray(batch.tokens, float)),
        np.asarray(batch.target, float),
        np.asarray(batch.location),
    )


def test_a_fit_finds_the_instance_that_decides():
    task, bags, y, _ = drawn(20, 1000, SEED)
    found = fit_selection(bags, y[:, None])
    new = task.sample(jax.random.key(SEED + 2), 3000)
    tokens = list(np.asarray(new.tokens, float))
    excess = np.mean((found.respond(tokens)[:, 0] - np.asarray(new.target)) ** 2) - 0.01
    place = np.array([w.mean(1).argmax() for w in found.attention(tokens)])
    assert excess < 0.05 and (place == np.asarray(new.location)).mean() > 0.94
    assert excess < (task.linear_risk() - 0.01) / 8
    assert found.starts["moments"] < found.starts["swapped"] + 1e-3
    # what was held out knows how good it is
    aside = np.mean((found.aside[:, 0] - y) ** 2)
    assert aside == pytest.approx(excess + 0.01, abs=0.03)
    assert (
        np.mean((linear_aside(bags, y[:, None], np.ones(1000), np.arange(1000) % 5)[:, 0] - y) ** 2)
        > 5 * aside
    )


def test_the_linear_prediction_aside_is_ridge_regression_that_others_chose():
    rng = np.random.default_rng(SEED)
    bags, y = ragged(rng, count=30, dim=4, longest=6), rng.normal(size=(30, 2))
    weight, fold = rng.uniform(0.5, 2, 30), np.arange(30) % 3
    scaling = Scaling.of(bags, weight)
    x = np.stack([(bag.mean(0) - scaling.mean) / scaling.deviation for bag in bags])
    y += 0.4 * x[:, :2]
    tried = []
    for penalty in 30 * 10.0 ** np.linspace(-3, 3, 13):
        said = np.empty_like(y)
        for k in range(3):
            w, kept = weight[fold != k], fold != k
            centre, middle = (np.average(a[kept], 0, w) for a in (x, y))
            a, b = x[kept] - centre, y[kept] - middle
            slope = np.linalg.solve(a.T * w @ a + penalty * np.eye(4), a.T * w @ b)
            said[~kept] = middle + (x[~kept] - centre) @ slope
        tried.append(said)
    best = np.empty_like(y)  # in each fold by the penalty that is best in the others
    for k in range(3):
        others = weight * (fold != k)
        best[fold == k] = min(tried, key=lambda x: others @ ((x - y) ** 2).sum(1))[fold == k]
    np.testing.assert_allclose(linear_aside(bags, y, weight, fold), best, rtol=1e-9)


def test_heads_attend_and_respond_bag_by_bag():
    rng = np.random.default_rng(SEED)
    bags, weight = ragged(rng, count=4, dim=3, longest=7), rng.uniform(0.5, 2, 4)
    found = fit_selection(bags, rng.normal(size=(4, 2)), weight=weight, heads=1, trips=2)
    heads = Heads(*(rng.normal(size=s) for s in ((2, 3), (2,), (2, 3, 2), (2,))))
    found = replace(found, heads=heads, centre=np.array([0.4, -2.0]), spread=1.7)
    scaling = found.scaling
    for bag, weights, said in zip(bags, found.attention(bags), found.respond(bags), strict=True):
        x = (bag - scaling.mean) / scaling.deviation
        square = ((x**2).sum(1) - scaling.norm_mean) / scaling.norm_deviation
        shares = special.softmax(x @ heads.select.T + square[:, None] * heads.norm, axis=0)
        np.testing.assert_allclose(weights, shares, rtol=1e-9)
        mixed = np.einsum("lh,ld,hdk->k", shares, x, heads.value) + heads.offset
        np.testing.assert_allclose(said, [0.4, -2.0] + 1.7 * mixed, rtol=1e-9)
    sizes = np.sqrt((heads.value**2).sum((1, 2)))
    np.testing.assert_allclose(found.loudness, sizes / sizes.sum())
    silent = replace(found, heads=heads._replace(value=0 * heads.value))
    np.testing.assert_allclose(silent.loudness, [0.5, 0.5])


def test_what_is_fitted_is_centred_scaled_and_held_out_by_weight():
    rng = np.random.default_rng(SEED)
    bags, target = ragged(rng, count=12, dim=3, longest=7), 3 + rng.normal(size=(12, 2)) * [2, 0.5]
    weight, fold = rng.uniform(0.5, 2, 12), np.arange(12) % 5
    task = _Task(bags, target, "squared", weight, fold, True, 10, 1e-3)
    centre = np.average(target, 0, weight)
    spread = np.sqrt(np.average(((target - centre) ** 2).sum(1), weights=weight))
    np.testing.assert_allclose(task.target, (target - centre) / spread)
    np.testing.assert_allclose(task.centre, centre)
    covariance = np.cov(target.T, aweights=weight, ddof=0)
    largest = np.linalg.eigh(covariance)[1][:, -1]
    assert abs(task.direction @ largest) == pytest.approx(1)
    for k, share in enumerate(task.shares):
        np.testing.assert_array_equal(share, np.where(fold == k, 0, weight))
    output = rng.normal(size=(6, 12, 2))
    own = np.stack([output[fold[i], i] for i in range(12)])
    np.testing.assert_array_equal(task.own_lane(output), own)
    lost = np.average(((own - task.target) ** 2).sum(1), weights=weight)
    assert task.held_out_loss(output) == pytest.approx(lost)
    left = 2 * (task.target - own) @ task.direction
    np.testing.assert_allclose(task.residual(own), left, rtol=1e-6)
    u, v = rng.normal(size=(2, 3))
    made = task.heads_at([[(u, v)]])
    np.testing.assert_allclose(made.select[0, 0], u, rtol=1e-6)
    np.testing.assert_allclose(made.value[0, 0], 0.3 * np.outer(v, task.direction), rtol=1e-6)
    assert not made.norm.any() and not made.offset.any()
    assert not _Task(bags, target, "squared", weight, fold, False, 10, 1e-3).square.any()


def test_functions_that_a_better_start_found_are_dropped():
    rng = np.random.default_rng(SEED)
    a, b = rng.normal(size=(2, 9, 2))
    output = np.stack([a, 3 * a + 1, b, -a])
    correlations = bags_module._correlations(output)
    np.testing.assert_allclose(correlations, np.corrcoef(output.reshape(4, -1)))
    assert bags_module._distinct(np.array([2.0, 1.0, np.nan, 3.0]), output) == [1, 3, 2]


def test_merged_runs_respond_with_their_mean():
    rng = np.random.default_rng(SEED)
    sizes = ((4, 2, 5), (4, 2), (4, 2, 5, 3), (4, 3))
    runs = [
        _Run(*[None] * len(_Run._fields))._replace(
            heads=Heads(*(rng.normal(size=s) for s in sizes))
        )
        for _ in range(3)
    ]
    merged = _Task.merge_heads(None, runs)
    last = [run.heads for run in runs]
    np.testing.assert_array_equal(merged.select, np.concatenate([x.select[-1] for x in last]))
    np.testing.assert_array_equal(merged.norm, np.concatenate([x.norm[-1] for x in last]))
    value = np.concatenate([x.value[-1] for x in last]) / 3
    np.testing.assert_allclose(merged.value, value)
    np.testing.assert_allclose(merged.offset, sum(x.offset[-1] for x in last) / 3)


def test_weights_are_repetitions():
    rng = np.random.default_rng(SEED)
    bags = ragged(rng, count=40, dim=3, longest=6)
    y = np.array([x.max(0)[0] for x in bags])[:, None]
    twice = np.where(np.arange(40) < 10, 2.0, 1.0)
    fold = np.arange(40) % 5
    settled = {"heads": 1, "trips": 1000, "tolerance": 1e-5}
    weighted = fit_selection(bags, y, weight=twice, fold=fold, **settled)
    repeated = fit_selection(
        bags + bags[:10],
        np.concatenate([y, y[:10]]),
        fold=np.concatenate([fold, fold[:10]]),
        **settled,
    )
    np.testing.assert_allclose(weighted.respond(bags), repeated.respond(bags), atol=2e-2)
    np.testing.assert_allclose(weighted.scaling.mean, repeated.scaling.mean)


def test_classes_and_several_outputs():
    rng = np.random.default_rng(SEED)
    bags = [rng.normal(size=(5, 4)) for _ in range(300)]
    place = rng.integers(5, size=300)
    for bag, j in zip(bags, place, strict=True):
        bag[j, 0] += 5
    kind = np.array([bag[j, 1:].argmax() for bag, j in zip(bags, place, strict=True)])
    found = fit_selection(bags, np.eye(3)[kind], loss="logistic")
    assert (found.respond(bags).argmax(1) == kind).mean() > 0.85
    assert (np.array([w.mean(1).argmax() for w in found.attention(bags)]) == place).mean() > 0.9


@pytest.mark.parametrize("deciding", [0, 2])
def test_a_further_head_is_kept_where_it_lowers_the_held_out_loss_enough(monkeypatch, deciding):
    """Against fits in which it is always kept, and never; where the target is noise it does
    harm."""
    rng = np.random.default_rng(SEED)
    bags, y = rng.normal(size=(150, 6, 4)), 0.3 * rng.normal(size=150)
    places = rng.permuted(np.tile(np.arange(6), (150, 1)), axis=1).T
    for mark, place in enumerate(places[:deciding]):
        bags[np.arange(150), place, 2 * mark] += 5
        y += bags[np.arange(150), place, 2 * mark + 1]
    monkeypatch.setattr(bags_module._Task, "residual_has_moment", lambda *_: True)

    def fitted(gain):
        monkeypatch.setattr(bags_module, "MIN_GAIN", gain)
        return fit_selection(list(bags), y[:, None], penalty=0.003, heads=2)

    always, never, chosen = fitted(-np.inf), fitted(1.0), fitted(MIN_GAIN)
    assert always.together and not never.together
    enough = always.loss <= 0.98 * never.loss
    assert chosen.together == enough == (deciding == 2), (always.loss, never.loss)
    assert chosen.loss == (always if enough else never).loss
    assert len(always.heads.norm) == 2 and always.chosen[1:] == ("what the others leave",)
    aside = ((chosen.aside[:, 0] - y) ** 2).mean() / y.var()
    assert chosen.loss == pytest.approx(aside, rel=1e-4), "the loss of what was held out"


def test_the_grid_is_searched_downhill():
    losses = [3.0, 1.0, 2.0, 5.0, 4.0, 0.0]
    seen = []

    def loss(i):
        seen.append(i)
        return losses[i]

    assert _descend_grid(loss, 3, 6) == 1 and seen[0] == 3 and 5 not in seen
    assert _descend_grid(loss, 4, 6) == 5 and _descend_grid(loss, 0, 6) == 1


def test_one_instance_a_bag_is_ridge_regression():
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(200, 4))
    y = x @ [1.0, -2.0, 0.0, 0.5] + 0.1 * rng.normal(size=200)
    found = fit_selection(
        [row[None] for row in x], y[:, None], penalty=0.01, heads=1, trips=300, tolerance=1e-5
    )
    scaled = (x - x.mean(0)) / x.std(0)
    slope = np.linalg.solve(
        scaled.T @ scaled / 200 + 0.01 * np.eye(4), scaled.T @ (y - y.mean()) / 200
    )
    np.testing.assert_allclose(
        found.respond([row[None] for row in x])[:, 0], y.mean() + scaled @ slope, atol=5e-3
    )


def test_a_constant_target_is_said_of_every_bag():
    bags = ragged(np.random.default_rng(SEED), longest=5)
    found = fit_selection(bags, np.full((23, 1), 7.0))
    np.testing.assert_allclose(found.respond(bags), 7.0, atol=1e-3)


def test_an_unknown_loss_is_bad_input():
    with pytest.raises(InputError, match=r"loss = 'squard'.*squared"):
        fit_selection(ragged(np.random.default_rng(0)), np.zeros((23, 1)), loss="squard")


def test_what_is_held_out_knows_nothing_of_its_targets():
    """Targets that are independent of bags with more features than there are bags: a start that had
    seen them would not be forgotten."""
    right = []
    for draw in range(6):
        rng = np.random.default_rng([SEED, draw])
        bags = list(rng.normal(size=(60, 3, 380)))
        y = rng.permutation(np.arange(60) % 2)
        found = fit_selection(
            bags, y[:, None].astype(float), loss="logistic", penalty=1e-3, heads=1, seed=draw
        )
        right.append(np.mean((found.aside[:, 0] > 0) == y))
    assert np.mean(right) <= 0.5 + 3 * 0.5 / np.sqrt(60 * len(right))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(bags_module) == ["fit_selection trips=100 tolerance=0.001 seed=0"]


def test_of_one_candidate_each_fold_has_its_own_say():
    """Where nothing is chosen, what is said without a fold is what is held out; of other bags it is
    nearer to that than to what heads say that have seen the bag."""
    rng = np.random.default_rng(SEED)
    bags = rng.normal(size=(60, 4, 3))
    y, fold = bags[:, :, 0].max(1)[:, None], np.arange(60) % 5
    found = fit_selection(list(bags), y, fold=fold, penalty=0.03, heads=1)
    np.testing.assert_allclose(found.unswayed[fold, np.arange(60)], found.aside)
    for k in range(5):
        rest = fold != k
        held, seen = found.aside[rest], found.respond(list(bags))[rest]
        near, far = (np.mean((found.unswayed[k][rest] - x) ** 2) for x in (held, seen))
        assert near < far


def test_the_best_run_of_a_lane_loses_least_there():
    runs = [
        _Run(*[None] * len(_Run._fields))._replace(value=np.array(value))
        for value in ([3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 1.0])
    ]
    assert bags_module._best_run(runs) == [1, 0, 2]


def test_means_outside_a_fold_are_weighted_and_know_nothing_of_it():
    weight, fold = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 2])
    found = bags_module.mean_outside(weight, fold)
    np.testing.assert_allclose(found[0], [0, 0, 3 / 7, 4 / 7])
    np.testing.assert_allclose(found[1], [1 / 7, 2 / 7, 0, 4 / 7])
    np.testing.assert_allclose(found[4], weight / 10)
    np.testing.assert_allclose(bags_module.mean_outside(weight, 0 * fold)[0], weight / 10)


def test_a_residual_that_an_instance_decides_has_a_moment_also_beside_bags_of_one():
    rng = np.random.default_rng(SEED)
    bags = [rng.normal(size=(length, 4)) for length in [1, *[6] * 399]]
    for bag in bags:
        bag[0, 0] += 5
    target = np.array([bag[0, 1] for bag in bags])[:, None]
    one, fold = np.ones(400), np.arange(400) % 5
    task = _Task(bags, target, "squared", one, fold, True, 10, 1e-3)
    nothing = np.zeros((6, 400, 1))
    assert task.residual_has_moment(nothing, 0)
    alone = _Task([bag[:1] for bag in bags], target, "squared", one, fold, True, 10, 1e-3)
    assert not alone.residual_has_moment(nothing, 0)
