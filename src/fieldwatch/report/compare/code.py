"""Lines in which the source of two runs differs."""

from collections.abc import Mapping, Sequence

from fieldwatch.record.source_code import changed_lines, read_source_code
from fieldwatch.report.compare.keys import ABSENT
from fieldwatch.report.compare.side import Side


def code_differences_of(sides: Sequence[Side]) -> dict[str, Mapping[str, object]]:
    """Return the lines that differ between two runs, by file and line of the second one, with the text of each.

    A text of several lines has line breaks. Empty if there are not two runs, or the source of one is not known.
    """
    if len(sides) != 2:
        return {}
    first, second = sides
    # What another program wrote has no source of ours.
    earlier, later = (read_source_code(side.folder) if side.kind == "fieldwatch" else None for side in sides)
    if earlier is None or later is None:
        return {}
    return {
        f"{change.file}:{change.line}": {
            first.name: "\n".join(change.was) or ABSENT,
            second.name: "\n".join(change.now) or ABSENT,
        }
        for change in changed_lines(earlier, later)
    }
