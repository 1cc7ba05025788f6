"""Cards of notebooks: what comes from a run's names is text, and nothing is loaded or run."""

import re

from fieldwatch.base.cell import LEVELS, Html, card, paragraphs, table

PLANTED = "<img src=http://x onerror=alert(1)>\x1b[31m"


def test_names_are_text():
    page = card(
        PLANTED,
        level="failed",
        label=PLANTED,
        headline=PLANTED,
        facts=[PLANTED],
        parts=[paragraphs([PLANTED, ""]), table([PLANTED], [[PLANTED]])],
    )
    assert page.count("&lt;img src=http://x onerror=alert(1)&gt;\\x1b[31m") == 7
    assert "<img" not in page
    assert "\x1b" not in page


def test_html_made_here_stays_html():
    assert "<td><svg></svg></td>" in table(["a"], [[Html("<svg></svg>")]])


def test_numbers_stand_on_the_right():
    page = table(["a", "b"], [["1", "2"]], numeric=[1])
    assert re.findall(r"<td( class=\"number\")?>", page) == ["", ' class="number"']


def test_every_level_has_a_color_or_the_neutral_one():
    pages = [card("a", level=level, label="l", headline="h") for level in LEVELS]
    colored = [level for level, page in zip(LEVELS, pages, strict=True) if page.count(f".{level}") == 1]
    assert colored == ["healthy", "notes", "findings", "failed", "running"]


def test_a_card_needs_nothing_else():
    page = card("a", level="notes", label="l", headline="h")
    assert re.search(r"https?:|<script|@import|url\(", page) is None
