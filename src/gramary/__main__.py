"""`python -m gramary` is the `gramary` command."""

from gramary.cli import main

if __name__ == "__main__":
    main()
