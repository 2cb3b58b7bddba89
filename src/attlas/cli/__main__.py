"""`python -m attlas.cli` is `attlas`."""

from attlas.cli.entry import main

main()
