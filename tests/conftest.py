"""What every test gets: checked types and shapes, fixed seeds, one thread, no network."""

import ctypes
import dataclasses
import functools
import gc
import importlib
import inspect
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import hypothesis
import jaxtyping
import numpy as np
import pytest
from beartype import BeartypeConf, FrozenDict, beartype
from beartype.roar import BeartypeDecorHintException
from jaxtyping import AbstractArray, install_import_hook, jaxtyped
from jaxtyping import config as jaxtyping_config

ROOT = Path(__file__).resolve().parent.parent
STORIES = ROOT / "tests" / "stories"
FORKS = ROOT / "tests" / "forks.py"
PR_SET_CHILD_SUBREAPER = 36
# Files, folders and single tests (file::function) that `make quick` leaves out, one a line; `make slow` rewrites them.
SLOW = set((ROOT / "tests" / "slow.txt").read_text().split())

# One thread, here and in every process a test starts: results must not depend on the number of cores.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
# Processes that a test starts are not behind the network guard below.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
# A signature of a test is not made with the key of whoever runs it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="fieldwatch-state-")

# A shell that starts the suite in the background, or nohup, hands on ignored signals, which every process that a test
# starts would inherit: they are tested, so they get their usual handlers back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

hypothesis.settings.register_profile("fieldwatch", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fieldwatch")

# The tower: an int is acceptable as a float, as PEP 484 says. Self is left open: methods are decorated one by one,
# and there beartype cannot know what it stands for. Not random: choosing which item of a list to look at must not draw
# from the random state under test.
CHECKS = BeartypeConf(
    is_pep484_tower=True,
    is_random=False,
    hint_overrides=FrozenDict({Self: object}),
    violation_type=jaxtyping.TypeCheckError,
)
UNCHECKABLE: dict[str, str] = {}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check a function's annotations at every call; tests/contracts fails for those where that is impossible."""
    try:
        return beartype(conf=CHECKS)(function)
    except BeartypeDecorHintException as reason:
        UNCHECKABLE[f"{function.__module__}.{function.__qualname__}"] = str(reason)
        return function


UNMADE: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def at_first_call(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """Take jaxtyped's place: a function's check is made when it is first called.

    To make those of all 5,000 functions takes eight seconds in every process, and a process calls few of them.
    """
    return functools.partial(made_later, typechecker)


def made_later(typechecker: Callable[..., Any], thing: Any) -> Any:
    """Wrap a function, or the __init__ of a dataclass."""
    if isinstance(thing, type):
        if dataclasses.is_dataclass(thing) and getattr(thing.__init__, "__globals__", None) is not globals():
            thing.__init__ = made_later(typechecker, thing.__init__)
        return thing
    made: Callable[..., Any] | None = None
    shaped = False

    @functools.wraps(thing)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal made, shaped
        __tracebackhide__ = True
        if jaxtyping_config.jaxtyping_disable:
            return thing(*args, **kwargs)
        if made is None:
            made, shaped = with_checks(thing, typechecker)
        if not shaped:
            return made(*args, **kwargs)
        with jaxtyped("context"):  # one size for each name of a dimension, in the arguments and in what is returned
            return made(*args, **kwargs)

    UNMADE.add(call)
    return call


def with_checks(function: Callable[..., Any], typechecker: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Return a function with its check, and whether it has to be called in a context of its own for shapes.

    ``jaxtyped`` would do for all, but it makes two checks of every function, and binds and checks the arguments twice
    at every call. It is left to do what beartype does not: to check the arguments of a generator function at the call,
    and to pass over names that only a type checker knows.
    """
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return jaxtyped(function, typechecker=typechecker), False
    try:
        annotations = list(get_type_hints(function, include_extras=True).values())
    except (NameError, TypeError):
        return jaxtyped(function, typechecker=typechecker), False
    shaped = any(isinstance(part, type) and issubclass(part, AbstractArray) for part in parts_of(annotations))
    return typechecker(function), shaped


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yield all that an annotation is made of: ``list[int] | None`` holds ``list[int]``, ``int`` and ``None``."""
    yield annotation
    inner = annotation if isinstance(annotation, list) else get_args(annotation)
    if get_origin(annotation) is Literal:
        inner = ()  # values, not types
    if isinstance(annotation, TypeVar):
        inner = (annotation.__bound__, *annotation.__constraints__)
    for part in inner:
        yield from parts_of(part)


# Every call into fieldwatch is checked against its annotations and tensor shapes; installed before any test imports it.
jaxtyping.jaxtyped = at_first_call  # what the hook writes above every function and class
install_import_hook("fieldwatch", f"{__name__}.checked")


def is_slow(path: Path, function: str | None = None) -> bool:
    """True for a file or a test function that tests/slow.txt names, by itself or by a folder that holds it."""
    if not path.is_relative_to(ROOT / "tests"):
        return False
    place = path.relative_to(ROOT / "tests")
    return f"{place}::{function}" in SLOW or any(str(part) in SLOW for part in (place, *place.parents))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import slow files where they are left out."""
    return True if "not slow" in config.option.markexpr and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the stories: they take longest, and a process that meets one last keeps all others waiting."""
    items.sort(key=lambda item: STORIES not in item.path.parents)
    for item in items:
        if is_slow(item.path, getattr(item, "originalname", None)):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Tell the garbage collector to pass over what all tests share.

    The half million objects of the imported modules take it 0.4 s, each time that code under test calls it.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (the legacy state is global: code under test may read it)
    torch = sys.modules.get("torch")  # not imported here: most rooms' tests run without it
    if torch is not None:
        torch.set_num_threads(1)
        torch.manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the checks off: for a test that hands in a wrong type on purpose, compiles, or recurses deeply.

    Ask for it by ``@pytest.mark.usefixtures("unchecked")``.
    """
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", False)


@pytest.fixture
def check() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Check a function as every function of fieldwatch is."""
    return functools.partial(made_later, checked)


@pytest.fixture
def uncheckable() -> Callable[[], dict[str, str]]:
    """Functions imported so far whose annotations cannot be checked, with beartype's reason."""

    def names() -> dict[str, str]:
        for call in UNMADE:
            with_checks(inspect.unwrap(call), checked)
        return UNCHECKABLE

    return names


def is_local(host: str | bytes | None) -> bool:
    """True for an address that cannot leave this machine."""
    name = host.decode() if isinstance(host, bytes) else host or ""
    return name in {"", "localhost", "::1", "0.0.0.0", socket.gethostname()} or name.startswith("127.")  # noqa: S104


def guarded(original: Callable[..., Any], host_of: Callable[..., str | bytes | None]) -> Callable[..., Any]:
    """Wrap a socket call so that it fails the test where the address is not local."""

    def call(*args: Any, **kwargs: Any) -> Any:
        host = host_of(*args)
        if not is_local(host):
            # Not an Exception: no library can swallow it and try again.
            pytest.fail(f"a test tried to reach {host!r}: tests run without a network; use a file or 127.0.0.1")
        return original(*args, **kwargs)

    return call


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Refuse every connection and name look-up that would leave this machine."""

    def peer(_: socket.socket, address: Any) -> str | None:
        return address[0] if isinstance(address, tuple) else None  # a path: a Unix socket

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, guarded(getattr(socket.socket, name), peer))
        patch.setattr(socket, "getaddrinfo", guarded(socket.getaddrinfo, lambda host, *_: host))
        yield


class Server:
    """The processes that fork: one for scripts, one for the program."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        theirs = [there.fileno() for _, there in pairs]
        command = [sys.executable, str(FORKS), *map(str, theirs)]
        self._process = subprocess.Popen(
            command, pass_fds=theirs, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        )
        for _, there in pairs:
            there.close()
        self._scripts, self._programs = (here for here, _ in pairs)

    def start(
        self, words: Sequence[str], environment: dict[str, str], folder: Path | None = None, *, imported: bool = False
    ) -> "Forked":
        """Run ``python WORDS`` in a process that has imported torch, or the program too."""
        out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115  `Forked` closes them
        order = {"words": words, "environment": environment, "folder": str(folder or Path.cwd())}
        orders = self._programs if imported else self._scripts
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whose parent ends is now a child of this process
        socket.send_fds(orders, [json.dumps(order).encode()], [out.fileno(), err.fileno()])
        pid = int(orders.recv(100) or 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert pid, "the process that forks has ended"
        return Forked(pid, out, err)

    def run(self, words: Sequence[Any], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run ``python WORDS`` to its end, in a process that has imported torch and nothing of ours."""
        process = self.start([*map(str, words)], environment)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def close(self) -> None:
        """End them."""
        self._programs.close()
        self._scripts.close()
        self._process.wait(10)


class Forked:
    """A running program: as much of ``subprocess.Popen`` as the stories need."""

    def __init__(self, pid: int, out, err) -> None:
        self.pid = pid
        self.returncode = None
        self._files = (out, err)

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        """Wait until it ends."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
            time.sleep(0.005)
        return code

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Wait until it ends and return what it printed and what it complained of."""
        self.wait(timeout)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@pytest.fixture
def surroundings() -> dict[str, str]:
    """Environment of a program that is started."""
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


@pytest.fixture(scope="session")
def forks() -> Iterator[Server]:
    """The processes that fork, for as long as this one tests."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start(forks, surroundings) -> Callable[..., Forked]:
    """Start the program as a process of its own, by a fork of one that has imported it."""
    return lambda *arguments, folder=None, environment=surroundings: forks.start(
        ["-m", "fieldwatch", *map(str, arguments)], environment, folder, imported=True
    )


@pytest.fixture
def finish(start) -> Callable[..., tuple[int | None, str, str]]:
    """Run the program to its end and return exit code, output and errors."""

    def run(*arguments, **options):
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    return run


@pytest.fixture
def start_python(forks, surroundings) -> Callable[..., Forked]:
    """Start ``python WORDS``, as a fork that has imported torch and nothing of ours."""
    return lambda *words, folder=None, environment=surroundings: forks.start([*map(str, words)], environment, folder)


@pytest.fixture
def python(start_python) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``python WORDS`` to its end, as a fork that has imported torch and nothing of ours: what came of it."""

    def run(*words, **options):
        process = start_python(*words, **options)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of small real data sets by other people; its README says what they are."""
    return ROOT / "data" / "real"


@pytest.fixture(scope="session")
def benchmark() -> Callable[[str], Any]:
    """Import a program of benchmarks/ by its name, as ``torture.memory``: its short form is a test."""

    def load(name: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(ROOT / "benchmarks"))
            return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The CUDA device; skips where there is none."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device("cuda")


def block_of(columns, *, first=0, stride=1, axis="step", seconds=None, samples=()):
    """Make a block: one recording every ``stride`` steps; on the epoch axis its position counts recordings from 1."""
    record = importlib.import_module("fieldwatch.record")  # after the hook above
    count = max(len(values) for values in columns.values())
    steps = first + stride * np.arange(count)
    positions = 1 + np.arange(count) if axis == "epoch" else steps
    values = np.stack([np.asarray(column, np.float64) for column in columns.values()], axis=1)
    times = 0.1 * (steps + 1.0) if seconds is None else np.asarray(seconds, np.float64)
    return record.Block(
        axis=axis,
        columns=tuple(columns),
        steps=steps.astype(np.int64),
        seconds=times,
        positions=positions.astype(np.int64),
        values=values,
        samples=tuple((name,) for name in samples),
    )


def make_history(*parts, windows=None, events=()):
    """Make a history of parts: columns, or columns with the options of ``block_of``."""
    history = importlib.import_module("fieldwatch.record").History()
    if windows:
        history.add_event({"kind": "windows", "step": 0, "windows": windows})
    for event in events:
        history.add_event(event)
    for part in parts:
        columns, options = part if isinstance(part, tuple) else (part, {})
        history.extend(block_of(columns, **options))
    return history


@pytest.fixture(name="block_of")
def _block_of():
    return block_of


@pytest.fixture(name="make")
def _make():
    """Histories made of real blocks, to plant faults in that a health rule has to find."""
    return make_history


# Metrics that depend on how fast the machine is and on what else it does.
MACHINE_METRICS = ("Time/", "Performance/", "System/", "Machine/", "Memory/", "VRAM/", "Test/render_time_ms")


@pytest.fixture
def repeatable_metrics() -> Callable[[Path], dict[str, tuple[list[float], list[float]]]]:
    """Read the metrics of a run that the same training records again: steps and values by name."""

    def read(folder: Path) -> dict[str, tuple[list[float], list[float]]]:
        history = importlib.import_module("fieldwatch").read_history(folder)
        names = [name for name in history.names() if not name.startswith(MACHINE_METRICS)]
        return {name: (history[name].steps.tolist(), history[name].values.tolist()) for name in names}

    return read
