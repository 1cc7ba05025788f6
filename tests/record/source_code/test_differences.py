"""Lines in which two programs differ."""

from fieldwatch.record.source_code import LineChange, SourceCode, changed_lines

LOOP = "rate = 0.1\n\nfor x in data:\n    loss = f(x)\n    loss.backward()\n"


def changes(before, after, **others):
    earlier = SourceCode(main="train.py", files={"train.py": before, **others})
    return changed_lines(earlier, SourceCode(main="train.py", files={"train.py": after, **others}))


def test_equal_sources_have_none():
    assert changes(LOOP, LOOP, other="x") == []


def test_a_changed_line_is_named_with_its_place():
    found = changes(LOOP, LOOP.replace("0.1", "10"))
    assert found == [LineChange(file="train.py", line=1, was=("rate = 0.1",), now=("rate = 10",))]


def test_a_new_and_a_missing_line():
    assert changes(LOOP, LOOP + "    step()\n") == [LineChange(file="train.py", line=6, was=(), now=("step()",))]
    assert changes(LOOP + "    step()\n", LOOP) == [LineChange(file="train.py", line=5, was=("step()",), now=())]


def test_a_line_that_leaves_the_loop_is_a_change():
    moved = LOOP.replace("    loss.backward()", "loss.backward()")
    assert changes(LOOP, moved) == [
        LineChange(file="train.py", line=5, was=("loss.backward()",), now=("loss.backward()",))
    ]


def test_comments_blank_lines_and_trailing_spaces_are_none():
    assert changes(LOOP, LOOP.replace("\n\n", "  \n\n\n# a comment\n")) == []


def test_the_script_comes_first_and_files_may_be_new_or_gone():
    earlier = SourceCode(main="train.py", files={"a.py": "a = 1\n", "train.py": "x = 1\n"})
    later = SourceCode(main="train.py", files={"b.py": "b = 1\n", "train.py": "x = 2\n"})
    assert [(each.file, each.was, each.now) for each in changed_lines(earlier, later)] == [
        ("train.py", ("x = 1",), ("x = 2",)),
        ("a.py", ("a = 1",), ()),
        ("b.py", (), ("b = 1",)),
    ]
