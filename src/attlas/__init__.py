"""Attention theory that runs: definitions are functions, theorems are claims with verdicts, figures are commands."""

from typing import TYPE_CHECKING, Any

from attlas.errors import InputError

if TYPE_CHECKING:
    from attlas.audit.auditing import audit_model
    from attlas.claims import catalogue
    from attlas.lab.runner import run
    from attlas.lab.sweeps import sweep

__version__ = "0.1.0"
__all__ = ["InputError", "__version__", "audit_model", "catalogue", "run", "sweep"]

# Loaded on first use: importing the package imports no JAX.
_HOMES = {
    "audit_model": "attlas.audit.auditing",
    "catalogue": "attlas.claims",
    "run": "attlas.lab.runner",
    "sweep": "attlas.lab.sweeps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attlas' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
