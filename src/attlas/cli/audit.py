"""The verb `audit`: the theory's quantities on a real checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from attlas.cli import options
from attlas.cli.printing import print_json
from attlas.cli.progress import stages
from attlas.errors import InputError
from attlas.escaping import printable


@click.command("audit")
@click.argument("models", nargs=-1, required=True, metavar="MODEL [OTHER]")
@click.option(
    "--text",
    type=options.FILE,
    help="A text to read to the model, one example a line. [default: a neutral one]",
)
@click.option(
    "--tokens",
    type=options.FILE,
    help="Token ids instead, one example a line: for a model without tokenizer.",
)
@click.option(
    "--labels",
    type=options.FILE,
    help="Texts to probe every layer on: a label, a tab and a text on each line.",
)
@click.option(
    "--probes",
    type=click.Choice(["none", "quick", "paper"]),
    default="quick",
    show_default=True,
    help="The sentences of Marion et al. 2025: none, some hundreds, or all.",
)
@click.option(
    "--map",
    type=options.FILE,
    help="A table of names (TOML or JSON) for an architecture that is not known, or the name of a"
    ' known one for a part of a model, such as "T5 decoder".',
)
@click.option(
    "--config", type=options.FILE, help="A config.json, where none lies beside the weights."
)
@click.option(
    "--out", type=options.FILE, help="The page to write. [default: audit.html, none with --json]"
)
@click.option(
    "--atlas",
    type=options.FOLDER,
    help="The folder of an atlas, to whose claims, guides and explorers the page then links.",
)
@options.seed_option
@options.json_option
def audit_models(
    models: Sequence[str], out: str | None, atlas: str | None, as_json: bool, **run_options: Any
) -> None:
    """The theory's quantities on a real checkpoint: a folder, a .safetensors, .gguf or .bin file,
    or package:NAME.

    With OTHER, another checkpoint of the same model, the two are compared, as before and after
    fine-tuning.
    """
    if len(models) > 2:
        raise InputError(
            f"{len(models)} models are named: an audit is of one, or of two to compare"
        )
    if atlas is not None and not (Path(atlas) / "index.html").is_file():
        raise InputError(f"--atlas {atlas} has no atlas: `attlas atlas --out {atlas}` writes one")
    path = options.check_writable("out", out or (None if as_json else "audit.html"), (".html",))
    from attlas.audit.auditing import audit_model, compare
    from attlas.audit.page import write_page

    options.open_store(None)  # for JAX's compilation cache in it
    with stages(as_json) as report:

        def audit(model: str) -> Any:
            shown = printable(model)
            return audit_model(
                model, progress=lambda stage: report(f"{shown}: {stage}"), **run_options
            )

        found = [audit(model) for model in models]
        difference = compare(*found) if len(found) == 2 else None
        if path is not None:
            report(f"writing {path}")
            write_page(found, path, None if atlas is None else Path(atlas))
    if as_json:
        content: dict[str, Any] = {"audits": [each.to_dict() for each in found]}
        print_json(content | ({} if difference is None else {"difference": difference.to_dict()}))
        return
    sentences = []
    for each in found:
        if len(found) > 1:
            click.echo(f"{printable(each.name)}:")
        for answer in each.answers:
            click.echo(answer)
    for each in found:
        sentences += [*each.summary, *(f"Left out: {reason}" for reason in each.skipped)]
    if difference is not None:
        sentences += difference.summary
    for sentence in sentences:
        click.echo(f"- {sentence}")
    click.echo(path)
