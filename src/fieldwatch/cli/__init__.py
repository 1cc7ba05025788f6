"""The command line: one program, ``fieldwatch``. The only room that knows tyro."""

from fieldwatch.cli.main import main

__all__ = ["main"]
