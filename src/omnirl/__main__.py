"""`python -m omnirl` is the `omnirl` command."""

from omnirl.cli.main import main

main()
