"""What a statement, its evidence and its verdict are."""

from attlas.claims.claim import Claim, Control, Hypothesis, Need
from attlas.claims.digest import versions
from attlas.claims.evidence import Values, on
from attlas.claims.map import Map, Measurement
from attlas.claims.registry import catalogue, find_claim, load_file, select
from attlas.claims.rules import (
    Agreement,
    Approximation,
    Bound,
    Convergence,
    Order,
    Rate,
    Rule,
    SameLaw,
)
from attlas.claims.setting import Setting, Value, product, together, whole
from attlas.claims.verdict import Verdict
from attlas.draws import Draws
