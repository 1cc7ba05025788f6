"""The command line: one program, ``fieldwatch``. The only room that knows tyro."""

from fieldwatch.cli.entry import main

__all__ = ["main"]
