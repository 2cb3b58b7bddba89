"""What numbers depend on besides a claim: the package's sources, and versions of what computes."""

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path


@functools.cache
def versions() -> str:
    """Of what computes: JAX, NumPy, SciPy, optax and equinox, in one text.

    >>> from attlas.provenance import versions
    >>> len(versions().split())
    6
    """
    return " ".join(
        version(name) for name in ("jax", "jaxlib", "numpy", "scipy", "optax", "equinox")
    )


@functools.cache
def package_digest() -> str:
    """Digest of all sources of the package, and of `versions`."""
    package = Path(__file__).parent
    digest = hashlib.sha256(versions().encode())
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        digest.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
