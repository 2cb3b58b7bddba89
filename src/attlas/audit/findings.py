"""What an audit found, in sentences: computed from its numbers, each beside its references."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from attlas.audit.auditing import Audit, Difference

SHOWN = 3


def sentences(audit: "Audit") -> list[str]:
    """The summary of an audit, one finding a sentence."""
    found = [_model(audit), *_capacity(audit)]
    if "content" in audit.heads:
        found += [
            _shares(audit),
            _location(audit),
            _place(audit),
            _sinks(audit),
            _gates(audit),
            _regression(audit),
            _shuffles(audit),
        ]
    return found + [_probe(audit, i) for i in range(len(audit.probes))]


def _model(audit: "Audit") -> str:
    facts = audit.facts
    shared = (
        ""
        if facts["distinct_layers"] == facts["layers"]
        else f" ({facts['distinct_layers']} distinct)"
    )
    text = facts.get("text")
    read = (
        "No text was read."
        if text is None
        else f"It was read {text['texts']} texts of {text['tokens']} tokens in all."
    )
    return (
        f"{audit.name} is of the architecture {facts['architecture']}: {facts['layers']} layers{shared} of {facts['heads']} heads, dimension"
        f" {facts['dim']}, {facts['parameters'] / 1e6:.1f} million parameters. {read}"
    )


def named(layer: int, head: int) -> str:
    return f"({layer}, {head})"


def largest(values: xr.DataArray, count: int = SHOWN) -> list[tuple[int, int, float]]:
    """The heads with the largest values, as (layer, head, value)."""
    flat = np.nan_to_num(values.values, nan=-np.inf)
    order = np.argsort(flat, axis=None)[::-1][:count]
    return [
        (int(i), int(j), float(flat[i, j]))
        for i, j in zip(*np.unravel_index(order, flat.shape), strict=True)
    ]


def beside(audit: "Audit", name: str, digits: str = ".2g", most: bool = False) -> str:
    """The references' medians of a quantity, or their largest values."""
    kept = []
    for title, reference in audit.references.items():
        if name in reference and np.isfinite(reference[name]).any():
            value = float(reference[name].max() if most else reference[name].median())
            kept.append(f"{title} {value:{digits}}")
    return f" ({', '.join(kept)})" if kept else ""


def _capacity(audit: "Audit") -> list[str]:
    heads, capacity = audit.heads, audit.capacity
    layer, head, value = largest(heads.qk_spectral, 1)[0]
    nats = audit.layers.log10_nats.values
    return [
        f"The largest query-key product is that of head {named(layer, head)}, with a spectral norm of {value:.3g}; the median is"
        f" {float(heads.qk_spectral.median()):.3g}{beside(audit, 'qk_spectral')}.",
        f"By the depth recursion the model is Lipschitz with a constant of at most 10^{capacity['log10_lipschitz']:.1f}, and its class has an"
        f" entropy of at most 10^{capacity['log10_nats']:.0f} nats: no guarantee at any number of samples, but a ledger. Layer {int(nats.argmax())} adds"
        f" most to it, and in a typical head {float(heads.qk_share.median()):.0%} of the bound is the query-key product's{beside(audit, 'qk_share')}.",
    ]


def _shares(audit: "Audit") -> str:
    mean = {
        name: float(audit.heads[name].mean())
        for name in ("sink", "first", "positional", "broad", "content")
    }
    return (
        f"Of all attention {mean['sink']:.0%} lies on sinks ({mean['first']:.0%} on the first token), {mean['positional']:.0%} is a habit of place,"
        f" {mean['broad']:.0%} is spread evenly and {mean['content']:.0%} goes by content."
    )


def _location(audit: "Audit") -> str:
    best = [
        f"{named(layer, head)} with {value:.2f}"
        for layer, head, value in largest(audit.heads.single_location)
    ]
    return (
        f"Heads that pick one token by content, the single-location score: {', '.join(best)}{beside(audit, 'single_location', most=True)};"
        " the references' largest are in brackets."
    )


def _place(audit: "Audit") -> str:
    heads = audit.heads
    where = np.argwhere(heads.kind.values == "positional")
    if not len(where):
        return "No head is mostly positional."
    told = []
    for layer, head in sorted(where, key=lambda at: -float(heads.positional[tuple(at)]))[:SHOWN]:
        one = heads.isel(layer=int(layer), head=int(head))
        told.append(
            f"{named(layer, head)} looks {direction(int(one.best_offset))}, largest weight {float(one.largest):.3f}"
        )
    return f"Mostly positional: {len(where)} of {heads.kind.size} heads; {'; '.join(told)}."


