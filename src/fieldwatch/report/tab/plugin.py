"""The tab as TensorBoard's plugin: a few fixed routes, answered from what the shelf has read."""

# TensorBoard has no type stubs, and what its base class returns by itself narrows what a plugin may.
# pyright: basic, reportIncompatibleMethodOverride=false

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import orjson
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from fieldwatch.report.page import panels_script, panels_style
from fieldwatch.report.tab.account_cache import AccountCache, CachedAccount
from fieldwatch.report.tab.comparison import side_by_side_account
from fieldwatch.report.tab.folders import FoundRun, roots_of

PATIENCE: Final = 2.0
"""Seconds that a request waits for a reading; the page then says that it is being read, and asks again."""
MOST_COMPARED: Final = 12
_OWN: Final = ("index.js", "elements.js", "host.js", "runs.js", "timeline.js", "tab.css")
_KINDS: Final = {"js": "text/javascript", "css": "text/css"}

WsgiApp = Callable[..., Any]


class TabPlugin(base_plugin.TBPlugin):
    """The tab "fieldwatch".

    Args:
        context: what TensorBoard was told to show.
    """

    plugin_name = "fieldwatch"

    def __init__(self, context: base_plugin.TBContext) -> None:
        flags = context.flags
        self.cache = AccountCache(roots_of(context.logdir or "", getattr(flags, "logdir_spec", "") or ""))

    def get_plugin_apps(self) -> dict[str, WsgiApp]:
        """Return what answers which route. Nothing of a request is ever taken for a path."""
        answers = {"/runs": self._runs, "/account": self._account, "/comparison": self._comparison}
        pages = {f"/{name}": _static(content, name) for name, content in assets().items()}
        return pages | {route: _app(answer) for route, answer in answers.items()}

    def is_active(self) -> bool:
        """Whether there is a run to show; a search that takes longer than a blink goes on by itself."""
        found = self.cache.search_result(patience=0.3)
        return found is None or bool(found.runs)

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the tab's name and its script."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="fieldwatch")

    def data_plugin_names(self) -> tuple[str, ...]:
        """Return nothing: the tab reads runs, no event files."""
        return ()

    def _runs(self, request: Request) -> Response:
        """All runs, and of those that are asked for (``run=``, several times) the version of their files."""
        found = self.cache.search_result(PATIENCE)
        if found is None:
            return _json(request, {"searching": True, "note": "", "runs": []})
        asked = set(request.args.getlist("run"))
        told = [_run_facts(self.cache, run, run.id in asked) for run in found.runs]
        return _json(request, {"searching": False, "note": found.note, "runs": told})

    def _account(self, request: Request) -> Response:
        """The account of ``run=``; where ``since=`` is its version, only that it is; with ``brief=`` without curves."""
        run = self._named(request.args.get("run", ""))
        if run is None:
            return _refused(request)
        answer = self.cache.account(run, PATIENCE)
        if answer is None:
            return _json(request, {"reading": True}, 202)
        if answer.version == request.args.get("since"):
            return _json(request, {"unchanged": True, "version": answer.version})
        account = _brief(answer.account) if "brief" in request.args else answer.account
        return _json(request, {"version": answer.version, "error": answer.error, "account": account})

    def _comparison(self, request: Request) -> Response:
        """Several runs as one account; those that cannot be read are told beside it."""
        asked = request.args.getlist("run")
        runs = [run for run in map(self._named, asked[: MOST_COMPARED + 1]) if run is not None]
        if not 2 <= len(runs) == len(asked) <= MOST_COMPARED:
            return _refused(request)
        answers = [(run, self.cache.account(run, PATIENCE)) for run in runs]
        reading = [run.name for run, answer in answers if answer is None]
        if reading:
            return _json(request, {"reading": True}, 202)
        version = "+".join(answer.version for _, answer in answers if answer is not None)
        if version == request.args.get("since"):
            return _json(request, {"unchanged": True, "version": version})
        return _json(request, {"version": version, **_side_by_side(answers)})

    def _named(self, asked: str) -> FoundRun | None:
        """Return the run of an id or a name, after the first search."""
        self.cache.search_result(PATIENCE)
        return self.cache.run(asked)


def assets() -> Mapping[str, bytes]:
    """Return the files that the page may load, by the only names it may load them by."""
    own = files("fieldwatch.report.tab") / "assets"
    drawing = {"panels.js": panels_script().encode(), "panels.css": panels_style().encode()}
    return {name: (own / name).read_bytes() for name in _OWN} | drawing


def _brief(account: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return account and {name: account[name] for name in ("run", "verdict", "findings", "phases")}


def _side_by_side(answers: list[tuple[FoundRun, CachedAccount | None]]) -> dict[str, Any]:
    errors = {run.name: answer.error for run, answer in answers if answer is not None and answer.error}
    read = {run.name: answer.account for run, answer in answers if answer is not None and answer.account is not None}
    return {"errors": errors, "account": side_by_side_account(read) if len(read) > 1 else None}


def _run_facts(shelf: AccountCache, run: FoundRun, with_version: bool) -> dict[str, Any]:  # noqa: FBT001  one caller, in this file
    told: dict[str, Any] = {"id": run.id, "name": run.name, "events": run.events, "folder": str(run.folder)}
    told["changed"] = run.changed
    return told | {"version": shelf.version(run)} if with_version else told


def _static(content: bytes, name: str) -> WsgiApp:
    kind = _KINDS[name.rpartition(".")[2]]
    return _app(lambda request: http_util.Respond(request, content, kind))


def _app(answer: Callable[[Request], Response]) -> WsgiApp:
    def guarded(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _json(request, {"error": f"only GET is answered here, not {request.method}"}, 405)
        return answer(request)

    return Request.application(guarded)


def _refused(request: Request) -> Response:
    error = (
        "no such run, or not as many as can be shown: give run= an id from /runs "
        f"(2 to {MOST_COMPARED} of them to compare)"
    )
    return _json(request, {"error": error}, 404)


def _json(request: Request, told: Mapping[str, Any], code: int = 200) -> Response:
    try:
        content = orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # a name that is no text (Linux allows any bytes): escaped, character by character
        content = json.dumps(told, ensure_ascii=True).encode()
    return http_util.Respond(request, content, "application/json", code)
