"""Foreign text on a terminal and in a spreadsheet: shown, not obeyed."""

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: object, keep: str = "\n\t") -> str:
    r"""Return a text in which nothing is left that a terminal would obey.

    Tags, events, rules and file names of a run or a data set may come from anywhere. Control characters (escape
    sequences start with one), marks that change the direction of text, and lone surrogates are shown as Python writes
    them (``\x1b``); everything else stays as it is.

    Args:
        text: what is to be printed.
        keep: control characters that may stay.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char in keep or _is_harmless(char) else _escape(char) for char in text)


def spreadsheet_cell(value: object) -> object:
    """Return what to write into a cell or header of a CSV file, such that a spreadsheet takes text for text.

    A text that starts with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return could be a formula: it gets an
    apostrophe in front of it. Numbers, also those that are written as text, stay as they are; None becomes empty.
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
    # Python calls all spaces but one unprintable; they do no harm.
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
