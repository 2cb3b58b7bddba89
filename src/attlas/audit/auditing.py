"""The audit of a model: the maps' quantities, measured on its weights and on a text, beside references.

audited = audit_model("folder")          # or a file, "package:NAME", a dict of arrays with config=
audited.heads                            # Dataset over (layer, head): `words` of each variable say what it is
audited.layers                           # Dataset over layer: capacity, tokens, exchangeability
audited.references                       # the same heads at random initialisation, and those of MiniLM; .reference_layers, .reference_probes
audited.summary, audited.skipped         # in words
audited.save("audit.html")               # one page that opens offline; audited.to_dict() holds the same numbers
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import attlas
from attlas.audit import behaviour
from attlas.audit.architectures import Model, read_table, recognise
from attlas.audit.behaviour import kinds, watch
from attlas.audit.checkpoints import Checkpoint, read_checkpoint
from attlas.audit.heads import depth, weigh
from attlas.audit.hypotheses import Distance, distances, exchangeability
from attlas.audit.texts import Tokens, rows_of, spelled, tokens_of
from attlas.errors import InputError

MOST_TEXTS, MOST_TOKENS, SHOWN_TOKENS = 64, 128, 24
"""So many texts are read, so many tokens of each; and of the first one, so many are shown with their attention."""
LARGEST_TEXT = 16 * 2**20
MOST_DIGITS = 10
"""Of a token id in a file."""
UNKNOWN = 0.3
"""Share of unknown tokens from which on the default text says nothing about a model."""

SENTENCES: dict[str, int | None] = {"none": 0, "quick": 600, "paper": None}
"""How many sentences a probe is fitted on: a sample, or all of the paper's."""

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Example:
    """The first text as the heads saw it: its tokens, and attention [layer, head, query, key]."""

    pieces: tuple[str, ...]
    attention: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `facts` describe the model, `capacity` is the whole model by the depth recursion, `seconds` say what took how
    long, `skipped` what was left out and why. References are the same architecture at random initialisation ("random") and "MiniLM"."""

    name: str
    facts: Mapping[str, Any]
    heads: xr.Dataset
    layers: xr.Dataset
    capacity: Mapping[str, float]
    references: Mapping[str, xr.Dataset]
    reference_layers: Mapping[str, xr.Dataset]
    hypotheses: Sequence[Distance]
    example: Example | None
    skipped: Sequence[str]
    seconds: Mapping[str, float]
    probes: Sequence[xr.Dataset] = ()
    reference_probes: Mapping[str, Sequence[xr.Dataset]] = field(default_factory=dict)

    @property
    def summary(self) -> list[str]:
        """The findings in sentences."""
        from attlas.audit.findings import sentences

        return sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """The same numbers as plain lists, for JSON; what is not a number is None."""
        return {
            "attlas": attlas.__version__,
            "model": self.name,
            "facts": dict(self.facts),
            "summary": self.summary,
            "heads": plain(self.heads),
            "layers": plain(self.layers),
            "capacity": plain(dict(self.capacity)),
            "references": {name: spread_of(found) for name, found in self.references.items()},
            "hypotheses": [plain(asdict(distance)) for distance in self.hypotheses],
            "reference_layers": plain(self.reference_layers),
            "probes": [plain(found) for found in self.probes],
            "reference_probes": {
                name: [plain(one) for one in found] for name, found in self.reference_probes.items()
            },
            "skipped": list(self.skipped),
            "seconds": plain(dict(self.seconds)),
        }

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        from attlas.audit.page import write_page

        return write_page([self], Path(path))


def plain(found: Any) -> Any:
    """Datasets, arrays and mappings as JSON has them: lists, and None for what is not finite."""
    if isinstance(found, xr.Dataset):
        kept = {"axes": {str(axis): size for axis, size in found.sizes.items()}}
        kept |= {"attributes": plain(found.attrs)} if found.attrs else {}
        return kept | {str(name): plain(values.values) for name, values in found.variables.items()}
    if isinstance(found, Mapping):
        return {str(name): plain(value) for name, value in found.items()}
    if isinstance(found, np.ndarray):
        return [plain(value) for value in found] if found.ndim else plain(found.item())
    if isinstance(found, float | np.floating):
        return float(f"{found:.6g}") if np.isfinite(found) else None
    return found.item() if isinstance(found, np.generic) else found


QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


def spread_of(found: xr.Dataset) -> dict[str, list[float | None]]:
    """The quantiles 0, .1, .5, .9 and 1 over heads of every quantity."""
    spread = {}
    for name, values in found.data_vars.items():
        numbers = np.asarray(values.values, float)
        numbers = numbers[np.isfinite(numbers)]
        spread[str(name)] = (
            plain(np.quantile(numbers, QUANTILES)) if numbers.size else [None] * len(QUANTILES)
        )
    return spread


def audit_model(
    source: str | Path | Mapping[str, Any] | Checkpoint | Model,
    *,
    config: Mapping[str, Any] | str | Path | None = None,
    table: Mapping[str, Any] | str | Path | None = None,
    texts: Sequence[str] | str | Path | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
    labels: str | Path | None = None,
    probes: str = "quick",
    seed: int = 0,
    progress: Progress = lambda words: None,
) -> Audit:
    """The maps' quantities on a checkpoint: a path, "package:NAME", arrays in memory (with `config`), or what was read already.

    `texts` are lines of text or a file of them, one example a line; `tokens` are token ids, where there is no tokenizer. Without
    either, a small neutral English text is used. `table` is a table of names, or its file, for an architecture that is not known. `labels` is a file
    with a label, a tab and a text on each line, on which every layer is probed; `probes` says how many of the first paper's sentences are ("none",
    "quick", "paper"). `seed` draws the random reference.
    """
    if probes not in SENTENCES:
        raise InputError(f"probes = {probes!r}: it must be one of {', '.join(SENTENCES)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise InputError(f"seed = {seed!r}: it must be a whole number from 0 to {2**31 - 1}")
    if texts is not None and not isinstance(texts, str | Path):
        texts = _strings(texts)
    if tokens is not None:
        tokens = rows_of(tokens)
    labelled = None if labels is None else _labelled(labels)
    clock = Clock(progress)
    clock.start("reading")
    model = as_model(source, config, table)
    read, skipped = read_tokens(model, texts, tokens)
    random = model.reinitialised(seed)
    clock.start("weights")
    weighed = weigh(model)
    clock.start("weights at random")
    drawn = weigh(random)
    layers, drawn_layers = _ladder(weighed), _ladder(drawn)
    found, capacity, example = weighed, dict(layers.attrs), None
    if read is not None:
        clock.start("text")
        seen, example = watch_and_show(model, read)
        layers = _watched(layers, weighed, seen)
        capacity["log10_lipschitz_stretched"] = float(layers.log10_lipschitz_stretched.sum())
        found = weighed.assign({name: seen[name] for name in behaviour.MEANING}).assign(
            kind=kinds(seen)
        )
        clock.start("text at random")
        looked = watch(random, read)
        drawn, drawn_layers = drawn.assign(looked.data_vars), _watched(drawn_layers, drawn, looked)
        clock.start("exchangeability")
        layers, drawn_layers = (
            each.assign(_over_layers(exchangeability(one, few(read, 8), seed)))
            for each, one in ((layers, model), (drawn_layers, random))
        )
    clock.start("probes")
    probed, unprobed = _probed(model, probes, labelled, seed)
    clock.start("probes at random")
    probed_random, _ = _probed(random, probes, labelled, seed)
    clock.stop()
    references = {"random": _over_heads(drawn), **minilm()}
    reference_layers = {"random": drawn_layers, **minilm("layers")}
    return Audit(
        name=model.name,
        facts=facts_of(model, read, texts is None and tokens is None),
        heads=_over_heads(found),
        layers=layers,
        capacity=capacity,
        references=references,
        reference_layers=reference_layers,
        hypotheses=distances(
            *(layers, found),
            references={
                name: (reference_layers[name], heads) for name, heads in references.items()
            },
        ),
        example=example,
        skipped=[*skipped, *unprobed],
        seconds=clock.seconds,
        probes=probed,
        reference_probes={"random": probed_random}
        | ({"MiniLM": list(minilm("probes").values())} if probed else {}),
    )


def _ladder(weighed: xr.Dataset) -> xr.Dataset:
    """Capacity by layer, and what else the weights say of each."""
    ladder = depth(weighed)
    return ladder.assign(_over_layers(weighed))


def _watched(layers: xr.Dataset, weighed: xr.Dataset, seen: xr.Dataset) -> xr.Dataset:
    """With what the text says of each layer, and the bound that takes the norms as they were seen to stretch."""
    stretched = depth(
        weighed, np.stack([seen.attention_stretch.values, seen.mlp_stretch.values], -1)
    )
    return layers.assign(_over_layers(seen)).assign(
        log10_lipschitz_stretched=stretched.log10_lipschitz
    )


def _strings(texts: Any) -> list[str]:
    found = list(texts) if isinstance(texts, Iterable) else [texts]
    for text in found:
        if not isinstance(text, str):
            raise InputError(
                f"{text!r} is no text: texts are strings, or the path of a file of them"
            )
    return found


def _labelled(path: str | Path) -> Any:
    from attlas.audit.probes import read_labelled

    return (*read_labelled(path), Path(path).name)


def _probed(
    model: Model, probes: str, labelled: Any, seed: int
) -> tuple[list[xr.Dataset], list[str]]:
    """Probes on the first paper's sentences and on labelled texts, and why they are missing."""
    asked = "Probes on the sentences of the first paper"
    if probes == "none" and labelled is None:
        return [], [f"{asked}: they were not asked for (--probes)."]
    from attlas.audit.probes import constructed, probe, probe_labelled

    found, skipped = [], []
    reason = next(
        (words for words in read_tokens(model, None, None)[1] if words.startswith("Everything")),
        None,
    )
    if probes == "none":
        skipped.append(f"{asked}: they were not asked for (--probes).")
    elif reason is not None:
        skipped.append(f"{asked}, for the same reason as e{reason[1:]}")
    else:
        found.append(probe(model, constructed(), SENTENCES[probes], seed))
    if labelled is not None:
        texts, classes, name = labelled
        found.append(probe_labelled(model, texts, classes, seed=seed, name=name))
    return found, skipped


