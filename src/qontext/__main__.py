"""`python -m qontext` is the `qontext` command."""

from qontext.cli import main

main()
