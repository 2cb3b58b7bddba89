"""Domains of validity that come with the package: of claims whose cells are cheap."""

import click

from attlas.lab import compile_quickly

DOMAINS = {
    "latent-posterior/exponents": {"temperature": "0.05:4", "dim": "2:24"},
    "single-location/exact-reduction": {"step_size": "0.002:0.2", "gamma": "0.2:4"},
    "single-location/manifold-fixed-points": {"lam": "0.02:4", "gamma": "0.2:6"},
    "single-location/critical-lambda": {"dim": "10:10000", "gamma": "0.1:8"},
    "single-location/swapped-beats-oracle": {"lam": "0.01:0.4", "gamma": "0.2:6"},
}


@click.command()
@click.option("--store", default="build/refute", show_default=True, help="Of evidence.")
def domains(store: str) -> None:
    """Map each where it is out of date or missing, and write all that was found."""
    compile_quickly()  # before JAX is imported

    from attlas.claims import select
    from attlas.lab.domain import kept_domain, map_domain, ship_domain
    from attlas.lab.store import Store

    opened = Store(store)
    for id, over in DOMAINS.items():
        (claim,) = select([id])
        domain = kept_domain(claim, opened) or map_domain(claim, over, store=opened)
        ship_domain(domain)
        counts = ", ".join(f"{n} {word}" for word, n in domain.counts().items() if n)
        click.echo(f"{id}: {counts}, {len(domain.edges)} edges")


if __name__ == "__main__":
    domains()
