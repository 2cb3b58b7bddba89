"""The maps' quantities on real checkpoints, which are read without torch and run in JAX."""

from typing import TYPE_CHECKING

from attlas.lazy import exports

if TYPE_CHECKING:
    from attlas.audit.auditing import Audit, Difference, audit_model, compare

__all__ = ["Audit", "Difference", "audit_model", "compare"]

__getattr__, __dir__ = exports(__name__, dict.fromkeys(__all__, "attlas.audit.auditing"))
