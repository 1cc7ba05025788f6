"""Ends of a training: by a signal to itself, or to a fork of the tests' process."""

import os
import signal

import torch


def same(one, other):
    """Return whether two modules have the same parameters, to the bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def interrupt(_, loss):
    """Ask the process to end, within a step; return the loss."""
    os.kill(os.getpid(), signal.SIGTERM)
    return loss


def kill(*_):
    """End the process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def signal_that_ended(training):
    """Train in a fork, which has imported everything; return the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            training()
        finally:
            os._exit(1)
    return os.WTERMSIG(os.waitpid(child, 0)[1])
