"""`python -m agentkv` is `agentkv`."""

from agentkv.cli import cli

if __name__ == "__main__":  # worker processes import this file without running it
    cli()
