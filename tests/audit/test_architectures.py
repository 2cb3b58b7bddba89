"""Every architecture is read into the same arrays; a config that contradicts them is refused."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.checkpoints import Checkpoint, read_checkpoint
from attlas.audit.forward import embed, trace
from attlas.audit.texts import pad_tokens
from tests.audit.conftest import DATA, LAYOUTS, arrays_of, changed, model_of
from tests.audit.fuzz import SEVERAL


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layer_has_the_shapes_that_are_promised(name):
    model = model_of(name)
    for index in range(model.layers):
        weights = model.layer(index)
        assert weights["query"].shape == (model.dim, model.heads, model.width)
        assert (
            weights["key"].shape == weights["value"].shape == (model.dim, model.groups, model.width)
        )
        assert weights["out"].shape == (model.heads, model.width, model.dim)
        assert weights["up"].shape == (model.dim, model.hidden)
        assert weights["down"].shape == (model.hidden, model.dim)
        assert weights["attention_norm"].shape == weights["mlp_norm"].shape == (model.dim,)
        assert all(array.dtype == np.float32 for array in weights.values())
    with pytest.raises(InputError, match=f"layers 0 to {model.layers - 1}"):
        model.layer(model.layers)


def test_albert_repeats_its_distinct_layers():
    model = model_of("albert")
    assert (model.layers, model.shared) == (4, 2)
    assert [model.group(layer) for layer in range(4)] == [0, 0, 1, 1]
    np.testing.assert_array_equal(model.layer(0)["query"], model.layer(1)["query"])
    assert np.any(model.layer(1)["query"] != model.layer(2)["query"])


GGUF_WORDS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_gguf_names_and_neighbouring_pairs_give_the_same_model(tmp_path, kind):
    """A model written as llama.cpp does, with queries and keys reordered, attends as before."""
    import gguf

    source = as_model(changed(kind, {"rope_parameters": {"rope_theta": 5000.0}}))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", kind)
    writer.add_block_count(source.layers)
    writer.add_head_count(source.heads)
    writer.add_head_count_kv(source.groups)
    writer.add_embedding_length(source.dim)
    writer.add_feed_forward_length(source.hidden)
    writer.add_key_length(source.width)
    writer.add_rope_dimension_count(source.width)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(source.block.eps)
    for name, array in arrays_of(source.checkpoint).items():
        base, part = name.removeprefix("model.").rsplit(".", 1)
        place, word = base.split(".", 2)[1:] if base.startswith("layers.") else ("", base)
        if kind == "llama" and word in ("self_attn.q_proj", "self_attn.k_proj"):
            halves = array.reshape(-1, 2, source.width // 2, source.dim)
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(f"{f'blk.{place}.' if place else ''}{GGUF_WORDS[word]}.{part}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target = as_model(tmp_path / "m.gguf")
    assert target.table["name"] == f"{kind.capitalize()} (GGUF)"
    assert not target.unused
    tokens = pad_tokens([[5, 6, 7, 8, 9]])
    for one, two in zip(
        *(trace(model, [embed(model, tokens)]) for model in (source, target)), strict=True
    ):
        np.testing.assert_allclose(two.attention, one.attention, atol=1e-6)
        np.testing.assert_allclose(two.queries, one.queries, atol=1e-5)


def without_type(name):
    checkpoint = changed(name)
    config = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    return Checkpoint(name, config, checkpoint.tensors)


def test_a_model_without_a_type_is_known_by_its_names_if_one_table_can_read_it():
    assert as_model(without_type("gpt2")).table["name"] == "GPT-2"
    assert as_model(without_type("qwen3")).table["name"] == "Qwen3"
    with pytest.raises(InputError, match=r"could be any of 'BERT', .*'RoBERTa': --map NAME"):
        as_model(without_type("bert"))
    assert as_model(without_type("bert"), table="BERT").table["name"] == "BERT"


def test_an_unknown_architecture_is_described():
    with pytest.raises(
        InputError,
        match=r"calls itself 'mamba' and has 39 tensors such as .*known are .*albert, bert.*--map",
    ):
        as_model(changed("bert", {"model_type": "mamba"}))
    with pytest.raises(InputError, match="has 0 tensors; known"):
        as_model(Checkpoint("nothing", {}, {}))


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("bert", {"num_attention_heads": 3}, "3 heads"),
        ("bert", {"num_attention_heads": None}, "does not say the number of heads"),
        ("bert", {"num_attention_heads": "4"}, "whole number"),
        ("bert", {"num_attention_heads": 0}, "at least 1"),
        ("bert", {"num_attention_heads": 10**30}, "heads"),
        (
            "bert",
            {"hidden_size": 32},
            r"has the shape \(16, 16\): by the config it should be \(32, 32\)",
        ),
        ("bert", {"intermediate_size": 7}, "shape"),
        ("bert", {"num_hidden_layers": 3}, "lacks query of layer 2"),
        ("albert", {"num_hidden_layers": 10**12}, "layers"),
        ("albert", {"num_hidden_groups": 9}, "groups"),
        ("albert", {"inner_group_num": 2}, "inner_group_num = 2"),
        ("bert", {"vocab_size": 60}, "shape"),
        ("bert", {"max_position_embeddings": 10}, "20 learned positions"),
        ("bert", {"hidden_act": "softplus"}, "activation"),
        ("bert", {"hidden_act": ["gelu"]}, "activation"),
        ("bert", {"layer_norm_eps": 0}, "eps"),
        ("bert", {"layer_norm_eps": "small"}, "eps"),
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("llama", {"num_key_value_heads": 3}, "groups"),
        # Nothing of a size that the config alone states is built.
        ("llama", {"head_dim": 10**12}, "shape"),
        ("mistral", {"head_dim": 10**9}, "shape"),
        ("t5", {"relative_attention_num_buckets": 10**12}, "shape"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "read with 32"),
        ("deberta", {"position_buckets": 10**12}, "shape"),
        ("mixtral", {"num_local_experts": 10**12}, "lacks|shape"),
        # Fields that change the forward pass are read or refused.
        ("bert", {"attention_multiplier": 3.0}, "attention_multiplier = 3.0 .* does not know it"),
        ("llama", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"attention_bias": True}, "lacks the bias of out"),
        ("gemma2", {"layer_types": ["sliding_attention"]}, "each of the 2 layers"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 2}, "'chunked_attention'"),
        ("qwen3", {"layer_types": ["linear_attention"] * 2}, "'linear_attention'"),
        ("mistral", {"sliding_window": 0}, "window"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm = True"),
        ("deberta", {"pos_att_type": ["p2p"]}, "c2p, p2c"),
        ("deberta", {"share_att_key": False}, "lacks position_query"),
        ("deberta", {"position_biased_input": True}, "lacks positions"),
        ("deberta", {"conv_kernel_size": 3}, "conv_kernel_size"),
        ("t5", {"is_gated_act": False}, "has gate"),
        ("dinov2", {"use_swiglu_ffn": True}, "use_swiglu_ffn"),
        ("falcon", {"parallel_attn": False}, "parallel_attn = False"),
        ("mixtral", {"num_experts_per_tok": 5}, "5 of 4 experts"),
        ("smollm3", {"no_rope_layers": [1]}, "each of the 2 layers"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(name, config, words):
    start = time.process_time()
    with pytest.raises(InputError, match=words):
        as_model(changed(name, config))
    assert time.process_time() - start < 5


def test_tensors_that_are_missing_or_no_real_numbers_are_named():
    with pytest.raises(InputError, match="lacks its token embedding"):
        as_model(changed("bert", **{"embeddings.word_embeddings.weight": None}))
    with pytest.raises(InputError, match=r"lacks embeddings.LayerNorm"):
        as_model(changed("bert", **{"embeddings.LayerNorm.weight": None}))
    with pytest.raises(InputError, match="int8: weights must be real"):
        as_model(
            changed("bert", **{"encoder.layer.1.output.dense.weight": np.ones((16, 24), np.int8)})
        )
    with pytest.raises(
        InputError, match=r"encoder.layer.1.output.dense.bias of bert has the shape \(15,\)"
    ):
        as_model(changed("bert", **{"encoder.layer.1.output.dense.bias": np.ones(15)}))


def test_a_part_is_chosen_by_the_name_of_its_table():
    encoder, decoder = as_model(DATA / "t5"), as_model(DATA / "t5", table="T5 decoder")
    assert encoder.table["name"] == "T5 encoder" and decoder.encoder.table == encoder.table
    assert as_model(DATA / "clip").table["name"] == "CLIP text"
    assert as_model(DATA / "clip", table="CLIP vision").vocabulary is None


def test_random_weights_have_the_same_architecture():
    model = model_of("gpt2")
    one, again, other = model.reinitialised(1), model.reinitialised(1), model.reinitialised(2)
    for word, array in model.layer(1).items():
        drawn = one.layer(1)[word]
        assert drawn.shape == array.shape
        np.testing.assert_array_equal(drawn, again.layer(1)[word])
        if word.endswith("bias"):
            assert not drawn.any()
        elif word.endswith("norm"):
            assert (drawn == 1).all()
        else:
            assert np.any(drawn != other.layer(1)[word])
            assert drawn.std() == pytest.approx(0.02, rel=0.15)


def test_random_rows_do_not_depend_on_which_are_asked_for():
    model = as_model(
        read_checkpoint({"wte.weight": np.zeros((3000, 4))} | _little_gpt(), config=_GPT)
    ).reinitialised(5)
    table = model.tensor("embedding", "tokens")
    np.testing.assert_array_equal(
        table.rows([2999, 0, 1024, 1023]), table.load()[[2999, 0, 1024, 1023]]
    )
    np.testing.assert_array_equal(table.fetch(1000, 2100), table.load()[1000:2100])
    assert table.fetch(3, 4).base is None  # else a row would keep the thousand others


_GPT = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 4}


def _little_gpt():
    shapes = {
        "wpe": (8, 4),
        "h.0.ln_1": (4,),
        "h.0.attn.c_attn": (4, 12),
        "h.0.attn.c_proj": (4, 4),
        "h.0.ln_2": (4,),
        "h.0.mlp.c_fc": (4, 16),
        "h.0.mlp.c_proj": (16, 4),
        "ln_f": (4,),
    }
    return {f"{name}.weight": np.ones(shape) for name, shape in shapes.items()}


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.mark.parametrize("name", ["albert", "llama"])
def test_fuzzed_configs_are_refused_or_give_a_model(name):
    checkpoint = read_checkpoint(DATA / name)

    @SEVERAL
    @given(st.sampled_from(sorted(checkpoint.config)), VALUES)
    def check(key, new):
        try:
            model = as_model(
                Checkpoint("fuzzed", {**checkpoint.config, key: new}, checkpoint.tensors)
            )
        except InputError:
            return
        model.layer(model.layers - 1)

    check()
