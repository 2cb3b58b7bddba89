"""The command line.

Answers go to stdout, progress and notes to stderr. Heavy imports happen inside the verbs, so that
`attlas --help` answers at once.
"""

from attlas.cli.entry import main

__all__ = ["main"]
