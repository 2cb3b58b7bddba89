"""The audit of a model: the maps' quantities on its weights and on a text, beside references.

audit = audit_model("folder")         # or a file, "package:NAME", a model of transformers
audit.heads                           # Dataset over (layer, head); `words` explain a variable
audit.layers                          # Dataset over layer: capacity, tokens, exchangeability
audit.references                      # the same heads at random initialisation, and a known model's
audit.answers                         # what each of the three theories says of the model
audit.summary, audit.skipped          # in words
audit.save("audit.html")              # one page that opens offline; to_dict() has its numbers
"""

import html
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import attlas
from attlas.audit import gallery
from attlas.audit.answers import Answer, find_answers
from attlas.audit.architectures import Model, as_model, fitting_tables, meets
from attlas.audit.behaviour import classify_heads, measure_behaviour
from attlas.audit.bounds import measure_bounds
from attlas.audit.findings import summarise, summarise_difference
from attlas.audit.forward import Step
from attlas.audit.heads import KEPT, capacity_by_layer, measure_weights
from attlas.audit.hypotheses import Distance, distances, exchangeability
from attlas.audit.name_tables import known_tables
from attlas.audit.probes import constructed_sentences, probe, probe_labelled, read_labelled
from attlas.audit.quantities import FROM_TEXT, finite_quantiles
from attlas.audit.texts import Tokens, read_ids, read_tokens
from attlas.errors import InputError
from attlas.escaping import printable

SHOWN_TOKENS, SHUFFLED_TEXTS = 24, 8
"""So many tokens of the example are shown; so many texts are shuffled."""
SENTENCES: dict[str, int | None] = {"none": 0, "quick": 600, "paper": None}
"""How many of the constructed sentences a probe is fitted on; all of them at "paper"."""
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
SAME_MODEL = ("architecture", "layers", "distinct_layers", "heads", "groups", "dim", "width")
"""Two checkpoints that differ in one of these facts are not of one model."""


