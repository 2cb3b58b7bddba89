"""Digests of what a verdict depends on."""

import hashlib

from attlas.claims import Claim
from attlas.claims.digest import function_digest, source_digest


def verdict_digest(claim: Claim, scale: str) -> str:
    """Digest of what the evidence at a scale and its verdict depend on, machine and versions
    apart; of a control its size and functions, not its words."""
    sources = (source_digest(module) for module in (claim.function.__module__, claim.module))
    functions = (claim.read, claim.control.alter, claim.control.setting)
    control = (str(claim.control.size), *map(function_digest, functions))
    stated = (claim.setting(scale).canonical(), repr(claim.rule), *control, claim.precision)
    return hashlib.sha256("\n".join((*sources, *stated)).encode()).hexdigest()


def judging_digest(claim: Claim, scale: str) -> str:
    """The same with the code of rules: what is kept beside evidence is judged again whenever it is
    read, counts of verdicts and resolutions are not."""
    return f"{verdict_digest(claim, scale)[:32]}-{source_digest('attlas.claims.rules')[:16]}"
