r"""What a linear reader finds in each layer: logistic probes of its states, beside a reader that counts words.

    sets = constructed()                          # sentences of which one adjective decides the label, after Figure 1 of Marion et al. 2025
    found = probe(model, sets, most=600)          # Dataset over (pool, layer, set): accuracy; and of the word counts, over set
    found = probe_labelled(model, *read_labelled("file.tsv"))     # any labelled text, by cross-validation

States are those that leave each layer, layer 0 the embedding; `pool` is the state of the reader ([CLS], in causal models the last token) or the mean
over tokens. Coordinates are standardised, the penalty is scikit-learn's.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from attlas.audit.architectures import Model
from attlas.audit.auditing import read_lines
from attlas.audit.forward import embed, trace
from attlas.audit.texts import encode
from attlas.errors import InputError

POOLS = ("reader", "mean")
BATCH, TOGETHER, FOLDS = 64, 2048, 5
"""Sentences in one compiled program, sentences for which a layer is read once, folds of cross-validation."""
LONGEST = 128


class Labelled(NamedTuple):
    """Texts and the number of each one's class."""

    texts: list[str]
    labels: Int[np.ndarray, " n"]


def constructed() -> dict[str, Labelled]:
    """Sentences built from slots; the label is the sign of the one adjective of sentiment, +1 as 1.

    `train` has the adjective after or before the animal; `test` other words in all other slots, the adjective before the animal; `new words` other
    adjectives and a greeting, in both orders; `new structure` greetings in place of the first sentence; `both` the last two together. After
    Marion et al. 2025, Figure 1; where the greeting stands in `new words` is our reading.
    """
    old = {"nice": 1, "mean": 0, "cute": 1, "dreadful": 0, "aggressive": 0, "delightful": 1}
    new = {"lovely": 1, "nasty": 0, "charming": 1, "foul": 0}
    city = [f"The city is {word}." for word in ("nice", "dreadful", "clean", "dirty")]
    greeted = [f"{sentence} Good evening," for sentence in city]
    hello = ["Hello, how are you? Good evening,"]
    first = (("my", "his", "her", "our"), ("", "blue", "orange", "beige", "green", "red"))
    animals, adverbs, sizes = ("dog", "owl", "cow"), ("", "very", "extremely"), ("tiny", "giant")
    other = (("their", "your"), ("purple", "gray"))
    others, less, big = (
        ("cat", "eagle", "goat"),
        ("", "especially"),
        ("big", "little", "mini", "enormous"),
    )
    return {
        "train": _built(
            (city, *first, animals, ("is",), adverbs, old),
            (city, *first, old, animals, ("is",), adverbs, sizes),
        ),
        "test": _built((city, *other, old, others, ("is",), less, big)),
        "new words": _built(
            (greeted, *other, new, others, ("is",), less, big),
            (greeted, *other, big, others, ("is",), less, new),
        ),
        "new structure": _built((hello, *other, others, ("is",), less, old)),
        "both": _built((hello, *other, others, ("is",), less, new)),
    }


def _built(*slots: Sequence[Sequence[str] | Mapping[str, int]]) -> Labelled:
    """Every sentence with one word from each slot; the slot that is a mapping holds the labels."""
    texts, labels = [], []
    for each in slots:
        signed = next(i for i, slot in enumerate(each) if isinstance(slot, Mapping))
        label = each[signed]
        for words in product(*each):
            texts.append(" ".join(word for word in words if word))
            labels.append(label[words[signed]])  # type: ignore[call-overload]
    return Labelled(texts, np.array(labels))


