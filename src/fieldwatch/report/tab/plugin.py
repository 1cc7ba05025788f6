"""TensorBoard plugin of the tab: a few fixed routes, answered from the cache of accounts."""

# TensorBoard has no type stubs, and the inferred return types of its base class are narrower than what it accepts.
# pyright: basic, reportIncompatibleMethodOverride=false

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import orjson
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from fieldwatch.report.page import panels_script, panels_style, text_script
from fieldwatch.report.tab.account_cache import AccountCache, CachedAccount
from fieldwatch.report.tab.comparison import side_by_side_account
from fieldwatch.report.tab.folders import FoundRun, roots_of

REQUEST_TIMEOUT: Final = 2.0
"""Seconds that a request waits for a run to be read; the page then shows "reading" and asks again."""
MOST_COMPARED: Final = 12
"""Maximum number of runs in a comparison; lines of more runs could not be told apart."""
_ASSETS: Final = ("index.js", "elements.js", "host.js", "runs.js", "timeline.js", "tab.css")
_MEDIA_TYPES: Final = {"js": "text/javascript", "css": "text/css"}

WsgiApp = Callable[..., Any]


class TabPlugin(base_plugin.TBPlugin):
    """The tab "fieldwatch".

    Args:
        context: log folders and flags of TensorBoard.
    """

    plugin_name = "fieldwatch"

    def __init__(self, context: base_plugin.TBContext) -> None:
        flags = context.flags
        self.cache = AccountCache(roots_of(context.logdir or "", getattr(flags, "logdir_spec", "") or ""))

    def get_plugin_apps(self) -> dict[str, WsgiApp]:
        """Return the function that answers each route; no part of a request is ever used as a path."""
        answers = {"/runs": self._runs, "/account": self._account, "/comparison": self._comparison}
        pages = {f"/{name}": _static(content, name) for name, content in assets().items()}
        return pages | {route: _app(answer) for route, answer in answers.items()}

    def is_active(self) -> bool:
        """Return whether there is a run to show, or the first search is still running."""
        # TensorBoard asks while it builds its list of tabs, so a long search must not delay it.
        search_result = self.cache.search_result(timeout=0.3)
        return search_result is None or bool(search_result.runs)

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the name of the tab and its script."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="fieldwatch")

    def data_plugin_names(self) -> tuple[str, ...]:
        """Return nothing: the tab reads run folders, not the data of TensorBoard."""
        return ()

    def _runs(self, request: Request) -> Response:
        """Answer with all runs; those requested with ``run=`` (repeated) also have the version of their account."""
        search_result = self.cache.search_result(REQUEST_TIMEOUT)
        if search_result is None:
            return _json(request, {"searching": True, "note": "", "runs": []})
        requested = set(request.args.getlist("run"))
        runs = [_run_facts(self.cache, run, run.id in requested) for run in search_result.runs]
        return _json(request, {"searching": False, "note": search_result.note, "runs": runs})

    def _account(self, request: Request) -> Response:
        """Answer with the account of ``run=``.

        If ``since=`` is its version, the answer only says that it is unchanged. With ``brief=``, curves are left out.
        """
        run = self._run_named(request.args.get("run", ""))
        if run is None:
            return _refused(request)
        cached = self.cache.account(run, REQUEST_TIMEOUT)
        if cached is None:
            return _json(request, {"reading": True}, 202)
        if cached.version == request.args.get("since"):
            return _json(request, {"unchanged": True, "version": cached.version})
        account = _brief(cached.account) if "brief" in request.args else cached.account
        return _json(request, {"version": cached.version, "error": cached.error, "account": account})

    def _comparison(self, request: Request) -> Response:
        """Answer with one account for several runs, and the errors of those that cannot be read."""
        requested = request.args.getlist("run")
        # One more than allowed is looked up, so that too many runs are refused without looking up thousands.
        runs = [run for run in map(self._run_named, requested[: MOST_COMPARED + 1]) if run is not None]
        if not 2 <= len(runs) == len(requested) <= MOST_COMPARED:
            return _refused(request)
        answers = [(run, self.cache.account(run, REQUEST_TIMEOUT)) for run in runs]
        # All or none: a comparison that grows run by run would redraw every chart each time.
        if any(cached is None for _, cached in answers):
            return _json(request, {"reading": True}, 202)
        version = "+".join(cached.version for _, cached in answers if cached is not None)
        if version == request.args.get("since"):
            return _json(request, {"unchanged": True, "version": version})
        return _json(request, {"version": version, **_side_by_side(answers)})

    def _run_named(self, id_or_name: str) -> FoundRun | None:
        """Return the run with an id or a name, after the first search."""
        self.cache.search_result(REQUEST_TIMEOUT)
        return self.cache.run(id_or_name)


def assets() -> Mapping[str, bytes]:
    """Return the files that the page may load, by name; no other file is served."""
    folder = files("fieldwatch.report.tab") / "assets"
    # The pages embed the formatting functions as a plain script; the tab imports them as a module.
    formatting = f"{text_script()}\nexport {{ number }};\n"
    shared = {"panels.js": panels_script(), "panels.css": panels_style(), "text_format.js": formatting}
    return {name: (folder / name).read_bytes() for name in _ASSETS} | {
        name: text.encode() for name, text in shared.items()
    }


def _brief(account: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the parts of an account that the timeline of findings draws; None without an account."""
    return account and {name: account[name] for name in ("run", "verdict", "findings", "phases")}


def _side_by_side(answers: list[tuple[FoundRun, CachedAccount | None]]) -> dict[str, Any]:
    known = [(run, cached) for run, cached in answers if cached is not None]
    errors = {run.name: cached.error for run, cached in known if cached.error}
    accounts = {run.name: cached.account for run, cached in known if cached.account is not None}
    return {"errors": errors, "account": side_by_side_account(accounts) if len(accounts) > 1 else None}


def _run_facts(cache: AccountCache, run: FoundRun, with_version: bool) -> dict[str, Any]:  # noqa: FBT001  one caller, in this file
    facts: dict[str, Any] = {"id": run.id, "name": run.name, "events": run.events, "folder": str(run.folder)}
    facts["changed"] = run.changed
    # A version costs several calls of stat(), so only the chosen runs have one.
    return facts | {"version": cache.version(run)} if with_version else facts


def _static(content: bytes, name: str) -> WsgiApp:
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return _app(lambda request: http_util.Respond(request, content, media_type))


def _app(answer: Callable[[Request], Response]) -> WsgiApp:
    """Return a WSGI application that answers GET requests and refuses all others."""

    def guarded(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _json(request, {"error": f"expected a GET request, got {request.method}"}, 405)
        return answer(request)

    return Request.application(guarded)


def _refused(request: Request) -> Response:
    """Answer a request for unknown runs, or for too few or too many."""
    # Not repeating the name, which may be anything.
    error = f"no such run: expected run= to be an id from /runs, and 2 to {MOST_COMPARED} of them for a comparison"
    return _json(request, {"error": error}, 404)


def _json(request: Request, content: Mapping[str, Any], code: int = 200) -> Response:
    try:
        body = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # a file name that is not UTF-8, which json escapes and orjson refuses
        body = json.dumps(content, ensure_ascii=True).encode()
    return http_util.Respond(request, body, "application/json", code)
