"""The findings of an audit in sentences, each number beside those of the references."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attlas.audit.quantities import BOUNDS

if TYPE_CHECKING:
    from attlas.audit.auditing import Audit, Difference

SHOWN = 3
"""How many heads a sentence names."""
NORMS = ("qk_spectral", "qk_frobenius", "ov_spectral", "ov_frobenius")
"""Quantities of a head that are above 0 and finite."""


def summarise(audit: "Audit") -> list[str]:
    """The summary of an audit, one finding a sentence."""
    found = [_model(audit), *_defects(audit), *_capacity(audit)]
    if "content" in audit.heads:
        from_text = (_shares, _location, _position, _sinks, _gates, _regression, _shuffling)
        found += [sentence(audit) for sentence in from_text]
    for i in range(len(audit.probes)):
        found += [_probe(audit, i), *_certificate(audit, i)]
    return found


def largest_heads(values: xr.DataArray, count: int) -> list[tuple[tuple[int, int], float]]:
    """The heads with the largest values, as ((layer, head), value); NaN and infinity come last."""
    flat = np.where(np.isfinite(values.values), values.values, -np.inf)
    order = np.argsort(flat, axis=None)[::-1][:count]
    places = zip(*np.unravel_index(order, flat.shape), strict=True)
    return [((int(i), int(j)), float(flat[i, j])) for i, j in places]


def beside(audit: "Audit", name: str, largest: bool = False) -> str:
    """The references' medians of a quantity in brackets, or their largest values."""
    kept = []
    for title, reference in audit.references.items():
        if name in reference and np.isfinite(reference[name]).any():
            value = float(reference[name].max() if largest else reference[name].median())
            kept.append(f"{title} {value:.2g}")
    return f" ({', '.join(kept)})" if kept else ""


def _model(audit: "Audit") -> str:
    facts, text = audit.facts, audit.facts.get("text")
    all_distinct = facts["distinct_layers"] == facts["layers"]
    shared = "" if all_distinct else f" ({facts['distinct_layers']} distinct)"
    read = "No text was read."
    if text is not None:
        read = f"It was run on {text['texts']} texts with {text['tokens']} tokens in all."
    return (
        f"{audit.name} is of the architecture {facts['architecture']}: {facts['layers']}"
        f" layers{shared} of {facts['heads']} heads, dimension {facts['dim']},"
        f" {facts['parameters'] / 1e6:.1f} million parameters. {read}"
    )


def _defects(audit: "Audit") -> list[str]:
    """Numbers that no trained head has, said as what they are: a defect of the reading."""
    found = []
    for name in NORMS:
        values = audit.heads[name].values
        wrong = np.argwhere(~(np.isfinite(values) & (values > 0)))
        if len(wrong):
            places = ", ".join(str(tuple(map(int, place))) for place in wrong[:SHOWN])
            value = values[tuple(wrong[0])]
            found.append(
                f"A defect, of the file or of its reading: {name} is {value:g} in {len(wrong)} of"
                f" {values.size} heads, such as {places}. The other numbers of these"
                " heads cannot be trusted."
            )
    return found


def _capacity(audit: "Audit") -> list[str]:
    heads, capacity = audit.heads, audit.capacity
    place, value = largest_heads(heads.qk_spectral, 1)[0]
    nats = audit.layers.log10_nats.values
    name = smallest_bound(audit)
    best, columns = (audit.bounds.sel(bound=each) for each in (name, "columns"))
    typical = [float(each.head_nats[..., 0].median()) for each in (best, columns)]
    pruned = 10 ** float((best.head_nats.sel(kept=0.5) - best.head_nats[..., 0]).median())
    return [
        f"The largest query-key product is that of head {place}, with a spectral"
        f" norm of {value:.3g}; the median is {heads.qk_spectral.median():.3g}"
        f"{beside(audit, 'qk_spectral')}.",
        "By the depth recursion the model is Lipschitz with a constant of at most"
        f" 10^{capacity['log10_lipschitz']:.1f}, and its class has an entropy of at most"
        f" 10^{capacity['log10_nats']:.0f} nats: this bound guarantees nothing for fewer"
        f" samples than nats. Layer {int(nats.argmax())} adds most to it, and in a typical head"
        f" {heads.qk_share.median():.0%} of the bound is the query-key product's"
        f"{beside(audit, 'qk_share')}.",
        f"Of {len(BOUNDS)} bounds the smallest is the one {BOUNDS[name]['name']}:"
        f" 10^{typical[0]:.1f} nats for a typical head, where the one by columns gives"
        f" 10^{typical[1]:.1f}, and 10^{best.model_nats[0]:.1f} for the model. Without the smaller"
        f" half of its singular values a typical head has {pruned:.2f} times the nats.",
    ]


