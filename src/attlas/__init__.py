"""Attention theory that runs.

Definitions are functions, theorems are claims with verdicts, figures are commands. Importing the
package imports no JAX: what it exports is imported when it is first used.
"""

from typing import TYPE_CHECKING

from attlas.errors import InputError
from attlas.lazy import exports

if TYPE_CHECKING:
    from attlas.audit.auditing import audit_model
    from attlas.claims import catalogue
    from attlas.claims.checks import (
        check,
        check_bound,
        check_convergence,
        check_order,
        check_rate,
        check_same_law,
    )
    from attlas.lab.runner import run
    from attlas.lab.sweeps import sweep

__version__ = "0.1.0"
_CHECKS = (
    "check",
    "check_bound",
    "check_convergence",
    "check_order",
    "check_rate",
    "check_same_law",
)
__all__ = ["InputError", "__version__", "audit_model", "catalogue", *_CHECKS, "run", "sweep"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "audit_model": "attlas.audit.auditing",
        "catalogue": "attlas.claims",
        **dict.fromkeys(_CHECKS, "attlas.claims.checks"),
        "run": "attlas.lab.runner",
        "sweep": "attlas.lab.sweeps",
    },
    submodules=(
        "attention",
        "audit",
        "capacity",
        "claims",
        "covers",
        "estimators",
        "figure",
        "gaussian",
        "kernels",
        "latent_posterior",
        "order_parameters",
        "rademacher",
        "scan",
        "several_locations",
        "single_location",
        "sparse_variables",
    ),
)