class Clock:
    """Seconds of each stage; tells which one begins."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress, self._stage, self._began = progress, "", 0.0

    def start(self, stage: str) -> None:
        self.stop()
        self._progress(stage)
        self._stage, self._began = stage, time.perf_counter()

    def stop(self) -> None:
        if self._stage:
            self.seconds[self._stage] = time.perf_counter() - self._began
        self._stage = ""


def as_model(
    source: str | Path | Mapping[str, Any] | Checkpoint | Model,
    config: Mapping[str, Any] | str | Path | None = None,
    table: Mapping[str, Any] | str | Path | None = None,
) -> Model:
    if isinstance(source, Model):
        return source
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source, config)
    return recognise(checkpoint, read_table(table) if isinstance(table, str | Path) else table)


def read_tokens(
    model: Model, texts: Sequence[str] | str | Path | None, tokens: Sequence[Sequence[int]] | None
) -> tuple[Tokens | None, list[str]]:
    """The tokens of the text, and what was left out and why. A text that was asked for and cannot be had is an error, the default one is not."""
    if model.vocabulary is None:
        if texts is not None or tokens is not None:
            raise InputError(f"{model.name} takes images: there is nothing to read it a text with")
        return None, ["Everything that needs a text: this model takes images. Weights only."]
    if tokens is not None:
        if texts is not None:
            raise InputError("texts and tokens are given: there must be one of them")
        return cut(model, tokens)
    if texts is not None:
        lines = read_lines(texts) if isinstance(texts, str | Path) else list(texts)
        return cut(model, *spelled(model, lines[:MOST_TEXTS]), of=len(lines))
    try:
        ids, pieces = spelled(model, neutral())
    except InputError as error:
        return None, [f"Everything that needs a text: {error}."]
    unknown = np.mean([piece in ("[UNK]", "<unk>") for row in pieces for piece in row])
    if unknown > UNKNOWN:
        reason = f"its tokenizer does not know {unknown:.0%} of the default English text; give one of its own with --text"
        return None, [f"Everything that needs a text: {reason}."]
    return cut(model, ids, pieces)


@cache
def neutral() -> tuple[str, ...]:
    """The text that is read where none is given."""
    return tuple((resources.files("attlas.audit") / "neutral.txt").read_text("utf-8").splitlines())


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file that are not blank."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise InputError(
                f"{path} has {path.stat().st_size} bytes: a text has at most {LARGEST_TEXT}"
            )
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is no text in UTF-8: byte {error.start} is {error.object[error.start]:#x}"
        ) from error
    kept = [line for line in lines if line.strip()]
    if not kept:
        raise InputError(f"{path} is empty: there must be at least one line of text")
    return kept


def read_ids(path: str | Path) -> list[list[int]]:
    """Token ids of several texts, one a line, apart by blanks or commas."""
    found = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.replace(",", " ").split()
        if not all(word.isdecimal() and len(word) <= MOST_DIGITS for word in words):
            raise InputError(
                f"line {number} of {path} is {line[:60]!r}: it must be token ids, whole numbers from 0 on of at most {MOST_DIGITS} digits"
            )
        found.append([int(word) for word in words])
    return found


def cut(
    model: Model,
    ids: Sequence[Sequence[int]],
    pieces: Sequence[Sequence[str]] | None = None,
    of: int | None = None,
) -> tuple[Tokens, list[str]]:
    """The first tokens of the first texts `of` so many, and what that leaves out. Cut before it is padded: one long line would make all long."""
    skipped = []
    of, kept = of or len(ids), ids[:MOST_TEXTS]
    if of > MOST_TEXTS:
        skipped.append(f"{of - MOST_TEXTS} of {of} texts: the first {MOST_TEXTS} are read.")
    longest = min(MOST_TOKENS, model.longest or MOST_TOKENS)
    long = sum(len(row) > longest for row in kept)
    if long:
        skipped.append(f"The ends of {long} texts: the first {longest} tokens are read.")
    return few(tokens_of(kept, pieces, most=longest), MOST_TEXTS, longest), skipped


def few(tokens: Tokens, texts: int, longest: int = MOST_TOKENS) -> Tokens:
    """The first texts, the first tokens of each, without padding that none of them needs."""
    length = min(longest, -(-int(tokens.mask[:texts].sum(1).max()) // 8) * 8)
    ids, mask, types, positions = (
        x[:texts, :length] for x in (tokens.ids, tokens.mask, tokens.types, tokens.positions)
    )
    return Tokens(
        ids, mask, types, positions, tuple(pieces[:length] for pieces in tokens.pieces[:texts])
    )


def watch_and_show(model: Model, tokens: Tokens) -> tuple[xr.Dataset, Example]:
    """What the heads do with the text, and the attention of the first one of a length to show."""
    fitting = [i for i, pieces in enumerate(tokens.pieces) if len(pieces) <= SHOWN_TOKENS]
    chosen = fitting[0] if fitting else 0
    length = min(len(tokens.pieces[chosen]), SHOWN_TOKENS)
    shown: list[np.ndarray] = []
    seen = watch(
        model,
        tokens,
        lambda step: shown.append(
            np.asarray(step.attention[chosen, :, :length, :length], np.float16)
        ),
    )
    return seen, Example(tokens.pieces[chosen][:length], np.stack(shown))


def _over_heads(found: xr.Dataset) -> xr.Dataset:
    """What there is of each head."""
    return found[
        [name for name, values in found.data_vars.items() if {"layer", "head"} <= set(values.dims)]
    ]


def _over_layers(found: xr.Dataset) -> dict[str, xr.Variable]:
    return {
        str(name): values.variable
        for name, values in found.data_vars.items()
        if values.dims == ("layer",)
    }


def facts_of(model: Model, tokens: Tokens | None, default: bool) -> dict[str, Any]:
    """The model in a few words and numbers, and the text that it was read."""
    block = model.block
    facts: dict[str, Any] = {
        "architecture": model.architecture,
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
        "rotary": model.frequencies is not None,
        "parameters": sum(model.checkpoint.tensors[name].size for name in model.used),
        "bytes": model.checkpoint.bytes,
        "unused_tensors": list(model.unused)[:50],
    }
    if tokens is not None:
        facts["text"] = {
            "default": default,
            "texts": len(tokens.ids),
            "tokens": int(tokens.mask.sum()),
            "longest": int(tokens.mask.sum(1).max()),
        }
    return facts


@dataclass(frozen=True, eq=False)
class Difference:
    """Two audits side by side: `heads` and `layers` hold the second less the first, where both have a quantity in the same shape."""

    before: Audit
    after: Audit
    heads: xr.Dataset
    layers: xr.Dataset

    @property
    def summary(self) -> list[str]:
        """The differences in sentences."""
        from attlas.audit.findings import compared

        return compared(self)

    def to_dict(self) -> dict[str, Any]:
        """The same numbers as plain lists, for JSON."""
        return {
            "before": self.before.name,
            "after": self.after.name,
            "summary": self.summary,
            "heads": plain(self.heads),
            "layers": plain(self.layers),
        }


def compare(before: Audit, after: Audit) -> Difference:
    """The audits of two checkpoints of one model: before and after fine-tuning, say."""
    return Difference(
        before, after, _less(before.heads, after.heads), _less(before.layers, after.layers)
    )


def _less(before: xr.Dataset, after: xr.Dataset) -> xr.Dataset:
    names = [
        name
        for name, values in before.data_vars.items()
        if name in after and values.dtype.kind == "f"
    ]
    return xr.Dataset(
        {
            name: (before[name].dims, after[name].values - before[name].values)
            for name in names
            if before[name].shape == after[name].shape
        }
    )


@cache
def minilm(part: str = "heads") -> dict[str, xr.Dataset]:
    """What tools/minilm.py found of all-MiniLM-L6-v2 on the neutral text: its "heads" or "layers", or the "probes" of the first paper's sentences."""
    stored = json.loads((resources.files("attlas.audit") / "minilm.json").read_text("utf-8"))[part]
    if part == "probes":
        return {"MiniLM": _probes_of(stored)}
    axes = ("layer", "head")
    return {
        "MiniLM": xr.Dataset(
            {name: (axes[: np.ndim(rows)], np.array(rows, float)) for name, rows in stored.items()}
        )
    }


def _probes_of(stored: Mapping[str, Any]) -> xr.Dataset:
    """A Dataset of `probes.probe` again, as `plain` wrote it."""
    axes = {"accuracy": ("pool", "layer", "set"), "words": ("set",), "texts": ("set",)}
    return xr.Dataset(
        {name: (dims, stored[name]) for name, dims in axes.items()},
        {name: stored[name] for name in axes["accuracy"]},
        stored["attributes"],
    )
