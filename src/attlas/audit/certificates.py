r"""A certificate for one head on one task: how often its linear reader errs on new texts.

The head is frozen: it was trained on other texts. What is learnt on the task is a direction w of
its pooled output, and `margin_certificate` bounds how often a reader drawn around it errs, from the
texts that it was fitted on. A fifth of the texts, without their labels, sets the coordinates: means
and deviations, and one more that is always 1. The bound is for the other texts of the population,
with classes as frequent as in the sample, and pays for the choice of head and pooling.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from attlas.audit.architectures import Model
from attlas.audit.behaviour import reader_positions
from attlas.audit.forward import Step
from attlas.capacity.pac_bayes import Certificate, margin_certificate

TEXTS = 600
"""At most so many texts are used: the outputs of all heads on them are in memory."""
PENALTIES = (0.1, 1.0)
"""Ridges of the reader, over the mean square of a coordinate. The one with the smaller bound
counts, which costs nothing: a certificate holds for every direction at once."""
DELTA = 0.05


class HeadOutputs:
    """The outputs of all heads on the first `TEXTS` texts, pooled: given to `pooled_states`, which
    calls it with every step of the forward pass."""

    def __init__(self, model: Model, texts: int) -> None:
        self.model, self.texts = model, min(texts, TEXTS)
        self.layers: list[list[np.ndarray]] = []

    def __call__(self, step: Step, mask: np.ndarray) -> None:
        if step.batch == 0:
            self.layers.append([])
        if len(self.layers) <= self.model.layers:  # of the first pass
            missing = self.texts - sum(part.shape[2] for part in self.layers[-1])
            outputs = np.asarray(step.outputs)[:missing]
            if len(outputs):
                self.layers[-1].append(pool_outputs(self.model, outputs, mask[:missing]))

    def certify(self, labels: np.ndarray, seed: int = 0) -> dict[str, Any]:
        """The certificates of `certify_heads` over (pool, layer, head), from the labels 0 and 1 of
        the texts."""
        choices = 2 * self.model.layers * self.model.heads
        found = [
            certify_heads(np.concatenate(parts, 2), labels[: self.texts], choices, seed)
            for parts in self.layers[: self.model.layers]
        ]
        return {
            name: np.stack([getattr(each, name) for each in found], 1)
            for name in Certificate._fields
        }


def pool_outputs(
    model: Model, outputs: Float[np.ndarray, "b h n r"], mask: np.ndarray
) -> Float[np.ndarray, "pool h b r"]:
    """The output of each head at the reader, and its mean over tokens."""
    at_reader = outputs[np.arange(len(mask)), :, reader_positions(model, mask)]
    mean = np.einsum("bn,bhnr->bhr", mask / mask.sum(1, keepdims=True), outputs)
    return np.stack([at_reader, mean]).swapaxes(1, 2).astype(np.float32)


def certify_heads(
    outputs: Float[np.ndarray, "*s n r"], labels: np.ndarray, choices: int, seed: int = 0
) -> Certificate:
    """A certificate for a linear reader of each set of outputs.

    Arguments:
        outputs: [..., n, r]. `labels`: 0 or 1 of each of the n texts, which are in random order.
        choices: the number of sets that one is chosen from.
        seed: chooses the fifth of the texts that sets the coordinates.
    """
    order = np.random.default_rng(seed).permutation(outputs.shape[-2])
    first, rest = np.split(order, [len(order) // 5])
    scale = outputs[..., first, :].astype(float)
    mean, deviation = scale.mean(-2, keepdims=True), scale.std(-2, keepdims=True)
    x = (outputs[..., rest, :] - mean) / np.where(deviation > 0, deviation, 1)
    x = np.concatenate([x, np.ones((*x.shape[:-1], 1))], -1)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    y = 2.0 * labels[rest] - 1
    gram = np.swapaxes(x, -1, -2) @ x / len(y)
    target = np.einsum("...ni,n->...i", x, y)[..., None] / len(y)
    typical = np.trace(gram, axis1=-2, axis2=-1)[..., None, None] / gram.shape[-1]
    found = []
    for penalty in PENALTIES:
        w = np.linalg.solve(gram + penalty * typical * np.eye(gram.shape[-1]), target)
        w /= np.maximum(np.linalg.norm(w, axis=-2, keepdims=True), 1e-300)
        found.append(margin_certificate(y * (x @ w)[..., 0], choices=choices, delta=DELTA))
    best = np.argmin([each.bound for each in found], 0)[None]
    picked = (np.take_along_axis(np.stack(x), best, 0)[0] for x in zip(*found, strict=True))
    return Certificate(*picked)
