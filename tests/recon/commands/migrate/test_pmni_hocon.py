"""The HOCON of PMNI's files: values and their lines, and one clear message for what is not read."""

import pytest

from fieldwatch.recon.commands.migrate.pmni_hocon import ConfError, read_conf


@pytest.fixture
def conf(tmp_path):
    """Read a text as a file; what it says by key."""

    def read(text, **how):
        path = tmp_path / "a.conf"
        path.write_text(text, encoding="utf-8")
        return read_conf(path, **how)

    return read


def values(conf):
    return {name: entry.value for name, entry in conf.entries.items()}


def test_blocks_lists_comments_and_all_kinds_of_values(conf):
    text = """
    general {
        base = ./exp/CASE_NAME   # a comment
        list = [
            ./,
            ./models  // another
        ]
        empty = []
        numbers = [0, -1, 2.5]
    }
    encoding{
        otype=HashGrid,
\t\tn_levels=14
\t\tscale=1.3195079107728942
    }
    train { rate = 1e-3, whole : 3, point = .5, yes = True, no = false, none = null, text = "1 = \\"2\\" # 3" }
    """
    assert values(conf(text, object_name="bear")) == {
        "general.base": "./exp/bear",
        "general.list": ["./", "./models"],
        "general.empty": [],
        "general.numbers": [0, -1, 2.5],
        "encoding.otype": "HashGrid",
        "encoding.n_levels": 14,
        "encoding.scale": 1.3195079107728942,
        "train.rate": 1e-3,
        "train.whole": 3,
        "train.point": 0.5,
        "train.yes": True,
        "train.no": False,
        "train.none": None,
        "train.text": '1 = "2" # 3',
    }


def test_every_value_knows_its_line(conf):
    found = conf("a = 1\n\nb {\n  c = [\n 2\n]\n  d = x y\n}\n").entries
    assert {name: entry.line for name, entry in found.items()} == {"a": 1, "b.c": 4, "b.d": 7}
    assert found["b.d"].value == "x y"


@pytest.mark.parametrize(
    "text", ["{ a.b = 1 }", "a { b = 1 }", "a.b : 1", "a = { b = 1 }", "a\n{\nb = 1,\n}", '"a".b=1']
)
def test_a_key_is_the_same_however_it_is_written(conf, text):
    assert values(conf(text)) == {"a.b": 1}


def test_a_mark_of_byte_order_and_dos_line_ends_are_skipped(tmp_path):
    path = tmp_path / "dos.conf"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = x\r\n")
    assert values(read_conf(path)) == {"a": 1, "b": "x"}


def test_the_later_value_counts_and_the_earlier_one_is_told(conf):
    found = conf("a { b = 1\n c = 2 }\na { b = 3 }\ne = null\ne { f = 4 }\ng { h = 5 }\ng = 6")
    assert values(found) == {"a.c": 2, "a.b": 3, "e.f": 4, "g": 6}
    assert found.replaced == {"a.b": 1, "e": 4, "g.h": 6}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a {\n b = 1\n", 1, "the block that opens here is never closed"),
        ("a = 1\nb = [1,\n2", 2, "the list of b is never closed"),
        ("a = 1\nhello world", 2, "'world' after hello: expected hello = VALUE, or hello {"),
        ("]", 1, "is not the name of a setting"),
        ("a = 1\n}", 2, "is not the name of a setting"),
        ("{ a = 1 } b = 2", 1, "after the closing brace of all settings"),
        ("a = 1 = 2", 1, "'= 2' after a value: put it on a new line"),
        ('a = "x" y', 1, "'y' after a value"),
        ("a = \n", 2, "the end of the file is not a value for a"),
        ("a = ,", 1, "is not a value for a"),
        ("a = [1 {]", 1, "separate the values by commas"),
        ("a = [[1]]", 1, "is not a value for a"),
        ('a = "\\q"', 1, "has an invalid escape"),
        ('a = """x"""', 1, "opens a multi-line string for a"),
        ("a = ${HOME}", 1, "is a substitution, which is not supported: write the value of a"),
        ("a = x${b}", 1, "'${b}' after a value"),
        ("a += 3", 1, "appends to a, which is not supported: write the whole list"),
        ('a = 1\ninclude "b.conf"', 2, "belongs to an include, which is not supported: copy the other file's settings"),
        ("include file(b)", 1, "belongs to an include"),
        ("\x00\x01", 1, "is not the name of a setting"),
        ('{"a": 1, "b": [1, 2], "c" 3}', 1, "'3}' after c: expected c = VALUE"),
        ("a {" * 30, 1, "at most 20 nested blocks, got 21"),
    ],
)
def test_what_is_not_read_is_named_with_its_line(conf, tmp_path, text, line, said):
    with pytest.raises(ConfError) as refusal:
        conf(text)
    assert str(refusal.value).startswith(f"{tmp_path / 'a.conf'}:{line}: ")
    assert said in str(refusal.value)


def test_json_is_hocon(conf):
    assert values(conf('{"a": 1, "b": {"c": [1, 2], "d": "e"}}')) == {"a": 1, "b.c": [1, 2], "b.d": "e"}


def test_what_is_no_text_file_is_refused(tmp_path):
    (tmp_path / "picture.conf").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ConfError, match="is not a text"):
        read_conf(tmp_path / "picture.conf")
    for path in (tmp_path, tmp_path / "none.conf"):
        with pytest.raises(ConfError, match=r"--conf .*\.conf files"):
            read_conf(path)


def test_a_setting_may_be_called_include(conf):
    assert values(conf("include = 3")) == {"include": 3}
