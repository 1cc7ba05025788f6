"""What the end of a try means: is the scene done, is it worth another try, and why."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from fieldwatch.many.order import TRY_LINE, Ended, Order
from fieldwatch.many.run_folder import run_state
from fieldwatch.monitor import STOPS, signal_name

State = Literal["waiting", "queued", "running", "healthy", "findings", "refused", "diverged", "crashed", "stopped"]
"""How a scene stands; a try ends in one of the last six."""

DONE: Final = frozenset({"healthy", "findings"})
FAILED: Final = frozenset({"refused", "diverged", "crashed"})
_BY_CODE: Final[dict[int, State]] = {0: "healthy", 1: "findings", 2: "refused"}
_TOLD_TO_END: Final = frozenset(128 + number for number in STOPS)
_LAST_BYTES: Final = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Try:
    """One try of a scene, as it ended.

    Attributes:
        number: from 1, over all starts of the driver.
        state: what it came to.
        cause: why, where it did not finish.
        code: exit code, negative for a signal; None where nobody lived to see it.
        seconds: how long it took.
        first: step that it began or went on at; None where it never came that far.
        reached: steps done when it ended; None where none was.
    """

    number: int
    state: State
    cause: str = ""
    code: int | None = None
    seconds: float = 0.0
    first: int | None = None
    reached: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def judge(order: Order, ended: Ended, began: float) -> tuple[State, str]:
    """What a try came to, and why.

    Args:
        order: what was asked for.
        ended: how it ended.
        began: when, in seconds since 1970.
    """
    if ended.code in (0, 1):
        return _BY_CODE[ended.code], ""
    if ended.asked == "stop":
        return "stopped", "" if ended.code in (*_TOLD_TO_END, None) else _cause(order, ended, began)
    if ended.code == 2:
        return "refused", _last_words(order.console)
    if ended.code == 3 and run_state(order.folder) == "diverged":
        return "diverged", _crash_report(order.folder, began) or _last_words(order.console)
    return "crashed", _cause(order, ended, began)


def _cause(order: Order, ended: Ended, began: float) -> str:
    """Why a process ended that did not finish, in one line."""
    if ended.asked == "timeout":
        return f"took longer than its timeout of {order.timeout:g} s"
    if ended.code is None:
        return ended.cause or "nobody lived to see how it ended"
    if ended.code < 0:
        return f"killed by {signal_name(-ended.code)}" + (f": {ended.cause}" if ended.cause else "")
    if ended.code - 128 in STOPS:
        return f"told to end by {signal_name(ended.code - 128)} from elsewhere; it saved"
    words = _crash_report(order.folder, began) or _last_words(order.console)
    return f"exit code {ended.code}: {words}"


def _crash_report(folder: Path, began: float) -> str:
    """The error in the crash report that was written since then; empty without one."""
    reports = [path for path in folder.glob("crash/*/crash.json") if path.stat().st_mtime >= began - 1]
    if not reports:
        return ""
    try:
        report = orjson.loads(max(reports).read_bytes())
    except orjson.JSONDecodeError:
        return ""
    return str(report.get("error", "")) if isinstance(report, dict) else ""


def _last_words(console: Path) -> str:
    """The last line that the process printed."""
    try:
        with console.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "it printed nothing"
    last = next((line.strip() for line in reversed(lines) if line.strip()), TRY_LINE)
    return "it printed nothing" if last.startswith(TRY_LINE) else last
