import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.errors import InputError
from attlas.order_parameters import (
    ChosenValue,
    Heads,
    Overlaps,
    Places,
    Pooled,
    Problem,
    Readout,
    SignedPlace,
    Tokens,
    ValueSum,
    best_overlaps,
    covariance_root,
    descend,
    descend_online,
    descend_online_vectors,
    fixed_points,
    gradient,
    risk,
    stability,
)
from attlas.order_parameters.refusals import refuse_vectors

HERE = Overlaps(np.zeros((2, 2, 2)), np.tile(np.eye(2), (2, 1, 1)))
FIRST = Overlaps(HERE.m[:1], HERE.q[:1])
NONE = Overlaps(HERE.m[:0], HERE.q[:0])


def problem(lam=1.0, noise=0.0, **options):
    return Problem(Places(4, [2.0], **options), ValueSum(noise), Heads("softmax", lam))


def with_weights(weights):
    return Problem(Places(4, [2.0]), ValueSum(), Heads(weights))


SECOND = [problem(), problem(noise=np.inf)]
RUNS = {
    "risk": lambda p: risk(p, HERE, points=8),
    "gradient": lambda p: gradient(p, HERE, points=8),
    "descend": lambda p: descend(p, HERE, step_size=0.1, steps=1, points=8),
    "descend_online": lambda p: descend_online(
        p, HERE, dim=9, batch_size=1, step_size=0.1, steps=1
    ),
    "descend_online_vectors": lambda p: descend_online_vectors(
        p, np.zeros((2, 9, 2)), np.eye(9)[:, :2], batch_size=1, step_size=0.1, steps=1
    ),
    "best_overlaps": lambda p: best_overlaps(p, 2, directions=2, starts=1, points=8, trips=1),
}
ALONE = {
    **RUNS,
    "stability": lambda p: stability(p, HERE, points=8),
    "fixed_points": lambda p: fixed_points(p, HERE, points=8, trips=1),
}


@pytest.mark.parametrize("name", RUNS)
def test_each_of_several_problems_must_have_finite_losses(name):
    with pytest.raises(InputError, match=r"problem 1 of 2, counted from 0, are .* one finite"):
        RUNS[name](SECOND)


def of_tokens(scores, present):
    weights = jax.nn.softmax(scores, 0)
    return weights, weights[:, 0]


@pytest.mark.parametrize("name", ALONE)
def test_what_divides_weights_is_one_number_a_head(name):
    """One for each token would be broadcast, and give a number that means nothing."""
    with pytest.raises(InputError, match=r"divides .* gives the shapes \(4, 1, 6\) and \(4, 6\)"):
        ALONE[name](with_weights(of_tokens))


def test_a_divisor_for_each_token_is_seen_with_as_many_heads_as_tokens():
    two = Problem(Places(2, [2.0]), ValueSum(), Heads(of_tokens))
    with pytest.raises(InputError, match="divides"):
        risk(two, Overlaps(np.zeros((1, 4, 2)), np.eye(4)[None]), points=8)


@pytest.mark.parametrize(
    "weights",
    [
        lambda scores, present: (jnp.exp(scores), 3.0),
        lambda scores, present: (jnp.exp(scores), jnp.exp(scores).sum(0, keepdims=True)[0]),
        lambda scores, present: (jnp.exp(scores), jnp.asarray(2.0)),
        lambda scores, present: (scores * np.arange(4).reshape(4, *[1] * (scores.ndim - 1)), 1),
    ],
)
def test_sound_weights_of_a_user_pass(weights):
    assert np.isfinite(risk(with_weights(weights), HERE, points=8).mean).all()


READ = Problem(Places(4, [2.0]), ValueSum(), Readout(Heads()))
AT = Overlaps(np.zeros((1, 2, 2)), np.eye(2)[None])


def made_of(**pieces):
    one = {"law": Places(4, [2.0]), "target": ValueSum(), "head": Heads(), **pieces}
    return Problem(**one)


def branches(x, *others):
    return x[0, 0] if x[0, 0] > 0 else 0.0


