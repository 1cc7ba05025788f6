"""Only one class prints to terminals: it shows foreign text, and does not obey it."""

import ast

PLACE = "record/terminal.py"


def test_nobody_makes_a_console_of_rich_s_own(sources):
    made = [
        f"{source.place}:{node.lineno}"
        for source in sources
        if source.place != PLACE
        for node in ast.walk(source.tree)
        if (
            isinstance(node, ast.Call)
            and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
            in {"RichConsole", "get_console"}
        )
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Console"
            and any(
                isinstance(found, ast.ImportFrom)
                and found.module == "rich.console"
                and any(name.name == "Console" and name.asname is None for name in found.names)
                for found in ast.walk(source.tree)
            )
        )
    ]
    assert made == [], (
        "use fieldwatch.record.Terminal, which shows escape sequences of strangers instead of sending them"
    )
