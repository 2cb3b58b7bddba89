"""What an atlas shows: results, notes, showpieces, and how they belong together."""

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import attlas
from attlas.atlas.articles import Article
from attlas.atlas.drawings import drawings_folder
from attlas.atlas.explorers import Explorer
from attlas.atlas.notes import Item, Notes, notes_of
from attlas.atlas.showpieces import LoadedShowpiece, real_data
from attlas.claims import Bound, Claim
from attlas.claims.claim import KINDS
from attlas.errors import InputError
from attlas.lab.domain import Domain, kept_domain
from attlas.lab.runner import Result, recall
from attlas.lab.searched import Searched, read_summary
from attlas.lab.shipped import read_shipped
from attlas.lab.soak import Soaked, read_soak
from attlas.lab.store import Store
from attlas.references import bibtex

PACKAGE = ("single-location", "several-locations", "sparse-variables", "latent-posterior")
"""The maps of the package, in the order of the pages."""
WORDS = ("confirmed", "refuted", "undecided", "outside", "not run")


@dataclass(frozen=True)
class Atlas:
    """Everything that the pages show.

    - `results`: one for each claim.
    - `others`: results at the scale that was not asked for, by id: of the store, or shipped.
    - `showpieces`: sweeps that have a page.
    - `measured`: what `make bench-data` measured on real data.
    - `soaked`: how often each verdict fell on other seeds, by id.
    - `searched`: what a search for a violation found, by id. `domains`: where a claim goes on to
      hold, by id, of the store.
    - `cache`: the folder in which figures are kept.
    """

    results: Sequence[Result]
    others: Mapping[str, Result] = field(default_factory=dict)
    showpieces: Sequence[LoadedShowpiece] = ()
    measured: Mapping[str, Any] | None = None
    cache: Path | None = None
    soaked: Mapping[str, Soaked] = field(default_factory=dict)
    searched: Mapping[str, Searched] = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> dict[str, Result]:
        return {result.claim.id: result for result in self.results}

    @cached_property
    def by_map(self) -> dict[str, list[Result]]:
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(result.claim.map, []).append(result)
        return groups

    @cached_property
    def of_the_package(self) -> bool:
        """Whether claims of the package are among them."""
        return any(name in PACKAGE for name in self.by_map)

    @cached_property
    def notes(self) -> dict[str, Notes]:
        return notes_of(result.claim for result in self.results)

    @cached_property
    def explorers(self) -> list[Explorer]:
        return [explorer for notes in self.notes.values() for explorer in notes.explorers]

    @cached_property
    def articles(self) -> list[Article]:
        """Articles about claims that are all among the results."""
        every = [article for notes in self.notes.values() for article in notes.articles]
        return [article for article in every if set(article.related) <= set(self.by_id)]

    @cached_property
    def used_by(self) -> dict[str, list[str]]:
        """Ids of the claims that need a claim, by its id."""
        found: dict[str, list[str]] = {}
        for result in self.results:
            for id in result.claim.needs:
                found.setdefault(id, []).append(result.claim.id)
        return found

    @cached_property
    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter(result.verdict.word for result in self.results)
        return {word: found[word] for word in WORDS}

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of evidence that occur."""
        return [kind for kind in KINDS if any(r.claim.kind == kind for r in self.results)]

    @cached_property
    def matrix(self) -> Counter[tuple[str, str]]:
        """How many claims there are by origin and kind of evidence."""
        return Counter((result.claim.origin, result.claim.kind) for result in self.results)

    @cached_property
    def tightness(self) -> list[Result]:
        """Results on bounds of the theory, those that hold first, and then the tightest first."""
        bounds = [
            result
            for result in self.results
            if isinstance(result.claim.rule, Bound)
            and result.evidence
            and np.isfinite(result.verdict.statistic)
            and result.claim.slug not in self.notes[result.claim.map].thresholds
        ]
        return sorted(bounds, key=lambda r: (r.verdict.word != "confirmed", -r.verdict.statistic))

    @cached_property
    def soaked_words(self) -> Counter[str]:
        """How often each verdict fell, over all claims and seeds."""
        return sum((counts.verdicts for counts in self.soaked.values()), Counter())

    @cached_property
    def asked(self) -> dict[str, tuple[str, list[Result]]]:
        """Every question with its answer and the results about it; a question of several maps is
        one, with all their answers."""
        asked: dict[str, tuple[str, list[Result]]] = {}
        for name, notes in self.notes.items():
            for question in notes.questions:
                about = [r for r in self.by_map[name] if question.about(r.claim)]
                if about:
                    answer, found = asked.get(question.ask, ("", []))
                    asked[question.ask] = (f"{answer} {question.answer}".strip(), found + about)
        return asked

    def covered(self, name: str) -> tuple[list[Item], list[Item]]:
        """Items of a map's paper that have a claim among the results, and the others."""
        groups: tuple[list[Item], list[Item]] = ([], [])
        for item in self.notes[name].items:
            tested = any(f"{name}/{slug}" in self.by_id for slug in item.claims)
            groups[0 if tested else 1].append(item)
        return groups

    def questions(self, claim: Claim) -> list[str]:
        return [each.ask for each in self.notes[claim.map].questions if each.about(claim)]

    def search_text(self, claim: Claim) -> str:
        """All words by which a claim is found: its own, its symbols', its paper's and those of the
        questions that it answers."""
        notes = self.notes[claim.map]
        symbols = (f"{s.tex} {s.means}" for s in notes.symbols if s.occurs_in(claim))
        own = (claim.id, claim.reference, claim.words, claim.statement, claim.kind)
        text = " ".join((*own, notes.source, *self.questions(claim), *symbols))
        words = re.findall(
            r"[^\W_]{2,}", re.sub(r"\\(?:mathrm|frac|sqrt|[,;!])", " ", text).lower()
        )
        return " ".join(dict.fromkeys(words))

    def told_in(self, kind: str, name: str) -> list[Article]:
        """Articles that show a claim (its id) or an explorer (its name)."""
        return [
            article
            for article in self.articles
            if name in (article.related if kind == "claim" else article.insets(kind))
        ]

    def idea(self, claim: Claim) -> str:
        return self.notes[claim.map].ideas.get(claim.slug, "")

    def both_scales(self, result: Result) -> list[Result]:
        """The result, and that at the other scale if it is there; the quick one first."""
        other = self.others.get(result.claim.id)
        return sorted([result, other] if other else [result], key=lambda r: r.scale != "quick")


