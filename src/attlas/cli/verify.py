"""The verb `verify`: a part of the evidence that comes with the package, measured again."""

import contextlib
import math
import random
import sys
import tempfile
from collections.abc import Sequence

import click

from attlas.cli import options
from attlas.cli.printing import print_json, stderr
from attlas.cli.running import EXIT_UNDECIDED, run_all
from attlas.errors import InputError


@click.command("verify")
@click.argument("patterns", nargs=-1)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="The part that is measured again.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    help="Which part that is. [default: another each time, and told]",
)
@options.json_option
def verify_evidence(patterns: Sequence[str], share: float, seed: int | None, as_json: bool) -> None:
    """Measure a random part of the evidence at the paper's scale that comes with the package, or of
    what matches PATTERNS, once more, and compare.

    It agrees if verdict and control are the same and values differ by 1e-6 of themselves at most,
    where networks are trained means by 1e-2 (docs/sharp-bits.md). What other code has measured is
    named and left out.

    Exit code: 0 all agree, 1 something differs or cannot be read, 2 bad input, 3 nothing could be
    verified, since all that was chosen is stale or needs what is not there, 130 interrupted.
    """
    from attlas.lab import compile_quickly

    compile_quickly()

    from attlas.lab import shipped

    claims = [c for c in options.select_claims(patterns, ()) if shipped.shipped_path(c).exists()]
    if not claims:
        among = f"no claim that matches {' '.join(map(repr, patterns))}" if patterns else "no claim"
        raise InputError(f"{among} has evidence at the paper's scale in the package")
    damaged: list[str] = []
    read = [shipped.read_shipped(claim, damaged) for claim in claims]
    known = {found.result.claim.id: found for found in read if found}
    stale = [id for id, found in known.items() if found.stale]
    current = [id for id in known if id not in stale]
    seed = random.randrange(2**31) if seed is None else seed
    if not share > 0:
        raise InputError(f"--share {share}: it must be a number above 0 and at most 1")
    chosen = random.Random(seed).sample(current, math.ceil(share * len(current)))
    if not as_json:
        for line in (*damaged, *(f"{id} is stale, and left out: make evidence" for id in stale)):
            stderr().print(line, markup=False)
        part = f"{len(chosen)} of {len(current)}"
        seconds = sum(known[id].result.spent for id in chosen)
        stderr().print(f"Measuring {part} again (--seed {seed}), {seconds:.0f} s when shipped.")
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="attlas-verify-") as folder:
        store = options.open_store(folder)
        for first in sorted({known[id].result.seed for id in chosen}):
            alike = [known[id].result.claim for id in chosen if known[id].result.seed == first]
            run_options = {"scale": "paper", "seed": first, "min_for_processes": 2}
            with contextlib.closing(run_all(alike, store, as_json, **run_options)) as results:
                for result in results:
                    id = result.claim.id
                    if result.verdict.word == "not run":
                        stderr().print(f"{id} is left out: {result.verdict.reason}", markup=False)
                        continue
                    found[id] = shipped.differences(known[id], result)
                    if not as_json:
                        click.echo(f"{id}: {'; '.join(found[id]) or 'agrees'}")
    differ = sum(map(bool, found.values()))
    if as_json:
        print_json({"seed": seed, "verified": found, "stale": stale, "damaged": damaged})
    else:
        left = [f"{len(stale)} stale"] * bool(stale) + [f"{len(damaged)} damaged"] * bool(damaged)
        click.echo(", ".join([f"{len(found) - differ} agree", f"{differ} differ", *left]))
    if not found:
        stderr().print("Nothing was verified: none of it is current, or needs are not met.")
    sys.exit(1 if differ or damaged else 0 if found else EXIT_UNDECIDED)
