"""Benchmarks of auditing a checkpoint: each returns one `Row`."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from attlas.audit.architectures import Model, as_model
from attlas.audit.checkpoints import read_checkpoint
from attlas.audit.heads import measure_weights
from bench.timing import Row, compare

CONFIG = {
    "model_type": "bert",
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}


@cache
def minilm_like() -> Model:
    """A random model of MiniLM's shape, in memory; of a small vocabulary, since no text is read."""
    bits = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (1000, 384),
        "embeddings.position_embeddings.weight": (128, 384),
        "embeddings.token_type_embeddings.weight": (2, 384),
        "embeddings.LayerNorm.weight": (384,),
        "embeddings.LayerNorm.bias": (384,),
    }
    for layer in range(6):
        start = f"encoder.layer.{layer}"
        square = (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        )
        sizes: dict[str, tuple[int, int]] = dict.fromkeys(square, (384, 384)) | {
            "intermediate.dense": (1536, 384),
            "output.dense": (384, 1536),
        }
        for name, shape in sizes.items():
            shapes |= {f"{start}.{name}.weight": shape, f"{start}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{start}.{name}.weight": (384,), f"{start}.{name}.bias": (384,)}
    arrays = {
        name: 0.05 * bits.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }
    return as_model(arrays, CONFIG)


def every_head() -> Row:
    model = minilm_like()
    matrices = [
        t.load()
        for name, t in model.checkpoint.tensors.items()
        if len(t.shape) == 2 and "layer" in name
    ]
    return compare(
        f"norms, ranks and capacity of the two products of all 72 heads of a model of MiniLM's"
        f" shape, against the singular values of its {len(matrices)} matrices, the"
        " least that WeightWatcher's analysis has to compute",
        lambda: measure_weights(model),
        lambda: [np.linalg.svd(w, compute_uv=False) for w in matrices],
        expected="1 or more",
        rounds=3,
    )


def reading() -> Row:
    arrays = {name: tensor.load() for name, tensor in minilm_like().checkpoint.tensors.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(arrays, path)

        def tensors() -> None:
            for tensor in read_checkpoint(path).tensors.values():
                tensor.load()

        return compare(
            f"every tensor of a .safetensors file of {path.stat().st_size / 1e6:.0f} MB, one after"
            f" the other, against the bytes of the file",
            tensors,
            lambda: np.fromfile(path, np.uint8),
            expected="about 1: the disk's",
        )


BENCHMARKS: tuple[Callable[[], Row], ...] = (every_head, reading)