@dataclass(frozen=True, eq=False)
class Example:
    """A text as the heads saw it: its tokens, and attention [layer, head, query, key]."""

    pieces: tuple[str, ...]
    attention: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found.

    - `facts`: the model in a few words and numbers
    - `capacity`: the bounds of the whole model by the depth recursion
    - `bounds`: those of every head and of the model by each of four covers, as they are and pruned
    - `references`, `reference_layers`, `reference_probes`: the same of "random", the architecture
      at random initialisation, and of a model of the gallery of the same family
    - `hypotheses`: how far the model is from each hypothesis of the maps
    - `skipped`: what was left out, and why
    - `seconds`: how long each stage took
    - `said`: answers and summary of an audit that was kept

    Arguments:
        name: of the model. `heads`: quantities [layer, head]. `layers`: quantities [layer].
        example: a text as the heads saw it. `probes`: what each layer tells of labels.
    """

    name: str
    facts: Mapping[str, Any]
    heads: xr.Dataset
    layers: xr.Dataset
    capacity: Mapping[str, float]
    bounds: xr.Dataset
    references: Mapping[str, xr.Dataset]
    reference_layers: Mapping[str, xr.Dataset]
    hypotheses: Sequence[Distance]
    example: Example | None
    skipped: Sequence[str]
    seconds: Mapping[str, float]
    probes: Sequence[xr.Dataset] = ()
    reference_probes: Mapping[str, Sequence[xr.Dataset]] = field(default_factory=dict)
    said: tuple[tuple[Answer, ...], tuple[str, ...]] | None = field(default=None, repr=False)

    @property
    def answers(self) -> list[Answer]:
        """What each of the three theories says of the model."""
        return find_answers(self) if self.said is None else list(self.said[0])

    @property
    def summary(self) -> list[str]:
        """The findings in sentences."""
        return summarise(self) if self.said is None else list(self.said[1])

    def _repr_html_(self) -> str:
        """The findings as a list, for a notebook."""
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.summary)
        return f"<p><b>{html.escape(self.name)}</b></p><ul>{items}</ul>"

    def to_dict(self) -> dict[str, Any]:
        """The same numbers as plain lists, for JSON; NaN and infinities are None."""
        return {
            "attlas": attlas.__version__,
            "model": self.name,
            "facts": dict(self.facts),
            "answers": as_json([asdict(answer) for answer in self.answers]),
            "summary": self.summary,
            "heads": as_json(self.heads),
            "layers": as_json(self.layers),
            "capacity": as_json(self.capacity),
            "bounds": as_json(self.bounds),
            "references": {name: quantiles(found) for name, found in self.references.items()},
            "hypotheses": as_json([asdict(distance) for distance in self.hypotheses]),
            "reference_layers": as_json(self.reference_layers),
            "probes": as_json(self.probes),
            "reference_probes": as_json(self.reference_probes),
            "skipped": list(self.skipped),
            "seconds": as_json(self.seconds),
        }

    def save(self, path: str | Path) -> Path:
        """Write the page; an error leaves no part of it."""
        from attlas.audit.page import write_page

        return write_page([self], Path(path))


def as_json(found: Any) -> Any:
    """Datasets, arrays, mappings and sequences as JSON has them, with six digits.

    NaN and infinities become None.
    """
    if isinstance(found, xr.Dataset):
        kept = {"axes": {str(axis): size for axis, size in found.sizes.items()}}
        kept |= {"attributes": as_json(found.attrs)} if found.attrs else {}
        return kept | {str(name): as_json(x.values) for name, x in found.variables.items()}
    if isinstance(found, Mapping):
        return {str(name): as_json(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [as_json(value) for value in found]
    if isinstance(found, np.ndarray):
        return [as_json(value) for value in found] if found.ndim else as_json(found.item())
    if isinstance(found, float | np.floating):
        return float(f"{found:.6g}") if np.isfinite(found) else None
    return found.item() if isinstance(found, np.generic) else found


def quantiles(found: xr.Dataset) -> dict[str, list[float | None]]:
    """The quantiles `QUANTILES` over heads of every quantity; None where there is no number."""
    return as_json({name: finite_quantiles(x.values, QUANTILES) for name, x in found.items()})


def audit_model(
    source: Any,
    *,
    config: Any = None,
    map: Mapping[str, Any] | str | Path | None = None,
    text: Sequence[str] | str | Path | None = None,
    tokens: Sequence[Sequence[int]] | str | Path | None = None,
    labels: str | Path | None = None,
    probes: str = "quick",
    seed: int = 0,
    progress: Callable[[str], None] = lambda words: None,
) -> Audit:
    """Measure the maps' quantities on a checkpoint.

    Arguments:
        source: a folder, a file, "package:NAME", the name of a model in a Hugging Face cache, a
            model of `transformers` or of torch with its `config`, a Transformer of
            `attlas.sparse_variables`, arrays or tensors in memory by name, or what was read
            already.
        config: in place of a config.json, a mapping, a file or an object with `to_dict()`; needed
            with arrays in memory.
        map: a table of names, or its file, for an architecture that is not known; the name of a
            known one for a part of a model, such as "T5 decoder".
        text: lines of text, or a file of them; 32 English sentences unless given.
        tokens: token ids of texts, or a file of them, where there is no tokenizer.
        labels: a file with a label, a tab and a text on each line, on which to probe every layer.
        probes: how many of the sentences of Marion et al. 2025 are probed: "none", "quick" or
            "paper".
        seed: draws the random reference.
        progress: called with the name of each stage as it begins.

    >>> import numpy as np
    >>> from attlas.audit import audit_model, compare
    >>> rng, shapes = np.random.default_rng(0), {"wte": (20, 8), "wpe": (16, 8)}
    >>> shapes |= {"h.0.attn.c_attn": (8, 24), "h.0.attn.c_proj": (8, 8)}
    >>> shapes |= {"h.0.mlp.c_fc": (8, 32), "h.0.mlp.c_proj": (32, 8)}
    >>> shapes |= {name: (8,) for name in ("h.0.ln_1", "h.0.ln_2", "ln_f")}
    >>> arrays = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    >>> arrays |= {f"{name}.bias": np.zeros(shapes[name][-1]) for name in shapes if "w" not in name}
    >>> config = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}
    >>> config |= {"n_positions": 16, "vocab_size": 20}
    >>> audit = audit_model(arrays, config=config, tokens=[[1, 5, 9, 2], [3, 4]], probes="none")
    >>> audit.heads.qk_spectral.shape
    (1, 2)
    >>> difference = compare(audit, audit)
    >>> float(difference.heads.qk_spectral.max())
    0.0
    """
    if probes not in SENTENCES:
        raise InputError(f"probes = {probes!r}: it must be one of {', '.join(SENTENCES)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise InputError(f"seed = {seed!r}: it must be a whole number from 0 to {2**31 - 1}")
    labelled = None if labels is None else (*read_labelled(labels), Path(labels).name)
    starts: dict[str, float] = {}

    def begin(stage: str) -> None:
        progress(stage)
        starts[stage] = time.perf_counter()

    begin("reading")
    model = as_model(source, config, map)
    ids = read_ids(tokens) if isinstance(tokens, str | Path) else tokens
    read, skipped = read_tokens(model, text, ids)
    own, random = _Measurement(model), _Measurement(model.reinitialised(seed))
    begin("weights")
    own.measure_weights()
    bounds = measure_bounds(own.norms)
    begin("weights at random")
    random.measure_weights(kept=KEPT[:1])
    capacity, example = dict(own.layers.attrs), None
    if read is not None:
        begin("text")
        example = own.measure_behaviour(read)
        own.heads = own.heads.assign(kind=classify_heads(own.heads))
        capacity["log10_lipschitz_stretched"] = float(own.layers.log10_lipschitz_stretched.sum())
        begin("text at random")
        random.measure_behaviour(read)
        begin("exchangeability")
        for measured in (own, random):
            shuffled = exchangeability(measured.model, read.first(SHUFFLED_TEXTS), seed)
            measured.layers = measured.layers.assign(shuffled.data_vars)
    begin("probes")
    probed, unprobed = _run_probes(model, probes, labelled, seed)
    begin("probes at random")
    random_probed, _ = _run_probes(random.model, probes, labelled, seed)
    seconds = np.diff([*starts.values(), time.perf_counter()]).tolist()
    references = {"random": random.heads}
    reference_layers = {"random": random.layers}
    facts = _list_facts(model, read, is_default=text is None and tokens is None)
    other = gallery.reference_for(facts, own.heads)
    reference_probes = {"random": random_probed}
    if other is not None:
        title = str(other["title"])
        references[title] = other["heads"].drop_vars("kind")
        reference_layers[title] = other["layers"]
        if probed and "probes" in other:
            reference_probes[title] = [other["probes"]]
    pairs = {name: (reference_layers[name], references[name]) for name in references}
    return Audit(
        name=model.name,
        facts=facts,
        heads=own.heads,
        layers=own.layers,
        capacity=capacity,
        bounds=bounds,
        references=references,
        reference_layers=reference_layers,
        hypotheses=distances(own.layers, own.heads, references=pairs),
        example=example,
        skipped=[*_caveats(model), *skipped, *unprobed],
        seconds=dict(zip(starts, seconds, strict=True)),
        probes=probed,
        reference_probes=reference_probes,
    )


class _Measurement:
    """What was measured of a model so far: `heads` over (layer, head), `layers` over layer."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def measure_weights(self, kept: Sequence[float] = KEPT) -> None:
        self.norms = measure_weights(self.model, kept)
        measured = self.norms.drop_dims("kept")
        self.heads = measured[[name for name, x in measured.items() if "head" in x.dims]]
        self.layers = capacity_by_layer(self.norms).assign(_over_layers(self.norms))

    def measure_behaviour(self, tokens: Tokens) -> Example:
        """Add what the heads do with a text; returns their attention on the first short one."""
        short = (i for i, pieces in enumerate(tokens.pieces) if len(pieces) <= SHOWN_TOKENS)
        text = next(short, 0)
        pieces, shown = tokens.pieces[text][:SHOWN_TOKENS], []

        def keep_attention(step: Step) -> None:
            attention = step.attention[text, :, : len(pieces), : len(pieces)]
            shown.append(np.asarray(attention, np.float16))

        seen = measure_behaviour(self.model, tokens, keep_attention)
        stretch = np.stack([seen.attention_stretch.values, seen.mlp_stretch.values], -1)
        bound = capacity_by_layer(self.norms, stretch).log10_lipschitz
        self.heads = self.heads.assign({name: seen[name] for name in FROM_TEXT})
        self.layers = self.layers.assign(_over_layers(seen) | {"log10_lipschitz_stretched": bound})
        return Example(pieces, np.stack(shown))