def smallest_bound(audit: "Audit") -> str:
    """The name of the bound that gives a typical head the fewest nats."""
    nats = audit.bounds.head_nats[..., 0].median(("layer", "head")).values
    return str(audit.bounds.bound.values[int(nats.argmin())])


def best_certificate(found: xr.Dataset) -> tuple[tuple[int, int], str, float, float] | None:
    """The head whose reader is certified to err least: its place, where it is read, the bound and
    its share of errors on the sample; None where nothing was certified."""
    if "certified" not in found:
        return None
    bound = found.certified.values
    pool, layer, head = (int(i) for i in np.unravel_index(bound.argmin(), bound.shape))
    read = "the mean over tokens" if pool else str(found.attrs["reader"])
    error = float(found.certified_error[pool, layer, head])
    return (layer, head), read, float(bound.min()), error


def _certificate(audit: "Audit", index: int) -> list[str]:
    found = audit.probes[index]
    best = best_certificate(found)
    if best is None:
        return []
    place, read, bound, error = best
    random = audit.reference_probes.get("random", ())
    beside = best_certificate(random[index]) if len(random) > index else None
    compared = "" if beside is None else f"; the best of the random model has {beside[2]:.2f}"
    said = (
        f"errs on at most {min(1.0, 2 * bound):.0%} of new texts of the kind, and one drawn at"
        f" random around it on at most {bound:.0%}, if the model was not trained on these texts"
        if bound < 1 - found.attrs["chance"]
        else f"has no certificate: the bound, {bound:.0%}, is no better than guessing"
    )
    return [
        f"With the heads as they are, a linear reader of head {place} at {read} {said}, with 95%"
        f" confidence, from {found.attrs['certified_texts']} texts ({found.attrs['text']}), on"
        f" which it errs on {error:.0%}{compared}."
    ]


def _shares(audit: "Audit") -> str:
    mean = audit.heads[["sink", "first", "positional", "broad", "content"]].mean()
    return (
        f"Of all attention {mean.sink:.0%} lies on sinks ({mean['first']:.0%} on the"
        f" first token), {mean.positional:.0%} is explained by position,"
        f" {mean.broad:.0%} is spread evenly and {mean.content:.0%} depends on content."
    )


def _location(audit: "Audit") -> str:
    heads = largest_heads(audit.heads.single_location, SHOWN)
    best = [f"{place} with {value:.2f}" for place, value in heads]
    return (
        f"Heads that pick one token by content, the single-location score: {', '.join(best)}"
        f"{beside(audit, 'single_location', largest=True)}; the references' largest are in"
        " brackets."
    )


def _position(audit: "Audit") -> str:
    heads = audit.heads
    positional = heads.positional.where(heads.kind == "positional")
    count = int(positional.notnull().sum())
    if not count:
        return "No head is mostly positional."
    described = [
        f"{place} looks {direction(int(heads.best_offset[place]))}, largest weight"
        f" {heads.largest[place]:.3f}"
        for place, _ in largest_heads(positional, min(SHOWN, count))
    ]
    return f"Mostly positional: {count} of {heads.kind.size} heads; {'; '.join(described)}."


def direction(offset: int) -> str:
    """An offset from a query to a key, in words."""
    near = {0: "at the token itself", -1: "at the previous token", 1: "at the next token"}
    return near.get(offset, f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}")


