# ruff: noqa
# mypy: ignore-errors
"""Temporary: the old form of a claim."""

import dataclasses
import importlib
import zlib

import jax

from attlas.claims.claim import Claim
from attlas.claims.claim import Control as _Control
from attlas.claims.map import REGISTRY
from attlas.claims import *  # noqa


class OldClaim(Claim):
    def measure(self, cells, seed):
        return self.function(cells, seed)

    def fit(self, evidence):
        return evidence if self.read is None else self.read(evidence)

    @property
    def module(self):
        return self.function.__module__


@dataclasses.dataclass(frozen=True)
class Control(_Control):
    on: str = "evidence"

    def __post_init__(self):
        pass

    def altered_setting(self, setting):
        return self.alter(setting)


def claim(id, **parts):
    def register(measure):
        given = dict(parts)
        given["read"] = given.pop("fit", None)
        given["drawing"] = given.pop("figure", None)
        first = next((k.evidence for k in REGISTRY.values() if k.function is measure), id)
        made = OldClaim(id=id, function=measure, evidence=first, **given)
        REGISTRY[id] = made
        return made

    return register


def drawn_by(path, **options):
    module, _, name = path.partition(":")
    return lambda evidence: getattr(importlib.import_module(module), name)(evidence, **options)


def key_for(seed, claim_id, purpose):
    key = jax.random.key(seed, impl="threefry2x32")
    for word in (claim_id, purpose):
        key = jax.random.fold_in(key, zlib.crc32(word.encode()))
    return key


from attlas.statistics import log_slope, binomial_limits, normal_quantile, student_quantile
from attlas.claims.rules import LEVEL