def _over_layers(found: xr.Dataset) -> dict[str, xr.Variable]:
    return {str(name): x.variable for name, x in found.items() if x.dims == ("layer",)}


def _run_probes(
    model: Model, size: str, labelled: Any, seed: int
) -> tuple[list[xr.Dataset], list[str]]:
    """Probes on the constructed sentences and on labelled texts, and why some are missing."""
    found, skipped = [], []
    title = "Probes on the sentences of the first paper"
    if size == "none":
        skipped.append(f"{title}: they were not asked for (--probes).")
    else:
        tokens, reasons = read_tokens(model, None, None)
        if tokens is None:
            skipped.append(f"{title}, for the same reason as e{reasons[0][1:]}")
        else:
            found.append(probe(model, constructed_sentences(), SENTENCES[size], seed))
    if labelled is not None:
        texts, classes, name = labelled
        found.append(probe_labelled(model, texts, classes, seed=seed, name=name))
    return found, skipped


def _caveats(model: Model) -> list[str]:
    """What the forward pass of this architecture has and its norms and bounds have not."""
    words, found = model.table["layer"], []
    if "query_norm" in words:
        found.append(
            "How far the norms of queries and keys stretch: products and bounds take them as"
            " projections, with their gains folded in."
        )
    if "router" in words:
        found.append(
            "The choice of experts, which is not continuous: bounds hold while every token keeps"
            " its own, and take the largest norm of any expert."
        )
    if "cross_query" in words:
        found.append(
            "Attention to the encoder, in norms and bounds: the forward pass has it, on the same"
            " text."
        )
    if model.block.terms:
        found.append("The terms of positions in the scores, in the norms of query-key products.")
    tables = known_tables().values()
    own = model.bases("layer", "out")
    fitting = [names for names in fitting_tables(model.checkpoint, tables) if meets(names)]
    parts = [names.table["name"] for names in fitting if names.bases("layer", "out") != own]
    if parts:
        found.append(f"Other parts of the checkpoint: --map {' or '.join(map(repr, parts))}.")
    return found


