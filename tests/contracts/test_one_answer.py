"""How a run stands is decided in one module; nobody else looks at its process or believes run.json's word."""

import ast

DECIDES = "monitor/run_state.py"
ALLOWED = {
    DECIDES: "decides",
    "cli/resume.py": "asks run.json only whether the run asked to be left alone",
    "run/start.py": "writes it",
}
BOOT = "/proc/sys/kernel/random/boot_id"


def believes_run_json(tree):
    """Lines that read ``state`` of a manifest."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "state":
            owner = node.value
            called = owner.func if isinstance(owner, ast.Call) else owner
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if "manifest" in name:
                yield node.lineno


def looks_for_a_process(tree):
    """Lines that ask when a process was born: whoever does judges whether a run's process lives."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "create_time")
    return [node.lineno for node in names]


def texts(tree):
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_a_second_answer_is_seen():
    second = "a = read_manifest(folder).state\nb = manifest.state == 'running'"
    assert list(believes_run_json(ast.parse(second))) == [1, 2]
    assert looks_for_a_process(ast.parse("psutil.Process(3).create_time() < 4")) == [1]


def test_only_one_module_decides_how_a_run_stands(sources):
    found = {one.place for one in sources if list(believes_run_json(one.tree)) or looks_for_a_process(one.tree)}
    assert found - ALLOWED.keys() == set()
    assert DECIDES in found


def test_the_boot_is_named_by_one_function(sources):
    assert [one.place for one in sources if BOOT in texts(one.tree)] == ["monitor/black_box.py"]
