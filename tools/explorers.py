"""Write what explorers read, `NAME.json`, and figures of articles that belong to no claim,
`NAME.vl.json`, into the folder `pages` of their maps.

They are stored because they take a minute. Networks that were trained depend on the kind of machine
in their last digits; `letters_digest` says of which code and values they are.
`python -m tools.explorers belief` writes those of one explorer.
"""

import base64
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy import special

from attlas.atlas.explorers import Explorer
from attlas.atlas.notes import notes_of
from attlas.capacity import Capacity, class_of, collapsed_head
from attlas.claims import catalogue
from attlas.claims.digest import function_digest, source_digest
from attlas.figure import Figure
from attlas.latent_posterior import encoders, latent_tasks
from attlas.sparse_variables.embedding import SPECIAL
from attlas.sparse_variables.task import FUNCTIONS

GAP, DELTA = 0.5, 0.05
"""The generalisation gap that the bound must stay below, and the probability that it may not."""


def find_explorer(name: str) -> Explorer:
    notes = notes_of(catalogue().values()).values()
    return next(each for part in notes for each in part.explorers if each.name == name)


def scattered_tokens(count: int, temperature: float, noise: float, seed: int = 3) -> dict[str, Any]:
    r"""Keys on the circle, more of them in front than behind, with values $f(k) + s\,N(0, 1)$ where
    s is the `noise`.

    The truth $f$ is a draw of the Gaussian process whose kernel is that of softmax attention at the
    `temperature` $\tau$, so that CME attention with it and the ridge $s^2$ is the posterior mean:
    $e^{(\cos\delta - 1)/\tau} = \sum_j c_j\cos j\delta$ with $c_0 = e^{-1/\tau}I_0(1/\tau)$ and
    $c_j = 2e^{-1/\tau}I_j(1/\tau)$.
    """
    draws = np.random.default_rng(seed)
    angles = draws.uniform(-np.pi, np.pi, 4 * count)
    keys = angles[draws.uniform(0, 2, len(angles)) < 1 + 0.9 * np.cos(angles)][:count]
    orders = np.arange(30)
    scales = np.sqrt(np.where(orders == 0, 1, 2) * special.ive(orders, 1 / temperature))
    cosines, sines = scales * draws.standard_normal((2, len(orders)))

    def truth(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.cos(np.outer(x, orders)) @ cosines + np.sin(np.outer(x, orders)) @ sines

    values = truth(keys) + noise * draws.standard_normal(len(keys))
    grid = np.linspace(-np.pi, np.pi, 361)
    return {
        "keys": keys.round(5).tolist(),
        "values": values.round(5).tolist(),
        "truth": truth(grid).round(5).tolist(),
        "noise": noise,
        "temperature": temperature,
    }


def sample_tables(
    functions: Sequence[str],
    places: Sequence[int],
    sparsities: Sequence[int],
    sharpnesses: Sequence[float],
) -> dict[str, Any]:
    """Samples that the bound asks for, as logarithms to base 10: from so many on, the bound for all
    heads with the norms of `threshold_head` is below `GAP` with probability 1 - `DELTA`.

    The tables are [function][length][sparsity][sharpness], with None where the head has no margin;
    "norms" is the bound by norms alone, "parameters" the one that also counts parameters.
    """
    length, s = np.array(places)[:, None, None], np.array(sparsities)[:, None]
    c = np.array([c for c in sharpnesses if c > 1])
    needed = np.stack(
        [
            [sum(not FUNCTIONS[name](j, s) for j in range(s)) for s in sparsities]
            for name in functions
        ]
    )
    each, leak = c / (s * c + 1), 1 / (s * c + 1)
    threshold = each * (needed[:, None, :, None] - 1) + (each + leak) / 2
    score = np.sqrt(2 * s) * np.log(c * (length - s))
    value = np.sqrt(2 * (threshold**2 + (1 - threshold) ** 2))
    capacity = class_of(collapsed_head(score, value, length, length + SPECIAL))
    missing = [None] * (len(sharpnesses) - len(c))

    def table(found: Capacity) -> list[Any]:
        logs = found.log_samples_for(GAP, margin=(each - leak) / 2, delta=DELTA) / np.log(10)
        squares = logs.round(2).tolist()
        return [[[missing + row for row in rows] for rows in square] for square in squares]

    tables = {"norms": table(capacity.dimension_free()), "parameters": table(capacity)}
    return {"functions": functions, "places": places, "sharpnesses": sharpnesses, **tables}


# --- networks that were trained on letters --------------------------------------------------------

ATTENTION = ("softmax", "CME")
TRAINED = ("every", "one")
"""On which lengths networks are trained: all up to the longest, or one."""
OF_ENCODER, OF_LAYER = (
    [field.name for field in dataclasses.fields(kind) if field.name not in ("layers", "attention")]
    for kind in (encoders.Encoder, encoders.EncoderLayer)
)
"""Arrays that are stored of an encoder, and of its only layer."""
JUDGED, SEQUENCES = 4_300_000, 4000
"""The seed of sequences that networks are asked about and were not trained on, and how many."""


def draw_letters(
    values: Mapping[str, Any], rng: np.random.Generator, lengths: Int[np.ndarray, " n"]
) -> latent_tasks.Data:
    """Sequences of these lengths, as counts of their letters, and the letter that follows."""
    words = np.array(values["words"])
    z = rng.choice(len(words), len(lengths), p=values["prior"])
    counts = rng.multinomial(lengths, words[z]).astype(np.float32)
    return latent_tasks.Data(counts, rng.multinomial(1, words[z]).argmax(-1), latent=z)


def train_letters(values: Mapping[str, Any], attention: str) -> encoders.Encoder:
    """Encoders [step, run] of one layer after each number of `steps`, run by run as in TRAINED,
    from the same start; they are trained to predict the next letter."""
    runs, size, seed = len(TRAINED), len(values["letters"]), values["seed"]
    rng, pool = np.random.default_rng(seed), values["pool"]
    lengths = (rng.integers(0, values["longest"] + 1, pool), np.full(pool, values["one"]))
    drawn = [draw_letters(values, rng, each) for each in lengths]
    weights, batches = jax.random.split(jax.random.key(seed))
    start = encoders.random_encoder(weights, size, size, width=values["width"], attention=attention)
    found = encoders.train_encoders(
        jax.tree.map(lambda x: jnp.stack([x] * runs), start),
        letter_topics(values, runs),
        jax.random.split(batches, runs),
        encoders.Recipe(max(values["steps"]), values["batch"], values["rate"]),
        data=jax.tree.map(lambda *x: jnp.stack(x), *drawn),
        record_every=int(np.gcd.reduce(values["steps"])),
    )
    kept = np.searchsorted(found.steps, values["steps"])
    return jax.tree.map(lambda x: x[kept], found.path)


def letter_topics(values: Mapping[str, Any], runs: int) -> latent_tasks.Topics:
    prior, words = (np.stack([np.array(values[name])] * runs) for name in ("prior", "words"))
    return latent_tasks.Topics(prior, words, words, np.full(runs, values["longest"]))


def letters_digest(values: Mapping[str, Any]) -> str:
    """What the stored networks depend on: the code that trains them, and the values but for those
    that are only shown."""
    used = {name: each for name, each in values.items() if name not in ("most", "sequence")}
    functions = (draw_letters, train_letters, letter_topics, fit_probe)
    parts = [source_digest(encoders.__name__), *map(function_digest, functions)]
    text = " ".join([*parts, json.dumps(used, sort_keys=True)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fit_probe(values: Mapping[str, Any], encoder: encoders.Encoder) -> Float[np.ndarray, "p m"]:
    """The linear map from the state of an encoder [run], the constant last, to the posterior: least
    squares over sequences of all lengths."""
    rng = np.random.default_rng(values["seed"] + 1)
    seen = draw_letters(values, rng, rng.integers(0, values["longest"] + 1, SEQUENCES))
    state = letter_states(encoder, seen.counts)
    exact = letter_posterior(values, seen.counts)
    return np.linalg.lstsq(np.c_[state, np.ones(len(state))], exact, rcond=None)[0]


def letter_states(
    encoder: encoders.Encoder, counts: Float[Any, "n letters"]
) -> Float[np.ndarray, "n width"]:
    """The state of an encoder [run], the only run, at the masked token."""
    seen = latent_tasks.Data(jnp.asarray(counts)[None], jnp.zeros((1, len(counts)), int))
    return np.asarray(encoders.represent(encoder, seen), float)[0, -1]


def letter_posterior(
    values: Mapping[str, Any], counts: Float[Any, "n letters"]
) -> Float[np.ndarray, "n m"]:
    """The exact law of the topic given the counts of the letters."""
    prior, words = (np.log(np.array(values[name])) for name in ("prior", "words"))
    return special.softmax(prior + np.asarray(counts, float) @ words.T, -1)


def named_arrays(
    encoder: encoders.Encoder, probe: Float[np.ndarray, "p m"]
) -> dict[str, Float[np.ndarray, "..."]]:
    """The arrays of an encoder [run] with one layer and one run, and its probe."""
    (layer,) = encoder.layers
    found = {name: getattr(encoder, name) for name in OF_ENCODER}
    found |= {name: getattr(layer, name) for name in OF_LAYER}
    return {name: np.asarray(x, float)[0] for name, x in found.items()} | {"probe": probe}


def pack(arrays: Mapping[str, Float[np.ndarray, "..."]]) -> dict[str, Any]:
    """Arrays as whole numbers of 16 bits, in base 64, times a scale for each array."""
    scales = [float(f"{max(abs(x).max(), 1e-30) / 32_000:.4g}") for x in arrays.values()]
    pairs = zip(arrays.values(), scales, strict=True)
    whole = np.concatenate([np.rint(x / scale).ravel() for x, scale in pairs]).astype("<i2")
    return {"scales": scales, "data": base64.b64encode(whole.tobytes()).decode()}


def stored_encoder(
    content: Mapping[str, Any], attention: str, trained: str, step: int
) -> tuple[encoders.Encoder, Float[np.ndarray, "p m"]]:
    """What `pack` stored of a network: the encoder [run], as the only run, and its probe."""
    packed, arrays, start = content["networks"][attention][trained][step], {}, 0
    whole = np.frombuffer(base64.b64decode(packed["data"]), "<i2")
    for (name, shape), scale in zip(content["layout"], packed["scales"], strict=True):
        end = start + math.prod(shape)
        arrays[name] = (whole[start:end] * scale).reshape(1, *shape)
        start = end

    def make(given: Mapping[str, Any]) -> encoders.Encoder:
        layer = {name: given[name] for name in OF_LAYER}
        layers = (encoders.EncoderLayer(**layer, attention=attention),)
        return encoders.Encoder(**{name: given[name] for name in OF_ENCODER}, layers=layers)

    probe = arrays.pop("probe")[0]
    return jax.vmap(make)(jax.tree.map(jnp.asarray, arrays)), probe


def beliefs(
    values: Mapping[str, Any], encoder: encoders.Encoder, counts: Float[np.ndarray, "n letters"]
) -> Float[np.ndarray, "n m"]:
    """The mixture of topics that is nearest to what an encoder [run] predicts, made a law."""
    logits = letter_states(encoder, counts) @ np.asarray(encoder.read[0], float)
    found = special.softmax(logits, -1) @ np.linalg.pinv(np.array(values["words"]))
    found = found.clip(0)
    return found / found.sum(-1, keepdims=True)


def trained_letters(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the explorer of beliefs reads: networks [attention][trained][step]."""
    layout: dict[str, Any] = {}
    stored: dict[str, dict[str, list[Any]]] = {each: {} for each in ATTENTION}
    for attention, networks in stored.items():
        path = train_letters(values, attention)
        for run, trained in enumerate(TRAINED):
            networks[trained] = []
            for step in range(len(values["steps"])):
                encoder = jax.tree.map(lambda x: x[step, run, None], path)  # noqa: B023
                arrays = named_arrays(encoder, fit_probe(values, encoder))
                layout = {name: x.shape for name, x in arrays.items()}
                networks[trained].append(pack(arrays))
    return {
        "code": letters_digest(values),
        **{name: values[name] for name in ("letters", "prior", "words", "steps", "longest")},
        "expressed": np.linalg.pinv(np.array(values["words"])).round(8).tolist(),
        "layout": [[name, shape] for name, shape in layout.items()],
        "networks": stored,
    }


def letter_figures(values: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures of the article about the stored networks: beliefs about one sequence letter by
    letter, and mean distances from the posterior over many."""
    one_hot, words = np.eye(len(values["letters"])), np.array(values["words"])
    rng = np.random.default_rng(JUDGED)
    z = rng.choice(len(words), SEQUENCES, p=values["prior"])
    place = rng.uniform(size=(SEQUENCES, values["longest"], 1))
    drawn = (place > words.cumsum(-1)[z][:, None, :-1]).sum(-1)
    shown = [[values["letters"].index(letter) for letter in values["sequence"]]]
    said = {"every": f"0 to {values['longest']} letters", "one": f"{values['one']} letters only"}

    def rows(sequences: Any, attention: str, trained: str, step: int) -> pd.DataFrame:
        counts = one_hot[np.pad(sequences, ((0, 0), (1, 0)))].cumsum(1) - one_hot[0]
        flat = counts.reshape(-1, len(one_hot))
        encoder, _ = stored_encoder(content, attention, trained, step)
        exact, found = letter_posterior(values, flat), beliefs(values, encoder, flat)
        steps = values["steps"][step]
        table = {
            "letters": np.tile(np.arange(counts.shape[1]), len(counts)),
            "after": f"{steps:,}",
            "of": f"{attention}, {said[trained]}",
            "distance": abs(exact - found).sum(-1) / 2,
        }
        for m in range(len(words)):
            table |= {f"exact {m + 1}": exact[:, m], f"network {m + 1}": found[:, m]}
        return pd.DataFrame(table)

    steps = range(len(values["steps"]))
    one = pd.concat([rows(shown, "softmax", "every", step) for step in steps[1:]])
    one = pd.wide_to_long(
        one.assign(id=np.arange(len(one))), ["exact", "network"], "id", "topic", sep=" "
    ).reset_index()
    one = one.assign(
        topic=[f"topic {m}" for m in one["topic"]], after=[f"after {n} steps" for n in one["after"]]
    )
    belief = Figure(
        one.round(4),
        "Belief about the topic, letter by letter",
        "softmax network, read from its predictions; the sequence of the explorer",
        x="letters read",
        y="probability of the topic",
        domain={"y": (0, 1)},
        legend={"topic": None, "series": None},
    )
    names = {"network": "network", "exact": "exact posterior"}
    belief.lines("letters", names, color="topic").facet("after")
    many = [rows(drawn, a, t, step) for a in ATTENTION for t in TRAINED for step in steps]
    means = pd.concat(many).groupby(["of", "after", "letters"], sort=False)["distance"].mean()
    distance = Figure(
        means.round(4).reset_index(),
        "Distance from the exact posterior",
        f"mean total variation over {SEQUENCES:,} sequences; above: attention, lengths of training",
        x="letters read",
        y="distance",
        domain={"y": (0, 0.8)},
        legend={"after": "steps"},
    )
    distance.lines("letters", "distance", color="after").facet("of")
    return {"belief-by-letter": belief, "distance-by-length": distance}


def main(names: Sequence[str]) -> None:
    for name in names or ("estimator", "sparse", "belief"):
        explorer = find_explorer(name)
        values, figures = explorer.values, dict[str, Figure]()
        if name == "estimator":
            content = scattered_tokens(max(values["tokens"]), values["truth"], values["noise"])
        elif name == "sparse":
            content = sample_tables(**values)
        else:
            content = trained_letters(values)
            figures = letter_figures(values, content)
        files = {f"{name}.json": content}
        for figure, drawn in figures.items():
            files[f"{figure}.vl.json"] = drawn.chart().to_dict()
        for file, made in files.items():
            text = json.dumps(made, separators=(",", ":"), allow_nan=False)
            (explorer.folder / file).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
