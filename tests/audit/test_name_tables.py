"""A table of a user's own is read, and one with a mistake is refused."""

import json

import numpy as np
import pytest

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.checkpoints import read_checkpoint
from attlas.audit.name_tables import complete_table, known_tables, read_table
from tests.audit.conftest import DATA, arrays_of, changed

MAP = """
name = "mine"
extends = "BERT"
prefixes = ["my."]

[config]
heads = 4

[layer]
query = "block{layer}.q"
"""


def renamed(name):
    return (
        "my." + name.replace("encoder.layer.", "block").replace(".attention.self.query", ".q")
        if ".query" in name
        else "my." + name
    )


def test_a_table_of_ones_own_is_read(tmp_path):
    source = read_checkpoint(DATA / "bert")
    arrays = {renamed(name): array for name, array in arrays_of(source).items()}
    config = {
        key: value for key, value in source.config.items() if key != "num_attention_heads"
    } | {"model_type": "own"}
    checkpoint = read_checkpoint(arrays, config=config)
    (tmp_path / "map.toml").write_text(MAP)
    (tmp_path / "map.json").write_text(
        json.dumps(
            {
                "name": "mine",
                "extends": "BERT",
                "prefixes": ["my."],
                "config": {"heads": 4},
                "layer": {"query": "block{layer}.q"},
            }
        )
    )
    with pytest.raises(InputError, match="--map"):
        as_model(checkpoint)
    for file in ("map.toml", "map.json"):
        model = as_model(checkpoint, table=tmp_path / file)
        np.testing.assert_array_equal(model.layer(1)["query"], as_model(source).layer(1)["query"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extends": "BRET"}, "known are"),
        ({"extends": ["BERT"]}, "known are"),
        ({"layer": {"quary": "x"}}, "Did you mean query"),
        ({"layers": {}}, "Did you mean layer"),
        ({"layer": {"query": 3}}, "name of a tensor"),
        ({"layer": 3}, "section"),
        ({"block": {"order": "middle"}}, "post, pre"),
        ({"prefixes": "x"}, "list of strings"),
    ],
)
def test_a_table_with_a_mistake_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        complete_table({"name": "mine", "extends": "BERT"} | change, known_tables())


def test_a_table_that_names_too_little_is_refused(tmp_path):
    table = {
        "name": "mine",
        "config": known_tables()["BERT"]["config"],
        "layer": {"out": "encoder.layer.{layer}.attention.output.dense"},
    }
    with pytest.raises(InputError, match="does not name attention_norm"):
        as_model(changed("bert"), table=table)
    (tmp_path / "map.toml").write_text("= 3")
    with pytest.raises(InputError, match="no TOML"):
        read_table(tmp_path / "map.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path / "gone.toml")
