r"""A sentence as single-location data (Marion et al. 2025, Figure 2).

    The city is dirty. My blue dog is very nice.

One word decides what is said of the dog: the sentiment word of the second part. Its place varies,
and the first part has a sentiment word too, which does not count. A word becomes a token of
dimension d = 32,

    token = word + part + context

    word      its embedding, the same wherever it stands. A sentiment word has m = 5 in the
    coordinate FEELING and its
              signed strength in VALUE. All else, such as the VALUE of "dog", is random: 0.5 N(0,
              1).
    part      m in the coordinate PART if the word stands in the second part
    context   sqrt(1/2) N(0, 1) in every coordinate, afresh each time a word is said

and the target is the strength of the deciding word as it was said there: Y = <X_J, v*>, with v* the
direction VALUE. Nobody tells J. "A sentiment word AND in the second part" is the direction k* =
(FEELING + PART) / sqrt(2): the score <x, k*> counts, in units of m / sqrt(2), how many of the two
properties a word has, 0, 1 or 2, up to noise.

What a head makes of the count tells an AND from a sum. Softmax exponentiates: exp(a + b) = exp(a)
exp(b), and a product is an AND; steep enough, it leaves nothing to a word that has one property.
The paper's erf is concave where it is
positive: erf(a + b) <= erf(a) + erf(b), so the two kinds with one property get, on average, half
the weight of the deciding word or more, however sharp it is. The erf head finds the word and still
errs; the atlas shows the softmax head. (In the paper's own model tokens other than X_J have mean 0
along k*, and erf suffices.)

Linear regression sees the same tokens, all L d coordinates, and fails for the paper's reason: the
deciding word is seldom at any given place, and where it is not, a weight reads the VALUE of some
other word. Told the place it is exact. The context is needed for that: without it a linear model
has more coefficients at each place than there are words to occur there, and learns every word by
heart.

    python examples/sentence.py [--seed N] [--out FILE]

trains on 4000 sentences, five times over with new embeddings, sentences and starts; tests on
sentences that are not among them, of the same words and of new ones; prints the errors and writes
what the atlas' page "One word decides" reads, on which to change the sentence:
`--out src/attlas/single_location/pages/sentence.json` renews it.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import click
import jax
import numpy as np
import xarray as xr
from heads import (
    erf_weights,
    free_step,
    linear_fit,
    options,
    print_table,
    short,
    softmax_weights,
    sphere_step,
    train,
    with_error,
    write_data,
)

from attlas.errors import whole

FIRST = "{opening} the {kind} city is {degree} {verdict}"
SECOND = {
    "adjective last": "{owner} {colour} {animal} is {adverb} {adjective}",
    "adjective first": "{owner} {adjective} {colour} {animal} is {adverb} {size}",
}
# "" leaves the word out.
KNOWN = {
    "opening": ["", "well", "you know", "as everyone here knows"],
    "kind": ["", "old", "busy"],
    "degree": ["", "very", "extremely"],
    "verdict": ["nice", "dreadful", "clean", "dirty"],
    "owner": ["my", "his", "her", "our"],
    "colour": ["", "blue", "orange", "beige", "green", "red"],
    "animal": ["dog", "owl", "cow"],
    "adverb": ["", "very", "extremely"],
    "adjective": ["nice", "cute", "delightful", "mean", "dreadful", "aggressive"],
    "size": ["tiny", "giant"],
}
NEW = {
    "opening": ["", "listen", "by the way"],
    "kind": ["", "new"],
    "degree": ["", "really"],
    "verdict": ["lovely", "nasty", "pretty", "ugly"],
    "owner": ["their", "your"],
    "colour": ["", "purple", "grey"],
    "animal": ["cat", "eagle", "goat"],
    "adverb": ["", "really"],
    "adjective": ["lovely", "nasty", "charming", "foul"],
    "size": ["big", "little"],
}
STRENGTH = {
    "nice": 1.0,
    "cute": 0.7,
    "delightful": 1.5,
    "clean": 0.7,
    "lovely": 1.3,
    "charming": 1.0,
    "pretty": 0.8,
    "mean": -1.0,
    "aggressive": -0.7,
    "dreadful": -1.5,
    "dirty": -0.7,
    "nasty": -1.3,
    "foul": -1.0,
    "ugly": -0.8,
}
TEXT = " ".join(
    [
        FIRST,
        *SECOND.values(),
        *(text for slots in (KNOWN, NEW) for texts in slots.values() for text in texts),
    ]
)
VOCABULARY = sorted({word for word in TEXT.split() if "{" not in word})

DIM, LENGTH = 32, 17
FEELING, PART, VALUE = range(3)  # coordinates; training is the same in every rotation of them
MEAN, WORD, CONTEXT = 5.0, 0.5, 0.5**0.5


class Sentence(NamedTuple):
    words: tuple[str, ...]
    second: int  # where the second part begins
    place: int  # of the word that decides


def sentence(slots, order):
    """The sentence with the words `slots`, a dictionary, in the second part's `order`."""
    first, second = FIRST.format(**slots).split(), SECOND[order].format(**slots).split()
    return Sentence((*first, *second), len(first), len(first) + second.index(slots["adjective"]))


