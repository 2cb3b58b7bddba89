"""Make the certificates that come with the package, each on its box."""

import fnmatch

import click

from attlas.certificates import FOLDER, make_certificate, write_certificate

ROOT_HALF = "0.7071067811865476"
MANIFOLD = {"lam": "0.05:0.6", "dim": "80:1600", "length": "2:100", "gamma": "0.5:1.2"}
PAPER = {"lam": "0.05:3", "dim": "400", "length": "10", "gamma": ROOT_HALF}
OVERLAPS = dict.fromkeys(("kappa", "nu", "theta", "eta", "rho"), "-1:1")
BOXES: dict[str, list[dict[str, str]]] = {
    "single-location/zeta": [{"t": "-4:4", "spread": s} for s in ("0.1", "0.5", "1", "2")],
    "single-location/closed-form-risk": [
        OVERLAPS | {"lam": "0.5", "dim": "8", "length": "2:100", "gamma": "1.25"},
        OVERLAPS | {"lam": "0.1", "dim": "400", "length": "2:100", "gamma": ROOT_HALF},
    ],
    "single-location/manifold-fixed-points": [MANIFOLD],
    "single-location/critical-lambda": [PAPER, PAPER | {"dim": "80"}, PAPER | {"dim": "1600"}],
    "single-location/swapped-beats-oracle": [
        {"lam": "0.03:0.07", "dim": "390:410", "gamma": "0.6:0.8"}
    ],
    "single-location/corner-rate": [{"lam": "0.1:1", "dim": "100:1600", "gamma": "0.5:1.2"}],
    "sparse-variables/threshold-margin": [{"sparsity": "2:32", "sharpness": "1.1:16"}],
    "sparse-variables/softmax-sharp": [{"weight": "0.01:0.99", "distance": "0.01:4"}],
}


@click.command()
@click.argument("pattern", default="*")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def certify(pattern: str, processes: int) -> None:
    """Write those of the claims that match PATTERN."""
    FOLDER.mkdir(exist_ok=True)
    for claim, boxes in BOXES.items():
        if not fnmatch.fnmatch(claim, pattern):
            continue
        for number, sides in enumerate(boxes, 1):
            box = {n: [text.split(":")[0], text.split(":")[-1]] for n, text in sides.items()}
            made = make_certificate(claim, box, processes)
            path = FOLDER / f"{claim.replace('/', '.')}.{number}.json"
            write_certificate(made, path)
            leaves = made["tree"].count(".")
            click.echo(f"{path.name}: {leaves:,} parts, {made['enclosures']}")


if __name__ == "__main__":
    certify()
