"""The verb `certify`: what intervals prove of a claim, on boxes of its parameters."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from attlas.cli import options
from attlas.cli.printing import STYLES, print_json, stderr, stdout
from attlas.cli.progress import share_progress
from attlas.cli.running import interruptible
from attlas.errors import InputError

EXIT_NOT_CERTIFIED = 1


@click.command("certify")
@click.argument("claim")
@click.option(
    "--box",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="A side of the box; a parameter without one has the claim's own first value.",
)
@click.option("--out", type=options.FILE, help="Write the certificate to a file (.json).")
@click.option("--check", "file", type=options.FILE, help="Check the certificate in a file.")
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="That prove parts of the box at the same time.",
)
@options.json_option
def certify_claim(
    claim: str,
    box: Sequence[str],
    out: str | None,
    file: str | None,
    processes: int,
    as_json: bool,
) -> None:
    """Prove the statement of CLAIM on a box of parameters by interval arithmetic.

    Without --box, the certificates of CLAIM that come with the package are checked; with --check,
    that in a file. Exit code: 0 certified, 1 a certificate was refused, 2 bad input or not proved,
    130 interrupted.
    """
    from attlas import certificates
    from attlas.lab.grids import parse_grid

    id = options.find_entry(claim, ()).id
    written = options.check_writable("out", out, (".json",))
    certificates.need_flint()
    if box and file:
        raise InputError("--box and --check: a certificate is either made or checked")
    if out and not box:
        raise InputError("--out needs --box: it is where a new certificate goes")
    found: list[Any]
    if box:
        own = options.find_entry(claim, ()).quick
        sides = certificates.parse_box(id, parse_grid(box), own)
        with interruptible() as check, share_progress(as_json) as report:

            def progress(share: float) -> None:
                check()
                report(share)

            found = [certificates.make_certificate(id, sides, processes, progress)]
        if written:
            certificates.write_certificate(found[0], written)
    elif file:
        found = [certificates.read_certificate(Path(file))]
    else:
        found = certificates.shipped_certificates(id)
        if not found:
            from attlas.certificates.checker import STATEMENTS

            provable = id in STATEMENTS
            rest = "make one with --box" if provable else "intervals prove no statement of it"
            raise InputError(f"{id} has no certificate in the package: {rest}")
    sys.exit(print_certificates(id, found, as_json))


def print_certificates(id: str, found: list[Any], as_json: bool) -> int:
    """Check certificates and print what they prove; the exit code."""
    from attlas import certificates

    answers: list[dict[str, Any]] = []
    for certificate in found:
        refused = certificates.refusal(certificate, id)
        word = "refused" if refused else "certified"
        shown = {} if refused else {key: certificate[key] for key in ("box", "enclosures", "words")}
        answers.append({"verdict": word, "reason": refused, **shown})
    if as_json:
        print_json({"claim": id, "certificates": answers})
    else:
        console = stdout()
        for certificate, answer in zip(found, answers, strict=True):
            style = STYLES["refuted" if answer["reason"] else "certified"]
            console.print(f"[{style}]{answer['verdict']:<10}[/] [bold]{id}[/]")
            if answer["reason"]:
                stderr().print(f"{' ' * 11}{answer['reason']}", markup=False)
                continue
            indent = 11 * " "
            console.print(f"{indent}{answer['words']}", markup=False)
            console.print(f"{indent}On the box {certificates.said_box(certificate)}.", markup=False)
            for name, (low, high) in answer["enclosures"].items():
                console.print(f"{indent}{name}: from {low} to {high}", markup=False)
    return EXIT_NOT_CERTIFIED if any(answer["reason"] for answer in answers) else 0