def gather_atlas(results: Sequence[Result], store: Store) -> Atlas:
    """The atlas of `results`, with all that the store and the package have to show beside them."""
    order = {name: place for place, name in enumerate(PACKAGE)}
    results = sorted(results, key=lambda r: (order.get(r.claim.map, len(order)), r.claim.id))
    plain = Atlas(results)
    others: dict[str, Result] = {}
    for id, result in plain.by_id.items():
        scale = "quick" if result.scale == "paper" else "paper"
        other = recall(result.claim, scale=scale, seed=result.seed, store=store)
        if other is None and scale == "paper":
            shipped = read_shipped(result.claim, store.notes)
            other = shipped and shipped.result
        if other is not None:
            others[id] = other
    pieces = [piece for notes in plain.notes.values() for piece in notes.showpieces]
    return Atlas(
        results,
        others,
        [piece.load(store) for piece in pieces if piece.claim_id in plain.by_id],
        real_data(store) if plain.of_the_package else None,
        drawings_folder(store),
        read_soak(result.claim for result in results),
        read_summary(result.claim for result in results),
        {r.claim.id: found for r in results if (found := kept_domain(r.claim, store))},
    )


def list_entry(result: Result, atlas: Atlas, data: bytes | None) -> dict[str, Any]:
    """A claim in the machine-readable list, as `claims.schema.json` describes it; `data` is its
    evidence as a netCDF file."""
    claim, other = result.claim, atlas.others.get(result.claim.id)
    plain = ("map", "source", "reference", "origin", "statement", "words", "code")
    file = data and {"file": f"{claim.id}.nc", "sha256": hashlib.sha256(data).hexdigest()}
    return {
        **{name: getattr(claim, name) for name in plain},
        "idea": atlas.idea(claim),
        "questions": atlas.questions(claim),
        "hypotheses": [hypothesis.words for hypothesis in claim.hypotheses],
        "rule": str(claim.rule),
        "control_words": claim.control.said(),
        "needs": list(claim.needs),
        "data": file,
        **result.to_dict(),
        "other_scale": None if other is None else other.to_dict(),
    }


def source_line(claim: Claim) -> str:
    """File and line of the measurement, from the top of the repository if it is in the package."""
    code = inspect.unwrap(claim.function).__code__
    file, top = Path(code.co_filename), Path(attlas.__file__).parents[2]
    shown = file.relative_to(top) if file.is_relative_to(top) else file.name
    return f"{shown}:{code.co_firstlineno}"


def citation_of(result: Result) -> str:
    """BibTeX of the result itself: what was run, with which version, and what it said."""
    claim = result.claim
    year = re.search(r"year\s*=\s*\{(\d+)\}", bibtex("attlas"))
    fields = {
        "title": f"{{{claim.words.rstrip('.')}}}",
        "author": "{The Attlas authors}",
        "year": year[1] if year else "",
        "note": f"Claim {claim.id} of Attlas {attlas.__version__}: {result.verdict.word} at"
        f" {result.scale} scale, seed {result.seed}, code {claim.code[:12]}",
    }
    lines = ",\n".join(f"  {name:<6} = {{{text}}}" for name, text in fields.items())
    return f"@misc{{attlas:{claim.slug},\n{lines},\n}}"


def arxiv_of(claim: Claim) -> str:
    """The paper's number at arXiv, if its entry has one."""
    found = re.search(r"eprint\s*=\s*\{([\w./-]+)\}", bibtex_of(claim))
    return found[1] if found else ""


def bibtex_of(claim: Claim) -> str:
    """BibTeX of the claim's source; empty for a claim of somebody else's with an unknown source."""
    try:
        return bibtex(claim.source, claim.file)
    except InputError:
        return ""
