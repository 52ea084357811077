"""`python -m gramary` is the `gramary` command."""

from gramary.cli import main

main()