def _list_facts(model: Model, tokens: Tokens | None, is_default: bool) -> dict[str, Any]:
    """The model in a few words and numbers, and the text that it was read."""
    block = model.block
    facts: dict[str, Any] = {
        "architecture": model.table["name"],
        "layers": model.layers,
        "distinct_layers": model.shared,
        "heads": model.heads,
        "groups": model.groups,
        "dim": model.dim,
        "width": model.width,
        "hidden": model.hidden,
        "norm": f"{block.norm} norm, {'before' if block.order == 'pre' else 'after'} each block",
        "activation": block.activation,
        "causal": block.causal,
        "reads_text": model.vocabulary is not None,
        "rotary": model.frequencies is not None,
        "windows": sorted({view.window for view in model.views if view.window is not None}),
        "parameters": sum(model.checkpoint.tensors[name].size for name in model.used),
        "bytes": model.checkpoint.bytes,
        "unused_tensors": [printable(name) for name in model.unused[:50]],
    }
    if tokens is not None:
        first = {pieces[0] for pieces in tokens.pieces}
        marked = len(first) == 1 and min(first).startswith(("[", "<"))
        facts["reader"] = (
            "the last token" if block.causal else min(first) if marked else "the first token"
        )
        facts["text"] = {
            "default": is_default,
            "texts": len(tokens.ids),
            "tokens": int(tokens.mask.sum()),
            "longest": int(tokens.mask.sum(1).max()),
        }
    return facts


@dataclass(frozen=True, eq=False)
class Difference:
    """Two audits side by side, `before` and `after`; `heads` and `layers` are the second minus the
    first.

    They hold the quantities that both have in the same shape.
    """

    before: Audit
    after: Audit
    heads: xr.Dataset
    layers: xr.Dataset

    @property
    def summary(self) -> list[str]:
        """The differences in sentences."""
        return summarise_difference(self)

    def to_dict(self) -> dict[str, Any]:
        """The same numbers as plain lists, for JSON."""
        return {
            "before": self.before.name,
            "after": self.after.name,
            "summary": self.summary,
            "heads": as_json(self.heads),
            "layers": as_json(self.layers),
        }


def compare(before: Audit, after: Audit) -> Difference:
    """The audits of two checkpoints of one model, such as `before` and `after` fine-tuning.

    Models of different architectures or sizes stand side by side: nothing is subtracted.
    """
    if any(before.facts[fact] != after.facts[fact] for fact in SAME_MODEL):
        return Difference(before, after, xr.Dataset(), xr.Dataset())
    heads, layers = _subtract(after.heads, before.heads), _subtract(after.layers, before.layers)
    return Difference(before, after, heads, layers)


def _subtract(after: xr.Dataset, before: xr.Dataset) -> xr.Dataset:
    return xr.Dataset(
        {
            name: (x.dims, after[name].values - x.values)
            for name, x in before.items()
            if name in after and x.dtype.kind == "f" and x.shape == after[name].shape
        }
    )


def kept_audit(name: str) -> Audit:
    """An audit of the gallery; of its references at random quantiles are known."""
    stored = gallery.read(name)
    probes = [[stored[part]] if part in stored else [] for part in ("probes", "random_probes")]
    return Audit(
        name=stored["title"],
        facts=stored["facts"],
        heads=stored["heads"],
        layers=stored["layers"],
        capacity=stored["capacity"],
        bounds=stored["bounds"],
        references={"random": stored["random"]},
        reference_layers={"random": stored["random_layers"]},
        hypotheses=[Distance(**distance) for distance in stored["hypotheses"]],
        example=None,
        skipped=stored["skipped"],
        seconds={},
        probes=probes[0],
        reference_probes={"random": probes[1]},
        said=(tuple(Answer(**answer) for answer in stored["answers"]), tuple(stored["summary"])),
    )