BAD = {
    "a target of two arguments": (
        lambda: risk(made_of(target=lambda teacher, tokens: 1.0), AT),
        r"the target cannot be made of fields of shape \(4, 2\): TypeError",
    ),
    "a target in NumPy": (
        lambda: risk(made_of(target=lambda t, tokens, noise: np.sin(t[0, 0])), AT),
        "the target cannot be made .* jax.numpy and jnp.where replace numpy and if",
    ),
    "a target that branches": (
        lambda: risk(made_of(target=branches), AT), "the target cannot .* jnp.where replace"
    ),
    "a head that branches": (
        lambda: risk(made_of(head=branches), AT), "the head cannot read .* jnp.where replace"
    ),
    "a head that gives two arrays": (
        lambda: risk(made_of(head=lambda s, present, p: (s[0, 0], s[0, 1])), AT),
        "it must give one array",
    ),
    "a loss of one argument": (
        lambda: risk(made_of(loss=lambda x: x), AT), "the loss cannot compare .*TypeError"
    ),
    "a law that says of fewer tokens whether they are there": (
        lambda: risk(
            made_of(law=lambda u: Tokens(jnp.zeros((4, 2)), jnp.ones(4), jnp.ones(3), np.zeros(1))),
            AT,
        ),
        r"present has the shape \(3,\): it says of each of 4 tokens",
    ),
    "no normals for the noise": (
        lambda: risk(made_of(noises=0), AT), "the target cannot be made .*IndexError"
    ),
    "fewer normals than none": (lambda: risk(made_of(noises=-1), AT), "noises = -1"),
    "a closed form that is no number": (
        lambda: risk(made_of(exact=lambda m, q: jnp.nan * m.sum()), AT),
        "the closed form gives .*nan.* one finite number",
    ),
    "a closed form of many numbers": (
        lambda: descend(made_of(exact=lambda m, q: m), AT, step_size=0.1, steps=1),
        "it must be one finite number",
    ),
    "a number of a problem that is none": (
        lambda: risk(made_of(target=ChosenValue(np.nan)), AT),
        "target.sharpness of a problem is nan: it must be a number",
    ),
    "a word for a number of a problem": (
        lambda: risk(made_of(head=Heads(lam="sharp")), AT), "head.lam of a problem is 'sharp'"
    ),
    "sharpnesses of heads": (lambda: Heads(lam=np.ones(3)), r"lam has the shape \(3,\)"),
    "heads without values": (lambda: Heads(values=0), "values = 0"),
    "signals in words": (lambda: Places(4, "loud"), "signals = 'loud': numbers are wanted"),
    "a background in words": (lambda: problem(background="low"), "background = 'low'"),
    "points in words": (lambda: risk(problem(), AT, points="many"), "points = 'many'"),
    "one plain random number": (
        lambda: risk(problem(), AT, points=1, quasi=False), "points = 1: an error .* at least 2"
    ),
    "a seed below 0": (
        lambda: descend(problem(), AT, step_size=0.1, steps=1, seed=-1), "seed = -1"
    ),
    "a seed in words": (
        lambda: best_overlaps(problem(), 2, directions=2, seed="one"), "seed = 'one'"
    ),
    "no trips": (lambda: fixed_points(problem(), AT, trips=0), "trips = 0"),
    "half a degree of freedom": (
        lambda: descend_online(
            problem(), AT, dim=9, batch_size=1, step_size=0.1, steps=1, extra_freedom=0.5
        ),
        "extra_freedom = 0.5",
    ),
    "overlaps in words": (lambda: risk(problem(), Overlaps("m", "q")), "M = 'm': overlaps are"),
    "complex overlaps": (
        lambda: risk(problem(), Overlaps(AT.m * 1j, AT.q)), "matrices of real numbers"
    ),
    "one start without its axis": (
        lambda: refuse_vectors(problem(), np.zeros((9, 2)), np.eye(9)[:, :2]),
        r"vectors have the shape \(9, 2\): it must be \[repeat, d, p\]",
    ),
    "vectors in words": (lambda: Overlaps.of("u", np.eye(4)[:, :2]), "vectors are no array"),
    "one vector without its axis": (
        lambda: Overlaps.of(np.ones(4), np.eye(4)[:, :2]), r"vectors have the shape \(4,\)"
    ),
    "one direction without its axis": (
        lambda: Overlaps.of(np.ones((4, 1)), np.ones(4)), r"directions have the shape \(4,\)"
    ),
    "a covariance in words": (lambda: covariance_root("K"), "no array of numbers"),
    "weights turned round": (
        lambda: risk(with_weights(lambda s, present: (s.T, 1)), HERE), r"gives the shapes \(6, 1, 4"
    ),
    "a negative spread": (lambda: problem(spread=-1.0), "spread = -1: a standard deviation"),
    "a spread that is no number": (lambda: problem(spread=np.nan), "spread = nan"),
    "no tokens": (lambda: Places(0, [2.0]), "length = 0"),
    "fewer directions than none": (lambda: Places(4, [2.0], extra=-1), "extra = -1"),
    "fewer values than none": (lambda: Places(4, [2.0], values=-1), "values = -1"),
    "a shortest sequence of none": (lambda: Places(4, [2.0], shortest=0), "shortest = 0"),
    "a background beyond the directions": (
        lambda: problem(background=[1, 2, 3]), r"shape \(3,\): .* each of the 2 directions"
    ),
    "signals in rows": (lambda: Places(4, [[2.0], [3.0]]), r"signals have the shape \(2, 1\)"),
    "a dimension that is no number": (
        lambda: descend_online(problem(), HERE, dim=np.nan, batch_size=1, step_size=1.0, steps=1),
        "dim = nan: it must be a whole number, or one for each of 2 starts",
    ),
    "half a dimension": (
        lambda: descend_online(problem(), HERE, dim=9.5, batch_size=1, step_size=1.0, steps=1),
        "dim = 9.5",
    ),
    "three dimensions for two starts": (
        lambda: descend_online(
            problem(), HERE, dim=(9, 9, 9), batch_size=1, step_size=1.0, steps=1
        ),
        "one for each of 2 starts",
    ),
    "parameters that are no numbers": (
        lambda: risk(READ, HERE, {"scale": np.array([1, np.nan]), "constant": np.zeros(2)}),
        "parameters of start 1 are not finite",
    ),
    "parameters that are not there": (
        lambda: risk(READ, HERE, {"scale": np.ones(2)}), "cannot read fields.*KeyError: 'constant'"
    ),
    "no starts": (lambda: risk(problem(), NONE), "at least one start"),
    "no problems": (lambda: risk([], HERE), "at least one is wanted"),
    "something else than a problem": (lambda: risk([3, 4], HERE), "3 is not a Problem"),
    "a law that gives a number": (
        lambda: risk(Problem(lambda u: 3, ValueSum(), Heads()), HERE), "it must give Tokens"
    ),
    "a law that fails": (
        lambda: risk(Problem(lambda u: {}[0], ValueSum(), Heads()), HERE),
        "the law cannot make tokens of 1 uniform numbers: KeyError: 0",
    ),
    "too few uniform numbers": (
        lambda: risk(
            Problem(Places(4, [2.0], shuffled=True), ValueSum(), Heads(), uniforms=2), HERE
        ),
        "uniforms = 2: the law makes its latent of 5",
    ),
    "a value that is not there": (
        lambda: risk(
            Problem(SignedPlace(2.0, 4), ChosenValue(2.0), Pooled()),
            Overlaps(np.zeros((1, 1, 1)), np.ones((1, 1, 1))),
        ),
        "ChosenValue reads two directions: the law has 1",
    ),
    "more values than a place has": (
        lambda: risk(
            Problem(Places(4, [2.0]), ValueSum(values=2), Heads(values=2)),
            Overlaps(np.zeros((1, 3, 2)), np.eye(3)[None]),
        ),
        r"ValueSum\(values=2\) on Places\(values=1\)",
    ),
    "values of one place that are read as another's": (
        lambda: risk(
            Problem(Places(4, [2.0, 1.0], values=2), ValueSum(), Heads()),
            Overlaps(np.zeros((1, 2, 6)), np.eye(2)[None]),
        ),
        r"ValueSum\(values=1\) on Places\(values=2\)",
    ),
    "vectors of another gradient": (
        lambda: gradient(problem(), HERE, points=8).of_vectors(np.ones((9, 3)), np.eye(9)[:, :2]),
        r"those of this gradient are \[..., d, 2\] and \[d, 2\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name):
    run, says = BAD[name]
    with pytest.raises(InputError, match=says) as found:
        run()
    assert "\n" not in str(found.value)


def test_one_value_of_a_place_with_two_may_be_the_target():
    here = Overlaps(np.zeros((1, 2, 3)), np.eye(2)[None])
    one = Problem(Places(4, [2.0], values=2), ValueSum(), Heads())
    assert np.isfinite(risk(one, here, points=8).mean).all()


def test_a_law_that_refuses_speaks_for_itself():
    def law(uniforms):
        raise InputError("no tokens today")

    with pytest.raises(InputError, match="no tokens today"):
        risk(Problem(law, ValueSum(), Heads()), HERE)


def test_tokens_of_a_law_with_other_directions_are_told_so():
    def law(uniforms):
        return Tokens(jnp.zeros((3, 1)), jnp.ones(3), jnp.ones(3))

    with pytest.raises(InputError, match=r"it must be \[L, 2\]"):
        risk(Problem(law, ValueSum(), Heads()), FIRST)
