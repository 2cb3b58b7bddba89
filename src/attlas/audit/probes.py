r"""What a linear reader finds in each layer: logistic probes of its states, beside word counts.

    sets = constructed_sentences()                # one adjective decides the label
    probe(model, sets, limit=600)                 # accuracy over (pool, layer, set)
    probe_labelled(model, *read_labelled("file.tsv"))     # the same by cross-validation

States are those that leave each layer; layer 0 is the embedding. `pool` is the state of the reader
([CLS], in causal models the last token) or the mean over tokens. Coordinates are taken
as they are, as in Marion et al. 2025, Figure 1; the penalty is scikit-learn's default.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from attlas.audit.architectures import Model
from attlas.audit.behaviour import reader_positions
from attlas.audit.certificates import DELTA, HeadOutputs
from attlas.audit.forward import Step, embed, trace
from attlas.audit.texts import encode, read_lines
from attlas.errors import InputError

POOLS = ("reader", "mean")
AXES = ("pool", "layer", "set")
BATCH, TEXTS_PER_PASS, FOLDS = 64, 2048, 5
"""Texts in one compiled program, texts for which a layer is read once, and folds."""
MAX_TOKENS = 128


class Labelled(NamedTuple):
    """Texts, and the number of the class of each."""

    texts: list[str]
    labels: Int[np.ndarray, " n"]


def constructed_sentences() -> dict[str, Labelled]:
    """Sentences built from slots; the label is the sign of the one adjective of sentiment.

    - `train`: the adjective stands after or before the animal
    - `test`: other words in all other slots, the adjective before the animal
    - `new words`: other adjectives, before the colour or last, and a greeting after the city
    - `new structure`: greetings in place of the first sentence
    - `both`: new words in the new structure

    After Marion et al. 2025, Figure 1, and its public code.
    """
    old = {"nice": 1, "mean": 0, "cute": 1, "dreadful": 0, "aggressive": 0, "delightful": 1}
    new = {"lovely": 1, "nasty": 0, "charming": 1, "foul": 0}
    city = [f"The city is {word}." for word in ("nice", "dreadful", "clean", "dirty")]
    greeted = [f"{sentence} Good evening," for sentence in city]
    hello = ["Hello, how are you? Good evening,"]
    first = (("my", "his", "her", "our"), ("", "blue", "orange", "beige", "green", "red"))
    animals, adverbs, sizes = ("dog", "owl", "cow"), ("", "very", "extremely"), ("tiny", "giant")
    pronouns, colours, others = ("their", "your"), ("purple", "gray"), ("cat", "eagle", "goat")
    less, big = ("", "especially"), ("big", "little", "mini", "enormous")
    return {
        "train": _combine(
            (city, *first, animals, ("is",), adverbs, old),
            (city, *first, old, animals, ("is",), adverbs, sizes),
        ),
        "test": _combine((city, pronouns, colours, old, others, ("is",), less, big)),
        "new words": _combine(
            (greeted, pronouns, big, colours, others, ("is",), less, new),
            (greeted, pronouns, new, colours, others, ("is",), less, big),
        ),
        "new structure": _combine((hello, pronouns, colours, others, ("is",), less, old)),
        "both": _combine((hello, pronouns, colours, others, ("is",), less, new)),
    }


def _combine(*structures: Sequence[Sequence[str] | Mapping[str, int]]) -> Labelled:
    """Every sentence with one word from each slot; the slot that is a mapping holds the labels."""
    texts, labels = [], []
    for slots in structures:
        (labelled,) = (slot for slot in slots if isinstance(slot, Mapping))
        place = slots.index(labelled)
        for words in product(*slots):
            texts.append(" ".join(word for word in words if word))
            labels.append(labelled[words[place]])
    return Labelled(texts, np.array(labels))


def subsample(found: Labelled, limit: int, seed: int = 0) -> Labelled:
    """At most `limit` texts, as many of each class, but at least one for every fold."""
    if len(found.texts) <= limit:
        return found
    bits = np.random.default_rng(seed)
    classes = np.unique(found.labels)
    size = max(limit // len(classes), FOLDS)
    kept = [bits.permutation(np.flatnonzero(found.labels == each))[:size] for each in classes]
    places = np.sort(np.concatenate(kept))
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
            f"{path} has the labels {', '.join(map(str, classes[:8]))}: there must be two or more,"
            f" each {FOLDS} times or more"
        )
    return Labelled(texts, labels), tuple(map(str, classes))


def pooled_states(
    model: Model,
    texts: Sequence[str],
    on_step: Callable[[Step, np.ndarray], None] = lambda step, mask: None,
) -> Float[np.ndarray, "pool layer text dim"]:
    """The pooled states before the first layer and after each, of the first `MAX_TOKENS` tokens.

    `on_step` is called with every step of the forward pass and the mask of its texts.
    """
    passes = []
    for tokens in encode(model, list(texts), MAX_TOKENS).split(TEXTS_PER_PASS):
        batches = [embed(model, part) for part in tokens.split(BATCH)]
        layers = [[_pool(model, batch.states, batch.mask) for batch in batches]]
        for step in trace(model, batches):
            pooled = _pool(model, np.asarray(step.after), batches[step.batch].mask)
            if step.batch == 0:
                layers.append([])
            layers[-1].append(pooled)
            on_step(step, batches[step.batch].mask)
        passes.append(np.stack([np.concatenate(layer, axis=1) for layer in layers], axis=1))
    return np.concatenate(passes, axis=2)


def _pool(model: Model, states: np.ndarray, mask: np.ndarray) -> Float[np.ndarray, "pool b dim"]:
    at_reader = states[np.arange(len(mask)), reader_positions(model, mask)]
    mean = np.einsum("bn,bnd->bd", mask / mask.sum(1, keepdims=True), states)
    return np.stack([at_reader, mean]).astype(np.float32)


def _accuracies(
    pooled: Float[np.ndarray, "pool layer text dim"],
    found: Labelled,
    fit: np.ndarray,
    tests: Sequence[np.ndarray],
) -> tuple[Float[np.ndarray, "pool layer test"], list[float]]:
    """Accuracies on the texts `tests` of probes and of word counts, both fitted on `fit`."""
    accuracy = np.empty((*pooled.shape[:2], len(tests)))

    def evaluate(classifier: Any, inputs: np.ndarray) -> list[float]:
        classifier.fit(inputs[fit], found.labels[fit])
        return [classifier.score(inputs[test], found.labels[test]) for test in tests]

    with threadpool_limits(1):
        for place in np.ndindex(accuracy.shape[:2]):
            accuracy[place] = evaluate(LogisticRegression(max_iter=1000), pooled[place])
        counts = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b")
        of_words = make_pipeline(counts, LogisticRegression(max_iter=1000))
        return accuracy, evaluate(of_words, np.array(found.texts, object))


def probe(
    model: Model, sets: Mapping[str, Labelled], limit: int | None = None, seed: int = 0
) -> xr.Dataset:
    """Probes fitted on the first of `sets` and evaluated on all.

    Arguments:
        limit: the number of texts of the first set; of the others, a third of that. All if None.

    Returns `accuracy` over (pool, layer, set), that of word counts as `words` over `set`, and what
    `certificates` says of every head on the first set.
    """
    chosen = {
        name: found if limit is None else subsample(found, limit if i == 0 else limit // 3, seed)
        for i, (name, found) in enumerate(sets.items())
    }
    first = next(iter(chosen))
    chosen[first] = _shuffle(chosen[first], seed)
    texts = [text for found in chosen.values() for text in found.texts]
    together = Labelled(texts, np.concatenate([found.labels for found in chosen.values()]))
    sizes = [len(found.texts) for found in chosen.values()]
    tests = np.split(np.arange(len(texts)), np.cumsum(sizes)[:-1])
    outputs = HeadOutputs(model, sizes[0])
    accuracy, words = _accuracies(pooled_states(model, texts, outputs), together, tests[0], tests)
    title = "the sentences of Marion et al. 2025, Figure 1"
    found = _make_dataset(model, title, accuracy, words, list(chosen), sizes)
    return _add_certificates(found, outputs, chosen[first].labels, seed)


def _shuffle(found: Labelled, seed: int) -> Labelled:
    order = np.random.default_rng(seed).permutation(len(found.texts))
    return Labelled([found.texts[i] for i in order], found.labels[order])


def _add_certificates(
    found: xr.Dataset, outputs: HeadOutputs, labels: np.ndarray, seed: int
) -> xr.Dataset:
    """The same with `certified`, the bound on the errors of the reader of each head, its share of
    errors and its nats."""
    axes = ("pool", "block", "head")
    certificates = outputs.certify(labels, seed)
    names = {"certified": "bound", "certified_error": "error", "certified_nats": "nats"}
    found = found.assign({name: (axes, certificates[part]) for name, part in names.items()})
    found.certified.attrs["words"] = "share of errors that a reader of the head makes at most"
    return found.assign_attrs(certified_texts=outputs.texts, delta=DELTA)


def probe_labelled(
    model: Model,
    found: Labelled,
    classes: Sequence[str] = (),
    limit: int = 2000,
    seed: int = 0,
    name: str = "your texts",
) -> xr.Dataset:
    """The same by cross-validation on one set of labelled texts.

    Arguments:
        classes, name: the names of the classes and of the texts, which are kept as attributes.
        limit: the number of texts that are used.

    Returns `accuracy` as the mean over folds, with its standard error as `error`; and where there
    are two classes, what `certificates` says of every head.
    """
    found = _shuffle(subsample(found, limit, seed), seed)
    outputs = HeadOutputs(model, len(found.texts))
    pooled = pooled_states(model, found.texts, outputs)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    scored = [
        _accuracies(pooled, found, fit, [test])
        for fit, test in folds.split(found.texts, found.labels)
    ]
    scores = np.stack([accuracy for accuracy, _ in scored])
    words = [float(np.mean([words for _, words in scored]))]
    answer = _make_dataset(model, name, scores.mean(0), words, ["held out"], [len(found.texts)])
    answer["error"] = (AXES, scores.std(0, ddof=1) / np.sqrt(FOLDS))
    chance = float(np.bincount(found.labels).max() / len(found.labels))
    if len(np.unique(found.labels)) == 2:
        answer = _add_certificates(answer, outputs, found.labels, seed)
    return answer.assign_attrs(chance=chance, classes=list(classes))


def _make_dataset(
    model: Model,
    text: str,
    accuracy: np.ndarray,
    words: Sequence[float],
    sets: list[str],
    sizes: list[int],
) -> xr.Dataset:
    reader = "the last token" if model.block.causal else "[CLS]"
    found = xr.Dataset(
        {
            "accuracy": (AXES, accuracy),
            "words": ("set", np.asarray(words)),
            "texts": ("set", sizes),
        },
        {"pool": list(POOLS), "layer": np.arange(model.layers + 1), "set": sets},
        {"model": model.name, "text": text, "reader": reader, "chance": 0.5},
    )
    found.accuracy.attrs["words"] = "share of texts whose class the probe names"
    found["words"].attrs["words"] = "the same for logistic regression on word counts (tf-idf)"
    return found