def _sinks(audit: "Audit") -> str:
    first = audit.heads["first"]
    per_layer = first.mean("head").values
    return (
        "The first token is a sink, with more than half of the attention, for"
        f" {int((first > 0.5).sum())} of {first.size} heads; most of all in layer"
        f" {int(per_layer.argmax())}, where it gets {per_layer.max():.0%}."
    )


def _gates(audit: "Audit") -> str:
    heads = audit.heads
    if not np.isfinite(heads.softmax_gate).any():
        return "What gates explain was not measured: it takes four or more different texts."
    with np.errstate(invalid="ignore"):
        along = float((heads.softmax_gate / heads.read_direction).median())
    return (
        f"Read at {audit.facts['reader']}, one direction holds"
        f" {heads.read_direction.median():.0%} of the variance of a typical head's output over"
        f" texts; of that, softmax gating by one direction reproduces {along:.0%}. In all, softmax"
        f" gating explains {heads.softmax_gate.median():.0%} and the erf gate of single-location"
        f" regression {heads.erf_gate.median():.0%}{beside(audit, 'erf_gate')}."
    )


def _regression(audit: "Audit") -> str:
    heads = audit.heads
    place, value = largest_heads(-heads.cme_distance, 1)[0]
    return (
        "As regression of values on keys: a typical head's output is"
        f" {heads.cme_distance.median():.2f} from the best ridge regression, where 1 is the"
        f" plain mean of the values{beside(audit, 'cme_distance')}; softmax on the sphere is"
        f" {heads.sphere_distance.median():.2f} away. The closest is head"
        f" {place}, at {-value:.2f}."
    )


def _shuffling(audit: "Audit") -> str:
    layers = audit.layers
    return (
        "Shuffling tokens together with their positions changes the last states by"
        f" {layers.together[-1]:.1g} of their size, shuffling them without by"
        f" {layers.apart[-1]:.2f}."
    )


def _probe(audit: "Audit", index: int) -> str:
    """The best layer on the last set, which differs most from what the probe was fitted on."""
    found, random = audit.probes[index], audit.reference_probes.get("random", ())
    last = found.accuracy.isel(set=-1)
    pool, layer = np.unravel_index(int(last.values.argmax()), last.shape)
    beside = ""
    if len(random) > index:
        best = float(random[index].accuracy.isel(set=-1).max())
        beside = f", the same architecture at random {best:.2f}"
    return (
        f"A probe of {found.attrs['text']} ({found['set'].values[-1]}) is right in"
        f" {last[pool, layer]:.2f} of the cases at best, on"
        f" {'the mean over tokens' if pool else found.attrs['reader']} of layer {layer}; word"
        f" counts reach {found['words'][-1]:.2f}{beside}, chance is"
        f" {found.attrs['chance']:.2f}. Choosing the"
        f" best of {2 * found.sizes['layer']} readings biases the first share upwards."
    )


def summarise_difference(difference: "Difference") -> list[str]:
    """What changed from one checkpoint to the other, one finding a sentence."""
    before, after, heads = difference.before, difference.after, difference.heads
    if not heads.data_vars:
        return [
            f"{before.name} and {after.name} are of different architectures or sizes: they stand"
            " side by side and are not compared."
        ]
    found = []
    for name, product in (("qk_spectral", "query-key"), ("ov_spectral", "output-value")):
        ratio = (after.heads[name] / before.heads[name]).values
        place, _ = largest_heads(xr.DataArray(abs(np.log(ratio))), 1)[0]
        found.append(
            f"From {before.name} to {after.name} the spectral norm of the {product} product changed"
            f" by a factor of {np.median(ratio):.3g} in a typical head, by"
            f" {ratio[place]:.3g} in head {place}."
        )
    if "single_location" in heads:
        place, _ = largest_heads(abs(heads.single_location), 1)[0]
        values = [float(each.heads.single_location[place]) for each in (before, after)]
        moved = int((before.heads.kind.values != after.heads.kind.values).sum())
        found.append(
            f"The single-location score changed most in head {place}, from"
            f" {values[0]:.2f} to {values[1]:.2f}; {moved} of {before.heads.kind.size} heads are"
            " now of another kind."
        )
    return found
