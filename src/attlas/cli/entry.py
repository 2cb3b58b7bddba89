"""The command `attlas`: its verbs, and what it says and returns when something goes wrong."""

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from typing import NoReturn

import click

from attlas import __version__
from attlas.cli.atlas import write_pages
from attlas.cli.audit import audit_models
from attlas.cli.certify import certify_claim
from attlas.cli.claims import cite_sources, list_claims, run_claims, show_claim
from attlas.cli.doctor import examine
from attlas.cli.export import export_claim
from attlas.cli.refute import refute_claim
from attlas.cli.running import end_interrupted
from attlas.cli.sweep import sweep_claim
from attlas.cli.verify import verify_evidence
from attlas.errors import InputError, WorkersLost
from attlas.escaping import printable

EXIT_USAGE, EXIT_BUG, EXIT_LOST = 2, 70, 75
MOST_LETTERS = 4000
"""Of the sentence that says what is wrong with the input."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="attlas")
def commands() -> None:
    """The atlas of attention theory that runs: every theorem a claim, checked against simulation,
    with a verdict."""


for verb in (
    write_pages,
    audit_models,
    certify_claim,
    cite_sources,
    examine,
    export_claim,
    list_claims,
    refute_claim,
    run_claims,
    show_claim,
    sweep_claim,
    verify_evidence,
):
    commands.add_command(verb)


def main() -> None:
    """Run the command line; turn what can go wrong into one sentence and an exit code."""
    try:
        commands.main(prog_name="attlas", standalone_mode=False)
    except InputError as error:
        _fail(printable(error, MOST_LETTERS), EXIT_USAGE)
    except click.exceptions.NoArgsIsHelpError as error:  # no verb: its message is the help
        click.echo(error.format_message(), err=True)
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        _fail(error.format_message().replace("\n", " "), EXIT_USAGE)
    except WorkersLost as error:
        _fail(str(error), EXIT_LOST)
    except (KeyboardInterrupt, click.exceptions.Abort):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        end_interrupted()
    except BrokenPipeError:  # the reader of the answers has gone, as in `attlas list | head`
        os._exit(0)  # an orderly exit would flush, and raise again
    except Exception as error:  # noqa: BLE001 - a bug is reported with its traceback in a file
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _fail("The disk is full.", EXIT_USAGE)
        what = f"A bug, in Attlas or in a claim file: {type(error).__name__}: {error}."
        _fail(f"{what} The traceback is in {_write_traceback(error)}.", EXIT_BUG)


def _write_traceback(error: Exception) -> str:
    handle, name = tempfile.mkstemp(prefix="attlas-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    return name


def _fail(sentence: str, code: int) -> NoReturn:
    click.echo(f"attlas: {sentence}", err=True)
    sys.exit(code)
