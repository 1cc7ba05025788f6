"""Escape untrusted text for terminals and spreadsheets."""

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: object, keep: str = "\n\t") -> str:
    r"""Return a text without characters that control a terminal.

    Tags, events, rules and file names of a run or a dataset may come from untrusted sources. Control characters (which
    start escape sequences), marks that change the direction of text, and lone surrogates are replaced by Python escapes
    (``\x1b``); everything else is kept.

    Args:
        text: text to print.
        keep: control characters to keep.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char in keep or _is_harmless(char) else _escape(char) for char in text)


def spreadsheet_cell(value: object) -> object:
    """Return a value for a CSV file that no spreadsheet interprets as a formula.

    A text that starts with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return could be a formula, and is prefixed
    by an apostrophe. Numbers, including those formatted as text, are kept; None becomes an empty string.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_harmless(char: str) -> bool:
    # Python calls all spaces but one unprintable, though they are safe.
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