def draw_sentences(rng, lexicon, count, avoid=()):
    """`count` different sentences of the words in `lexicon`, none of them in `avoid`."""
    found = {}
    while len(found) < count:
        drawn = sentence(
            {slot: rng.choice(texts) for slot, texts in lexicon.items()}, rng.choice(list(SECOND))
        )
        if drawn not in avoid:
            found[drawn] = None
    return list(found)


def embed(rng):
    """Embeddings of the vocabulary [word, dim]."""
    vectors = WORD * rng.normal(size=(len(VOCABULARY), DIM))
    for word, strength in STRENGTH.items():
        vectors[VOCABULARY.index(word), [FEELING, VALUE]] = MEAN, strength
    return vectors.round(3)  # as the page has them


def tokenise(sentences, vectors, rng=None):
    """Tokens [n, LENGTH, DIM], padded with zeros; in context if `rng` is given."""
    tokens = np.zeros((len(sentences), LENGTH, DIM), np.float32)
    index = {word: i for i, word in enumerate(VOCABULARY)}
    for x, (words, second, _) in zip(tokens, sentences, strict=True):
        x[: len(words)] = vectors[[index[word] for word in words]]
        x[second : len(words), PART] += MEAN
        if rng is not None:
            x[: len(words)] += CONTEXT * rng.normal(size=(len(words), DIM))
    return tokens


class Data(NamedTuple):
    tokens: np.ndarray  # [n, length, dim]
    target: np.ndarray  # [n]
    place: np.ndarray  # [n]


def label(sentences, vectors, rng):
    """The sentences as data: tokens in context, and the VALUE of the deciding one."""
    tokens, place = tokenise(sentences, vectors, rng), np.array([s.place for s in sentences])
    return Data(tokens, tokens[np.arange(len(place)), place, VALUE], place)


class World(NamedTuple):
    """One draw of all that is random but the starts of the heads."""

    vectors: np.ndarray
    training: Data
    tests: dict[str, Data]


def draw_world(seed, repeat, sentences, tests):
    words, numbers = random.Random(f"{seed}, {repeat}"), np.random.default_rng([seed, repeat])
    vectors, seen = embed(numbers), draw_sentences(words, KNOWN, sentences)
    held_out = {
        "known words": draw_sentences(words, KNOWN, tests, avoid=set(seen)),
        "new words": draw_sentences(words, NEW, tests),
    }
    tested = {name: label(drawn, vectors, numbers) for name, drawn in held_out.items()}
    return World(vectors, label(seen, vectors, numbers), tested)


class Head(NamedTuple):
    """An attention head; `step` is the last one of its training, and `scale` multiplies what it
    says."""

    weigh: Callable
    k: np.ndarray
    v: np.ndarray
    step: int
    scale: float = 1.0

    def weights(self, data):
        return np.asarray(self.weigh(data.tokens, self.k, self.step))

    def __call__(self, data):
        return self.scale * (self.weights(data) * (data.tokens @ self.v)).sum(-1)

    def scaled(self, data):
        """With the scale that suits `data` best: the erf head's vectors have length 1, which fixes
        its own."""
        said = self(data)
        return self._replace(scale=float(said @ data.target / (said @ said)))


class Linear(NamedTuple):
    """A linear regression on features of the data."""

    features: Callable
    weights: np.ndarray
    constant: float

    def __call__(self, data):
        return self.features(data) @ self.weights + self.constant


HEADS = {
    "softmax head": {
        "weigh": softmax_weights,
        "move": free_step,
        "size": 0.03,
        "steps": 3000,
        "start": 0.1,
    },
    "erf head": {"weigh": erf_weights, "move": sphere_step, "size": 6e-3, "steps": 5000},
}
# Features and ridge penalty. 300 is the best of 1, 10, 30, 100, 300 and 1000: the linear model
# gets its due.
LINEAR = {
    "linear": (lambda data: data.tokens.reshape(len(data.tokens), -1), 300.0),
    "linear, sum of tokens": (lambda data: data.tokens.sum(1), 0.0),
    "linear, told the place": (
        lambda data: data.tokens[np.arange(len(data.place)), data.place],
        0.0,
    ),
}
PREDICTORS = [*HEADS, *LINEAR, "constant"]


