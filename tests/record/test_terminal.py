"""Untrusted text is printed with its control sequences escaped."""

import io

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from fieldwatch.record import Terminal

HOSTILE = "Loss/\x1b]0;owned\x07\x1b[31mred\x9b2J\r[link=https://evil.example]x[/link] [/nothing] :smile:"


def printed(*things, **options):
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=True, width=300, color_system="truecolor", **options)
    for thing in things:
        terminal.print(thing, soft_wrap=True, highlight=False)
    return out.getvalue()


def table():
    made = Table(title=HOSTILE)
    made.add_column(HOSTILE)
    made.add_row(HOSTILE)
    return made


@pytest.mark.parametrize("thing", [HOSTILE, Text(HOSTILE), table()], ids=["string", "text", "table"])
def test_escapes_markup_and_links_of_strangers_are_shown(thing):
    said = printed(thing)  # rich itself drops the bell and the carriage return
    assert all(one not in said for one in ("\x1b]", "\x1b[31m", "\x07", "\x9b", "\r", "\x1b]8"))
    assert "\\x1b]0;owned\\x1b[31mred\\x9b2J[link=https://evil.example]x[/link] [/nothing] :smile:" in said


def test_styles_of_ours_stay():
    assert "\x1b[1m" in printed(Text("bold", "bold"))
    out = io.StringIO()
    Terminal(file=out, force_terminal=True).print("[bold]ours[/]", markup=True)
    assert "\x1b[1mours" in out.getvalue()


def test_progress_bars_still_move_the_cursor():
    out = io.StringIO()
    with Progress("{task.description}", console=Terminal(file=out, force_terminal=True)) as progress:
        progress.advance(progress.add_task("a\x1bMb", total=2))
        progress.refresh()
    assert "\x1bM" not in out.getvalue()
    assert "\x1b[?25l" in out.getvalue()