def direction(offset: int) -> str:
    match offset:
        case 0:
            return "at the token itself"
        case -1:
            return "at the previous token"
        case 1:
            return "at the next token"
    return f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}"


def _sinks(audit: "Audit") -> str:
    first = audit.heads["first"]
    per_layer = first.mean("head").values
    count = int((first > 0.5).sum())
    return (
        f"The first token is a sink, with more than half of the attention, for {count} of {first.size} heads; most of all in layer"
        f" {int(per_layer.argmax())}, where it gets {per_layer.max():.0%}."
    )


def _gates(audit: "Audit") -> str:
    heads = audit.heads
    with np.errstate(invalid="ignore"):
        of_line = float((heads.softmax_gate / heads.read_direction).median())
    where = "the last token" if audit.facts["causal"] else "[CLS]"
    return (
        f"Read at {where}, one direction holds {float(heads.read_direction.median()):.0%} of the variance of a typical head's output over texts; of"
        f" that, softmax gating by one direction reproduces {of_line:.0%}. In all, softmax gating explains {float(heads.softmax_gate.median()):.0%} and the"
        f" erf gate of single-location regression {float(heads.erf_gate.median()):.0%}{beside(audit, 'erf_gate')}."
    )


def _regression(audit: "Audit") -> str:
    heads = audit.heads
    layer, head, value = largest(-heads.cme_distance, 1)[0]
    return (
        f"As regression of values on keys: a typical head's output is {float(heads.cme_distance.median()):.2f} from the best ridge regression, where 1 is the"
        f" plain mean of the values{beside(audit, 'cme_distance')}; softmax on the sphere is {float(heads.sphere_distance.median()):.2f} away. The closest is"
        f" head {named(layer, head)}, at {-value:.2f}."
    )


def _shuffles(audit: "Audit") -> str:
    layers = audit.layers
    return (
        f"Shuffling tokens together with their positions changes the last states by {float(layers.together[-1]):.1g} of their size, shuffling them"
        f" without by {float(layers.apart[-1]):.2f}: tokens are exchangeable only as pairs with their positions."
    )


def _probe(audit: "Audit", index: int) -> str:
    """The best layer on the last set, which is the farthest from the sentences that the probe was fitted on."""
    found, drawn = audit.probes[index], audit.reference_probes.get("random", ())
    name, words = str(found["set"].values[-1]), float(found["words"][-1])

    def best(each: xr.Dataset) -> tuple[str, int, float]:
        last = each.accuracy.isel(set=-1)
        pool, layer = np.unravel_index(int(last.values.argmax()), last.shape)
        return (
            ("mean" if pool else str(each.attrs["reader"])),
            int(layer),
            float(last.values[pool, layer]),
        )

    pool, layer, value = best(found)
    beside = (
        f", the same architecture at random {best(drawn[index])[2]:.2f}"
        if len(drawn) > index
        else ""
    )
    return (
        f"A probe of {found.attrs['text']} ({name}) is right in {value:.2f} of the cases at best, on {'the mean over tokens' if pool == 'mean' else pool} of layer"
        f" {layer}; word counts reach {words:.2f}{beside}, chance is {float(found.attrs['chance']):.2f}. The best of {2 * found.sizes['layer']} readings flatters a little."
    )


def compared(difference: "Difference") -> list[str]:
    """What became of a model, one finding a sentence."""
    before, after, heads = difference.before, difference.after, difference.heads
    if not heads.data_vars:
        return [
            f"{before.name} and {after.name} have heads of different numbers: they stand side by side and are not compared."
        ]
    found = []
    for name, words in (
        ("qk_spectral", "spectral norm of the query-key product"),
        ("ov_spectral", "spectral norm of the output-value product"),
    ):
        ratio = (after.heads[name] / before.heads[name]).values
        layer, head, _ = largest(xr.DataArray(abs(np.log(ratio))), 1)[0]
        found.append(
            f"From {before.name} to {after.name} the {words} changed by a factor of {np.median(ratio):.3g} in a typical head, by"
            f" {ratio[layer, head]:.3g} in head {named(layer, head)}."
        )
    if "single_location" in heads:
        layer, head, _ = largest(abs(heads.single_location), 1)[0]
        values = [float(each.heads.single_location[layer, head]) for each in (before, after)]
        moved = int((before.heads.kind.values != after.heads.kind.values).sum())
        found.append(
            f"The single-location score changed most in head {named(layer, head)}, from {values[0]:.2f} to {values[1]:.2f};"
            f" {moved} of {before.heads.kind.size} heads are now of another kind."
        )
    return found
