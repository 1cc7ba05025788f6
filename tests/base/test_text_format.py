"""One table of values and their texts, for Python and for the script of the pages: both format the same strings."""

import json
import math
import random
from importlib.resources import files

import pytest

from fieldwatch.base import duration, mebibytes, moment, nbytes, number, percent
from javascript import printed_by_node

FUNCTIONS = {f.__name__: f for f in (number, nbytes, mebibytes, percent, duration, moment)}
MIB = 2**20
# Function, positional arguments, text. NaN and None are the unknown values of either language.
CASES = [
    ("number", [None], "-"),
    ("number", [math.nan], "-"),
    ("number", [math.inf], "inf"),
    ("number", [-math.inf], "-inf"),
    ("number", [0], "0"),
    ("number", [-0.0], "0"),
    ("number", [1], "1"),
    ("number", [-60000.0], "-60,000"),
    ("number", [123_456_789], "123,456,789"),
    ("number", [1_234_567_890], "1.235e+09"),
    ("number", [0.123456], "0.1235"),
    ("number", [0.123456, 3], "0.123"),
    ("number", [0.125, 2], "0.13"),
    ("number", [2.5, 1], "3"),
    ("number", [33.04, 3], "33"),
    ("number", [999.96], "1,000"),
    ("number", [123_456.7], "123,457"),
    ("number", [1_234_567.8], "1.235e+06"),
    ("number", [0.0001], "0.0001"),
    ("number", [1.234567e-7], "1.235e-07"),
    ("number", [-9.99996e-6, 5], "-1e-05"),
    ("number", [1e-300], "1e-300"),
    ("nbytes", [None], "-"),
    ("nbytes", [math.nan], "-"),
    ("nbytes", [0], "0 B"),
    ("nbytes", [512], "512 B"),
    ("nbytes", [1023], "1,023 B"),
    ("nbytes", [1024], "1.0 KiB"),
    ("nbytes", [1536], "1.5 KiB"),
    ("nbytes", [MIB - 1], "1.0 MiB"),
    ("nbytes", [-20 * MIB], "-20.0 MiB"),
    ("nbytes", [2**30 * 2.46, 2], "2.46 GiB"),
    ("nbytes", [2**30, 1, "MiB"], "1,024.0 MiB"),
    ("nbytes", [2**63], "8.0 EiB"),
    ("mebibytes", [None], "-"),
    ("mebibytes", [463.4], "463.4 MiB"),
    ("mebibytes", [23_316.0], "22.8 GiB"),
    ("mebibytes", [0.25], "256.0 KiB"),
    ("mebibytes", [23_316.04, 1, "MiB"], "23,316.0 MiB"),
    ("percent", [None], "-"),
    ("percent", [math.nan], "-"),
    ("percent", [0.1234], "12.3%"),
    ("percent", [-0.5], "-50.0%"),
    ("percent", [0.125, 0], "13%"),
    ("percent", [12.5], "1,250.0%"),
    ("duration", [None], "-"),
    ("duration", [math.nan], "-"),
    ("duration", [math.inf], "inf"),
    ("duration", [0], "0 s"),
    ("duration", [12e-6], "12 us"),
    ("duration", [0.0123], "12.3 ms"),
    ("duration", [0.99996], "1 s"),
    ("duration", [4.5], "4.5 s"),
    ("duration", [59.97], "1 min"),
    ("duration", [123], "2 min 3 s"),
    ("duration", [-123.4], "-2 min 3 s"),
    ("duration", [3599.7], "1 h"),
    ("duration", [4810], "1 h 20 min"),
    ("duration", [86_399], "1 d"),
    ("duration", [183_600], "2 d 3 h"),
    ("moment", [None], "-"),
    ("moment", [0], "-"),
    ("moment", [1e15], "-"),
    ("moment", [1_700_000_000.9], "2023-11-14 22:13:20 UTC"),
    ("moment", ["2026-01-01T00:00:00+00:00"], "2026-01-01 00:00:00 UTC"),
    ("moment", ["2026-01-01T00:30:00.123456+02:00"], "2025-12-31 22:30:00 UTC"),
    ("moment", ["2026-01-01 07:05Z"], "2026-01-01 07:05:00 UTC"),
    ("moment", ["2026-01-01T07:05:09"], "2026-01-01 07:05:09 UTC"),
    ("moment", ["2026-13-01T07:05:09"], "2026-13-01T07:05:09"),
    ("moment", ["soon"], "soon"),
    ("moment", [""], "-"),
]
_SCRIPT = """
const functions = { number, nbytes, mebibytes, percent, duration, moment };
const value = (v) => (v && v.special ? Number(v.special) : v);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([name, values]) => functions[name](...values.map(value)))));
"""


def in_python(name, values):
    positional = values[:2]
    keywords = {}
    if name in ("nbytes", "mebibytes") and len(values) > 2:
        keywords = {"unit": values[2]}
    return FUNCTIONS[name](*positional, **keywords)


def in_javascript(cases, timezone="UTC"):
    """Return the texts of the pages' script for ``[(function, arguments), ...]``."""
    names = {math.inf: "Infinity", -math.inf: "-Infinity"}
    special = [
        [
            name,
            [{"special": names.get(v, "NaN")} if isinstance(v, float) and not math.isfinite(v) else v for v in values],
        ]
        for name, values in cases
    ]
    script = (files("fieldwatch.report.page") / "assets" / "text_format.js").read_text("utf-8") + _SCRIPT
    return json.loads(printed_by_node(script, given=json.dumps(special), timezone=timezone))


@pytest.mark.parametrize(("name", "values", "text"), CASES)
def test_python_formats_the_table(name, values, text):
    assert in_python(name, values) == text


@pytest.mark.parametrize("timezone", ["UTC", "Asia/Tokyo"])
def test_the_script_of_the_pages_formats_the_table(timezone):
    texts = in_javascript([(name, values) for name, values, _ in CASES], timezone)
    assert [(*case, found) for case, found in zip(CASES, texts, strict=True) if case[2] != found] == []


def test_both_agree_on_random_values():
    chance = random.Random(1)
    values = [chance.choice((-1, 1)) * 10 ** chance.uniform(-9, 14) for _ in range(2000)]
    # Halves are ties of the rounding.
    values += [chance.randrange(10**7) / 2 ** chance.randrange(12) for _ in range(2000)]
    cases = [(name, [v]) for v in values for name in ("number", "nbytes", "mebibytes", "percent", "duration")]
    cases += [("number", [v, 3]) for v in values]
    found = in_javascript(cases)
    expected = [in_python(*case) for case in cases]
    assert [row for row in zip(cases, expected, found, strict=True) if row[1] != row[2]] == []


def test_a_sign_is_shown_where_it_is_asked_for():
    assert number(0.5, signed=True) == "+0.5"
    assert number(0, signed=True) == "0"
    assert number(-0.5, signed=True) == "-0.5"
    assert mebibytes(12.34, signed=True) == "+12.3 MiB"
    assert percent(0.05, signed=True) == "+5.0%"
