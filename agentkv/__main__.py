"""`python -m agentkv` is `agentkv`."""

from importlib import import_module

if __name__ == "__main__":  # worker processes import this file without running it
    import_module("agentkv_tasks.cli.app").cli()  # by name: the library depends on no command
