"""What a checkpoint holds beyond its table, or lacks, is named; nothing is silently left out."""

import numpy as np
import pytest

from attlas import InputError
from attlas.audit.architectures import as_model
from tests.audit.conftest import changed


def test_a_tensor_of_a_layer_that_is_not_used_is_named():
    name = "encoder.layer.1.crossattention.self.query.weight"
    with pytest.raises(InputError, match=f"{name}, which the table 'BERT' does not use"):
        as_model(changed("bert", **{name: np.ones((16, 16))}))
    with pytest.raises(InputError, match=r"encoder\.layer\.1"):  # a layer beyond the config's
        as_model(changed("bert", {"num_hidden_layers": 1}))
    with pytest.raises(InputError, match=r"embeddings\.more"):
        as_model(changed("bert", **{"embeddings.more": np.ones(3)}))
    model = as_model(changed("bert", **{"cls.predictions.bias": np.ones(61)}))
    assert "cls.predictions.bias" in model.unused
    ignoring = {"name": "mine", "extends": "BERT", "ignore": {"*.crossattention.*": "for a test"}}
    as_model(changed("bert", **{name: np.ones((16, 16))}), table=ignoring)


def test_what_one_layer_has_all_have():
    with pytest.raises(InputError, match="the bias of query in some layers and not in others"):
        as_model(changed("bert", **{"encoder.layer.0.attention.self.query.bias": None}))


def test_empty_tensors_are_refused():
    empty = {"embeddings.token_type_embeddings.weight": np.ones((0, 16))}
    with pytest.raises(InputError, match="it is empty"):
        as_model(changed("bert", **empty))


def test_names_in_messages_are_escaped_and_cut():
    name = "encoder.layer.0.\x1b[2J" + "x" * 5000
    with pytest.raises(InputError) as refused:
        as_model(changed("bert", **{name: np.ones(1)}))
    assert "\x1b" not in str(refused.value) and len(str(refused.value)) < 400
