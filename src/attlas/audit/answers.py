"""What each theory says of a model, before all numbers: one answer a map.

for answer in find_answers(audit):
    print(answer.theory, answer.word, answer.because)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attlas.audit.behaviour import SPECIAL
from attlas.audit.findings import beside, best_certificate, largest_heads, smallest_bound
from attlas.audit.quantities import BOUNDS

if TYPE_CHECKING:
    from attlas.audit.auditing import Audit

APPLIES, NEARLY = 0.8, 0.4
"""Single-location scores from which on a head is the theory's, and nearly."""
SAME, ALIKE = 1e-3, 0.05
"""Relative changes of the states below which a shuffle changed nothing but rounding, and little."""


@dataclass(frozen=True)
class Answer:
    """What one theory says of a model.

    - `word`: whether it applies. `because`: by which measured quantity, on which scale.
    - `details`: what it comes to, in sentences.
    - `map`, `claims`, `explorer`: where to read on.
    """

    theory: str
    map: str
    word: str
    because: str
    details: Sequence[str]
    claims: Sequence[str]
    explorer: str

    def __str__(self) -> str:
        return " ".join((f"{self.theory}: {self.word}.", self.because, *self.details))


def find_answers(audit: "Audit") -> list[Answer]:
    """The answers of the three maps."""
    return [_single_location(audit), _sparse_variables(audit), _latent_posterior(audit)]


def _single_location(audit: "Audit") -> Answer:
    word, because, details = "not measured", "It needs a text.", []
    if "single_location" in audit.heads:
        best = largest_heads(audit.heads.single_location, 3)
        place, score = best[0]
        word = (
            "applies to some heads"
            if score >= APPLIES
            else "nearly applies"
            if score >= NEARLY
            else "does not apply"
        )
        because = (
            f"The single-location score is {score:.2f} in the best head, {place}; the theory's head"
            f" has 1, and a head counts as one from {APPLIES:g} on, as nearly one from {NEARLY:g}"
            f" on{beside(audit, 'single_location', largest=True)}; the references' largest are in"
            " brackets."
        )
        if len(best) > 1:
            others = ", ".join(f"{other} with {value:.2f}" for other, value in best[1:])
            details.append(f"Next are {others}.")
        if (example := _example(audit, place)) is not None:
            details.append(example)
        gate = float(audit.heads.softmax_gate[place])
        if np.isfinite(gate):
            details.append(
                "Softmax gating by one direction and reading by one direction together reproduce"
                f" {gate:.0%} of the variance of this head's output over texts."
            )
    return Answer(
        "Single-location regression",
        "single-location",
        word,
        because,
        tuple(details),
        ("single-location/softmax-is-bayes", "single-location/closed-form-risk"),
        "portrait",
    )


def _example(audit: "Audit", place: tuple[int, int]) -> str | None:
    """The strongest look of a head at a word of the example, in words."""
    if audit.example is None:
        return None
    pieces = audit.example.pieces
    weights = np.asarray(audit.example.attention[place], float).copy()
    for i, piece in enumerate(pieces):
        if i == 0 or piece in SPECIAL or not any(letter.isalnum() for letter in piece):
            weights[:, i] = -1  # a sink is no location
    np.fill_diagonal(weights, -1)
    query, key = np.unravel_index(weights.argmax(), weights.shape)
    if weights[query, key] <= 0:
        return None
    asks, seen = (pieces[i].lstrip("Ġ▁") for i in (query, key))
    return f"For example, {asks!r} looks at {seen!r} with a weight of {weights[query, key]:.2f}."


def _sparse_variables(audit: "Audit") -> Answer:
    bounds = audit.bounds
    name = smallest_bound(audit)
    best = bounds.sel(bound=name)
    factor = float(best.samples) - np.log10(bounds.attrs["samples"])
    layer, head = best.best_head.values.tolist()
    word = (
        f"vacuous by a factor of 10^{factor:.1f} for its smallest head"
        if factor > 0
        else "says something of its smallest head"
    )
    because = (
        f"The smallest of {len(BOUNDS)} bounds is the one {BOUNDS[name]['name']}"
        f" ({BOUNDS[name]['source']}): 10^{float(best.model_nats[0]):.1f} nats for the model and"
        f" 10^{float(best.head_nats[layer, head, 0]):.1f} for its smallest head, {layer, head}, of"
        f" which it says nothing below 10^{float(best.samples):.1f} samples;"
        f" {bounds.attrs['samples']:,} are assumed."
    )
    details = [
        f"Its largest term is {best.largest_term.item()}, with {best.largest_share.item():.0%} of"
        " the nats."
    ]
    for found in audit.probes:
        certified = best_certificate(found)
        if certified is not None and certified[2] < 1 - found.attrs["chance"]:
            details.append(
                f"With heads as they are and only a linear reader learnt, a reader drawn at random"
                f" around the one of head {certified[0]} at {certified[1]} errs on at most"
                f" {certified[2]:.0%} of texts like {found.attrs['text']}, and the reader itself on"
                f" at most {min(1.0, 2 * certified[2]):.0%}, with 95% confidence, if the model was"
                " not trained on these texts."
            )
    return Answer(
        "Sparse variables",
        "sparse-variables",
        word,
        because,
        tuple(details),
        ("sparse-variables/complexity-bound", "sparse-variables/learned-certificate"),
        "sparse",
    )


def _latent_posterior(audit: "Audit") -> Answer:
    word, because, details = "not measured", "It needs a text.", []
    if "apart" in audit.layers:
        together, apart = (float(audit.layers[name][-1]) for name in ("together", "apart"))
        word = (
            "tokens are exchangeable to the network"
            if max(apart, together) <= ALIKE
            else "exchangeable to the network only as pairs of token and position"
            if together <= SAME
            else "not exchangeable to the network"
        )
        because = (
            f"Shuffling tokens with their positions changes the last states by {together:.1g} of"
            f" their size, shuffling them without by {apart:.2f}; for a network that reads a set of"
            " tokens, as the theory's data are, both are 0."
        )
        place, value = largest_heads(-audit.heads.cme_distance, 1)[0]
        details.append(
            "The output of a typical head is"
            f" {float(audit.heads.cme_distance.median()):.2f} away from ridge regression of values"
            f" on keys, and that of the closest, {place}, {-value:.2f}; the theory's head has 0,"
            f" the plain mean of the values 1{beside(audit, 'cme_distance')}."
        )
    return Answer(
        "Latent posterior",
        "latent-posterior",
        word,
        because,
        tuple(details),
        ("latent-posterior/pairs-exchange", "latent-posterior/softmax-cme-difference"),
        "estimator",
    )