def some(found: Labelled, most: int, seed: int = 0) -> Labelled:
    """At most `most` of the texts, classes in equal numbers as far as they go; but enough of each for every fold to have one."""
    bits = np.random.default_rng(seed)
    classes = np.unique(found.labels)
    kept = [
        bits.permutation(np.flatnonzero(found.labels == each))[: max(most // len(classes), FOLDS)]
        for each in classes
    ]
    places = (
        np.sort(np.concatenate(kept)) if len(found.texts) > most else np.arange(len(found.texts))
    )
    return Labelled([found.texts[i] for i in places], found.labels[places])


def read_labelled(path: str | Path) -> tuple[Labelled, tuple[str, ...]]:
    """A file with a label, a tab and a text on each line, and the names of the classes."""
    names, texts = [], []
    for number, line in enumerate(read_lines(path), 1):
        label, tab, text = line.partition("\t")
        if not (tab and label.strip() and text.strip()):
            raise InputError(
                f"line {number} of {path} is {line[:60]!r}: it must be a label, a tab and a text"
            )
        names.append(label.strip())
        texts.append(text.strip())
    classes, labels = np.unique(names, return_inverse=True)
    if len(classes) < 2 or np.bincount(labels).min() < FOLDS:
        raise InputError(
            f"{path} has the labels {', '.join(map(str, classes[:8]))}: there must be two or more, each {FOLDS} times or more"
        )
    return Labelled(texts, labels), tuple(map(str, classes))


def states(model: Model, texts: Sequence[str]) -> Float[np.ndarray, "pool layer text dim"]:
    """The pooled states before the first layer and after each, of the first `LONGEST` tokens."""
    tokens = encode(model, list(texts), LONGEST)
    found = np.empty((len(POOLS), model.layers + 1, len(texts), model.dim), np.float32)
    for start, together in zip(range(0, len(texts), TOGETHER), tokens.split(TOGETHER), strict=True):
        parts = together.split(BATCH)
        batches = [embed(model, part) for part in parts]
        for i, (part, batch) in enumerate(zip(parts, batches, strict=True)):
            here = slice(start + i * BATCH, start + i * BATCH + len(part.ids))
            found[:, 0, here] = _pooled(model, batch.states, part.mask)
        for step in trace(model, batches):
            part = parts[step.batch]
            here = slice(start + step.batch * BATCH, start + step.batch * BATCH + len(part.ids))
            found[:, step.layer + 1, here] = _pooled(model, np.asarray(step.after), part.mask)
            if not np.isfinite(found[:, step.layer + 1, here]).all():
                raise InputError(
                    f"what leaves layer {step.layer} of {model.name} on the texts to probe is not finite"
                )
    return found


def _pooled(model: Model, state: np.ndarray, mask: np.ndarray) -> np.ndarray:
    last = mask.sum(1) - 1 if model.block.causal else np.zeros(len(mask), int)
    weights = mask / mask.sum(1, keepdims=True)
    return np.stack([state[np.arange(len(mask)), last], np.einsum("bn,bnd->bd", weights, state)])


def _classifier() -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def _counter() -> Pipeline:
    return make_pipeline(
        TfidfVectorizer(token_pattern=r"(?u)\b\w+\b"), LogisticRegression(max_iter=1000)
    )


def probe(
    model: Model, sets: Mapping[str, Labelled], most: int | None = None, seed: int = 0
) -> xr.Dataset:
    """Probes fitted on the first of `sets` and tried on all: `accuracy` over (pool, layer, set), that of word counts as `words` over set. `most` bounds
    the sentences of the first set; of the others, a third of that."""
    chosen = {
        name: found if most is None else some(found, most if i == 0 else most // 3, seed)
        for i, (name, found) in enumerate(sets.items())
    }
    train = next(iter(chosen.values()))
    ends = np.cumsum([len(found.texts) for found in chosen.values()])[:-1]
    pooled = np.split(
        states(model, [text for found in chosen.values() for text in found.texts]), ends, axis=2
    )
    accuracy = np.empty((len(POOLS), model.layers + 1, len(chosen)))
    with threadpool_limits(1):
        for i, layer in np.ndindex(accuracy.shape[:2]):
            fitted = _classifier().fit(pooled[0][i, layer], train.labels)
            for j, (found, state) in enumerate(zip(chosen.values(), pooled, strict=True)):
                accuracy[i, layer, j] = fitted.score(state[i, layer], found.labels)
        counter = _counter().fit(train.texts, train.labels)
        words = [counter.score(found.texts, found.labels) for found in chosen.values()]
    sizes = [len(found.texts) for found in chosen.values()]
    return _dataset(
        model, "the sentences of Marion et al. 2025, Figure 1", accuracy, words, list(chosen), sizes
    )


def probe_labelled(
    model: Model,
    found: Labelled,
    classes: Sequence[str] = (),
    most: int = 2000,
    seed: int = 0,
    name: str = "your texts",
) -> xr.Dataset:
    """The same by cross-validation on one set of labelled texts: `accuracy` is the mean over folds, `error` its standard error."""
    found = some(found, most, seed)
    pooled = states(model, found.texts)
    folds = list(
        StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(found.texts, found.labels)
    )
    scores = np.empty((FOLDS, len(POOLS), model.layers + 1))
    words = []
    with threadpool_limits(1):
        for k, (fit, held) in enumerate(folds):
            for i, layer in np.ndindex(scores.shape[1:]):
                fitted = _classifier().fit(pooled[i, layer, fit], found.labels[fit])
                scores[k, i, layer] = fitted.score(pooled[i, layer, held], found.labels[held])
            counter = _counter().fit([found.texts[j] for j in fit], found.labels[fit])
            words.append(counter.score([found.texts[j] for j in held], found.labels[held]))
    answer = _dataset(
        model,
        name,
        scores.mean(0)[..., None],
        [float(np.mean(words))],
        ["held out"],
        [len(found.texts)],
    )
    answer["error"] = (
        ("pool", "layer", "set"),
        (scores.std(0, ddof=1) / np.sqrt(FOLDS))[..., None],
    )
    return answer.assign_attrs(
        chance=float(np.bincount(found.labels).max() / len(found.labels)), classes=list(classes)
    )


def _dataset(
    model: Model,
    name: str,
    accuracy: np.ndarray,
    words: Sequence[float],
    sets: list[str],
    sizes: list[int],
) -> xr.Dataset:
    found = xr.Dataset(
        {
            "accuracy": (("pool", "layer", "set"), accuracy),
            "words": ("set", np.asarray(words)),
            "texts": ("set", sizes),
        },
        {"pool": list(POOLS), "layer": np.arange(model.layers + 1), "set": sets},
        {
            "model": model.name,
            "text": name,
            "reader": "the last token" if model.block.causal else "[CLS]",
            "chance": 0.5,
        },
    )
    found.accuracy.attrs["words"] = "share of texts whose class the probe names"
    found["words"].attrs["words"] = "the same for logistic regression on word counts (tf-idf)"
    return found