def learn(seed=0, repeats=5, sentences=4000, tests=2000):
    """Every predictor trained and tested in `repeats` worlds: a Dataset over (repeat, predictor,
    words) with the mean square `error` as a share of the constant's and, for heads, the share of
    sentences in which the deciding word is `found`, that is has the largest weight; and the first
    world with its predictors."""
    worlds = [
        draw_world(seed, repeat, sentences, tests) for repeat in range(whole("repeats", repeats, 2))
    ]
    tokens, target = (
        np.stack([getattr(world.training, name) for world in worlds])
        for name in ("tokens", "target")
    )
    pairs = {
        name: train(jax.random.key(seed), tokens, target, **how) for name, how in HEADS.items()
    }
    fitted = [
        fit(
            world.training,
            {name: (np.asarray(k[i]), np.asarray(v[i])) for name, (k, v) in pairs.items()},
        )
        for i, world in enumerate(worlds)
    ]
    measured = xr.concat([measure(*pair) for pair in zip(worlds, fitted, strict=True)], "repeat")
    return measured, worlds[0], fitted[0]


def fit(training, pairs):
    """All predictors by name; `pairs` are the trained (k, v)."""
    heads = {
        name: Head(HEADS[name]["weigh"], k, v, HEADS[name]["steps"])
        for name, (k, v) in pairs.items()
    }
    heads["erf head"] = heads["erf head"].scaled(training)
    linear = {
        name: Linear(features, *linear_fit(features(training), training.target, penalty))
        for name, (features, penalty) in LINEAR.items()
    }
    mean = training.target.mean()
    return {**heads, **linear, "constant": lambda data: np.full_like(data.target, mean)}


def measure(world, predictors):
    axes = {"predictor": PREDICTORS, "words": list(world.tests)}
    error = xr.DataArray(np.nan, axes, list(axes))
    found = error.copy()
    for words, data in world.tests.items():
        for name, predict in predictors.items():
            error.loc[name, words] = ((predict(data) - data.target) ** 2).mean()
            if name in HEADS:
                found.loc[name, words] = (
                    abs(predict.weights(data)).argmax(-1) == data.place
                ).mean()
    return xr.Dataset({"error": error / error.sel(predictor="constant"), "found": found})


def mean_scores(vectors, k):
    """Mean score of the four kinds of word: rows without and with feeling, columns first and second
    part."""
    feels = np.isin(VOCABULARY, list(STRENGTH))
    return [
        [float((vectors[kind] @ k).mean() + part * MEAN * k[PART]) for part in (0, 1)]
        for kind in (~feels, feels)
    ]


def page_model(vectors, head, linear):
    """What the page's script computes with."""
    return {
        "first": FIRST,
        "second": SECOND,
        "known": KNOWN,
        "new": NEW,
        "vectors": dict(zip(VOCABULARY, short(vectors), strict=True)),
        "mean": MEAN,
        "context": CONTEXT,
        "part": PART,
        "value": VALUE,
        "k": short(head.k),
        "v": short(head.v),
        "linear": short(linear.weights.reshape(LENGTH, DIM)),
        "constant": round(linear.constant, 5),
    }


@click.command(
    help="Train heads on sentences in which one word decides, print their errors and write them."
)
@options("sentence.json")
def main(out, seed):
    measured, world, predictors = learn(seed)
    rows = []
    for name in PREDICTORS:
        here = measured.sel(predictor=name)
        errors = [with_error(here.error.sel(words=words)) for words in world.tests]
        found = [
            with_error(100 * here.found.sel(words=words), 1) if name in HEADS else ""
            for words in world.tests
        ]
        rows.append([name, *errors, *found])
    headings = [
        "",
        "error, known words",
        "error, new words",
        "found %, known words",
        "found %, new words",
    ]
    print_table(headings, rows)
    head = predictors["softmax head"]
    scores = mean_scores(world.vectors, head.k)
    write_data(
        out,
        seed=seed,
        headings=headings,
        rows=rows,
        repeats=measured.sizes["repeat"],
        sentences=len(world.training.target),
        scores=scores,
        share=float(np.exp(max(scores[0][1], scores[1][0]) - scores[1][1])),
        along={
            name: float(x)
            for name, x in zip(("feeling", "part"), head.k[[FEELING, PART]], strict=True)
        },
        **page_model(world.vectors, head, predictors["linear"]),
    )


if __name__ == "__main__":
    main()
