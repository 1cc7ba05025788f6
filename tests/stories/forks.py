"""The process that forks the program for the stories (`conftest.py`): ``python forks.py DESCRIPTOR``.

A fork takes milliseconds where a new process takes 4 s to import. It is a process of its own, with its own signals,
descriptors, environment and random state; only what a fork inherits, as its heap, is not to be looked at there.
This one does no tensor work, so that no thread of a pool is missing in its children.
"""

import gc
import importlib
import json
import os
import random
import runpy
import socket
import sys

IMPORTED = (
    "torch._dynamo",
    "fieldwatch.recon.commands.video.job",
    "fieldwatch.recon.commands.splats.job",
    "fieldwatch.cli.resume",
)
MESSAGE = 1 << 20


def forked(orders: socket.socket) -> list[str]:
    """Fork for every order; return in the children only, with the words of their command line."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, MESSAGE, 2)
        if not text:
            os._exit(0)
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


def prepared(order: dict, descriptors: list[int]) -> list[str]:
    """Make a child what a new process would be; returns the words of its command line."""
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    random.seed()
    importlib.import_module("numpy.random").seed()
    return order["arguments"]


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or every child would copy every page that holds an object, to look whether it is garbage
    words = forked(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[1:] = words
    runpy.run_module("fieldwatch", run_name="__main__", alter_sys=True)
