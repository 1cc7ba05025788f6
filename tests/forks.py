"""The processes that fork programs for the tests (`conftest.py`): ``python forks.py DESCRIPTOR DESCRIPTOR``.

A fork takes milliseconds where a new process takes 4 s to import. It is a process of its own, with its own signals,
descriptors, environment and random state; only what a fork inherits, as its heap, is not to be looked at there.
The first descriptor takes orders for forks that have imported libraries, and of our source nothing: for scripts, which
import it themselves. The second takes those for forks that have imported the program too.
None does tensor work, so that no thread of a pool is missing in its children.
"""

import gc
import importlib
import json
import os
import random
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

LIBRARIES = ("torch._dynamo", "scipy.spatial")
PROGRAM = (
    "fieldwatch.recon.commands.video.job",
    "fieldwatch.recon.commands.splats.job",
    "fieldwatch.cli.resume",
)
MESSAGE = 1 << 20


def forked(orders: socket.socket, imported: Sequence[str]) -> list[str]:
    """Fork for every order; return in the children only, with the words that stand behind ``python``."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, MESSAGE, 2)
        if not text:
            os._exit(0)
        import_once(imported)
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if not child:
                os.close(reader)
                os.close(writer)
                orders.close()
                return prepared(json.loads(text), descriptors)
            os.write(writer, str(child).encode())
            os._exit(0)  # the tests' process becomes the parent of the child
        os.waitpid(between, 0)
        orders.send(os.read(reader, 100))
        for descriptor in (reader, writer, *descriptors):
            os.close(descriptor)


def import_once(names: Sequence[str]) -> None:
    """Import what all children share, at the first order."""
    if all(name in sys.modules for name in names):
        return
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or every child would copy every page that holds an object, to look whether it is garbage


def prepared(order: dict, descriptors: list[int]) -> list[str]:
    """Make a child what a new process would be."""
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    random.seed()
    importlib.import_module("numpy.random").seed()
    return order["words"]


def run_as_python_does(words: list[str], path: list[str]) -> None:
    """Run ``-m MODULE``, ``-c CODE`` or a script, with its arguments; ``path`` is where Python itself looks."""
    kind, rest = (words[0], words[1:]) if words[0] in ("-m", "-c") else ("", words)
    sys.argv[:] = [kind or rest[0], *rest[1:]]
    first = {"-m": str(Path.cwd()), "-c": ""}.get(kind, str(Path(rest[0]).resolve().parent))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), sys.modules["__main__"].__dict__)  # noqa: S102
    else:
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    of_scripts, of_programs = (socket.socket(fileno=int(word)) for word in sys.argv[1:])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    python_path = [place for place in sys.path[1:] if place not in own]
    import_once(LIBRARIES)
    if os.fork():
        of_programs.close()
        words = forked(of_scripts, LIBRARIES)
    else:
        of_scripts.close()
        words = forked(of_programs, PROGRAM)
    run_as_python_does(words, python_path)
