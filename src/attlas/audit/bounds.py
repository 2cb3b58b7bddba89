"""Bounds on the capacity of heads and of the model beside each other, and what pruning does.

bounds = measure_bounds(norms)        # Dataset over (bound, layer, head, kept); `measure_weights`

Every bound covers the same weights at the same distance through the same recursion (see `heads`);
only the cover of a weight's ball differs, and with it what the bound depends on.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from attlas.audit.heads import SAMPLES, TINY, distance_in, head_class, model_class
from attlas.audit.quantities import BOUNDS
from attlas.capacity import Capacity
from attlas.capacity.blocks import Term
from attlas.capacity.spectra import INDICES, EntriesCapacity, SpectrumCapacity
from attlas.gaussian import Real

GAP, DELTA = 0.5, 0.05
"""A class is certified from the number of samples on at which its margin bound is below `GAP`, with
all but this probability; the margin is the distance of the covers."""
MATRICES = {
    "query_key": "query-key",
    "query": "query",
    "key": "key",
    "output_value": "output-value",
}
"""The matrices of a head whose small singular values are pruned; with rotary positions there is no
one query-key product."""


def measure_bounds(norms: xr.Dataset) -> xr.Dataset:
    """The bounds of `BOUNDS`, with the heads' matrices as they are and pruned.

    Arguments: `norms`, what `measure_weights` returned.

    Returns, in logarithms to base 10,
        head_nats: over (bound, layer, head, kept), of the class of each head.
        model_nats: over (bound, kept), of the class of the model; its position-wise maps are not
            pruned.
        samples: over `bound`, from which on the head with the fewest nats is certified.
        best_head: over (bound, place), the layer and the number of that head.
        largest_term, largest_share: over `bound`, the weight with most of the model's nats, in
            words, and its share of them.
    and `energy` over (matrix, kept): the median share of the squared Frobenius norm that is kept.
    """
    levels = range(norms.sizes["kept"])
    of_heads, of_model = (
        np.stack([[_log10_nats(bound) for bound in find(norms, i).values()] for i in levels], -1)
        for find in (head_classes, model_classes)
    )
    largest = [_largest_term(norms, bound) for bound in model_classes(norms).values()]
    best = [np.unravel_index(nats[..., 0].argmin(), nats.shape[:2]) for nats in of_heads]
    samples = []
    for name, (layer, head) in zip(BOUNDS, best, strict=True):
        bound = head_classes(norms.isel(layer=[layer], head=[head]))[name]
        logs = bound.log_samples_for(GAP, margin=distance_in(bound), delta=DELTA)
        samples.append(float(np.squeeze(logs)) / math.log(10))
    energy = {
        word: norms[f"{name}_energy"].median(("layer", "head")).values
        for name, word in MATRICES.items()
        if f"{name}_energy" in norms
    }
    return xr.Dataset(
        {
            "head_nats": (("bound", "layer", "head", "kept"), of_heads),
            "model_nats": (("bound", "kept"), of_model),
            "samples": ("bound", samples),
            "best_head": (("bound", "place"), np.array(best)),
            "largest_term": ("bound", [name for name, _ in largest]),
            "largest_share": ("bound", [share for _, share in largest]),
            "energy": (("matrix", "kept"), np.stack(list(energy.values()))),
        },
        {"bound": list(BOUNDS), "kept": norms.kept.values, "matrix": list(energy)},
        {"samples": SAMPLES, "length": norms.attrs["length"], "gap": GAP, "delta": DELTA},
    )


def _log10_nats(bound: Capacity) -> Real:
    return bound.log_entropy(distance_in(bound), SAMPLES) / math.log(10)


def _largest_term(norms: xr.Dataset, bound: Capacity) -> tuple[str, float]:
    logs, _ = bound.log_entropies(distance_in(bound), SAMPLES)
    place, heads = int(np.argmax(logs)), norms.sizes["head"]
    words = [word for word in ("up", "down", "gate") if word in norms]
    if isinstance(bound, EntriesCapacity | SpectrumCapacity):
        kinds = [word for name, word in MATRICES.items() if f"{name}_powers" in norms]
        of_heads = norms.sizes["layer"] * heads * len(kinds)
        layer, rest = divmod(place, heads * len(kinds))
        if place >= of_heads:
            layer, rest = divmod(place - of_heads, len(words))
            rest += heads * len(kinds)
    else:
        kinds = ["query-key", "output-value", "output"]
        layer, rest = divmod(place, heads * len(kinds) + len(words))
    head, kind = divmod(rest, len(kinds))
    name = f"the {kinds[kind]} matrix of head {layer, head}"
    if rest >= heads * len(kinds):
        name = f"the {words[rest - heads * len(kinds)]} matrix of the map in layer {layer}"
    return name, float(np.exp(logs[place] - np.logaddexp.reduce(logs)))


def head_classes(norms: xr.Dataset, level: int = 0) -> dict[str, Capacity]:
    """The class of each head [layer, head] by every bound, pruned to the `level` of `kept`."""
    by_points = head_class(_pruned(norms, level))
    plain = head_class(_as_spectral(norms))
    query_key, value = (np.asarray(term.log_size) for term in plain.terms[:2])
    weights = _weights_of_heads(norms, level, query_key, value)
    return _by_every_cover(by_points, weights)


def model_classes(norms: xr.Dataset, level: int = 0) -> dict[str, Capacity]:
    """The class of the model by every bound, its heads pruned to the `level` of `kept`."""
    by_points = model_class(_pruned(norms, level))
    layers, heads = norms.sizes["layer"], norms.sizes["head"]
    terms = np.array([float(term.log_size) for term in model_class(_as_spectral(norms)).terms])
    terms = terms.reshape(layers, -1)
    of_heads = terms[:, : 3 * heads].reshape(layers, heads, 3)
    weights = _weights_of_heads(norms, level, of_heads[..., 0], of_heads[..., 1])
    flat = [weight.at(place) for place in np.ndindex(layers, heads) for weight in weights]
    shape = (norms.attrs["dim"] + 1, float(norms.hidden[0]))
    words = [word for word in ("up", "down", "gate") if word in norms]
    for layer, word in ((i, word) for i in range(layers) for word in words):
        size = terms[layer, 3 * heads + words.index(word)]
        spectral, frobenius, entries = (
            float(norms[name].values[layer])
            for name in (word, f"{word}_frobenius", f"{word}_entries")
        )
        # Of their spectra only the rank and the sum of squares are known.
        powers = np.full(len(INDICES), np.inf)
        powers[0] = math.log(min(shape))
        powers[-1] = 2 * math.log(max(frobenius, TINY) / max(spectral, TINY))
        entry_ratio = math.log(max(entries, TINY) / max(spectral, TINY))
        flat.append(_Weight(word, size, entry_ratio, powers, *shape))
    return _by_every_cover(by_points, flat)


class _Weight(NamedTuple):
    """A weight by how far the output moves over its ball in the operator norm, the logarithm of
    its 1,1 norm over its operator norm, and its `log_powers`."""

    name: str
    log_size: Any
    log_entries: Any
    powers: np.ndarray
    outputs: float
    inputs: float

    def at(self, place: tuple[int, ...]) -> "_Weight":
        measured = {name: getattr(self, name)[place] for name in ("log_size", "log_entries")}
        return self._replace(**measured, powers=self.powers[place])


def _weights_of_heads(
    norms: xr.Dataset, level: int, query_key: np.ndarray, value: np.ndarray
) -> list[_Weight]:
    """The matrices of heads [layer, head] from the sizes of their two products."""
    dim, width = norms.attrs["dim"] + 1, norms.attrs["width"]  # one coordinate is always 1
    shapes = {"query_key": (dim, dim), "output_value": (dim - 1, dim)}
    found = []
    for name, word in MATRICES.items():
        if f"{name}_powers" in norms:
            spectral, entries, powers = (
                norms[f"{name}_{norm}"].values[:, :, level]
                for norm in ("spectral", "entries", "powers")
            )
            size = value if name == "output_value" else query_key
            ratio = np.log(np.maximum(entries, TINY) / np.maximum(spectral, TINY))
            found.append(_Weight(word, size, ratio, powers, *shapes.get(name, (width, dim))))
    return found


def _by_every_cover(by_points: Capacity, weights: list[_Weight]) -> dict[str, Capacity]:
    terms = [Term(w.name, w.log_size, 1, w.outputs, w.inputs) for w in weights]
    by_entries = tuple(term.scaled(w.log_entries) for term, w in zip(terms, weights, strict=True))
    kept = (by_points.log_reach, by_points.constant, by_points.layers)
    powers = np.stack([w.powers for w in weights], -2)
    return dict(
        zip(
            BOUNDS,
            (
                by_points.dimension_free(),
                by_points,
                EntriesCapacity(by_entries, *kept),
                SpectrumCapacity(tuple(terms), *kept, powers),
            ),
            strict=True,
        )
    )


def _pruned(norms: xr.Dataset, level: int) -> xr.Dataset:
    """The same with the 2,1 norms of the heads' matrices as pruning leaves them."""
    if level == 0:
        return norms
    at = {"kept": level}
    if "query_key_rows" in norms:
        columns, rows = (norms[f"query_key_{side}"][at] for side in ("columns", "rows"))
    else:
        columns, rows = (
            norms[f"{one}_rows"][at] * norms[f"{other}_spectral"][at]
            for one, other in (("query", "key"), ("key", "query"))
        )
    value = norms.output_value_columns[at]
    smaller = np.minimum(columns.values, rows.values)
    return norms.assign(qk_bound_21=(rows.dims, smaller), ov_21=(value.dims, value.values))


def _as_spectral(norms: xr.Dataset) -> xr.Dataset:
    """The same with spectral norms for 2,1 norms, so that sizes of terms are those of balls of the
    operator norm."""
    words = {word: f"{word}_21" for word in ("up", "down", "gate") if word in norms}
    words |= {"qk_bound": "qk_bound_21", "ov_spectral": "ov_21"}
    return norms.assign({other: norms[word] for word, other in words.items()})
