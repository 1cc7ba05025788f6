// The tab: a list of runs, and the panels of the chosen ones, which are redrawn whenever the files of a run have changed.

import { make } from "./elements.js";
import { address, connect, onReload } from "./host.js";
import { Runs } from "./runs.js";
import { timeline } from "./timeline.js";

const INTERVAL = 5000; // milliseconds between two requests to the server
const SHORT_INTERVAL = 1000; // the same while the server is still reading
const COMPARISON = "comparison";

/** Entry point, which TensorBoard calls once. */
export async function render() {
  connect();
  const tab = new Tab();
  document.title = "fieldwatch";
  document.documentElement.lang = "en";
  document.body.classList.add("fwt");
  document.addEventListener("click", followAnchor);
  applyTheme();
  document.body.replaceChildren(tab.runs.element, tab.main);
  await Promise.all([style("panels.css"), style("tab.css"), script("panels.js")]);
  onReload(() => tab.refresh());
  tab.requested = address().run?.split(",").map(decodeURIComponent) ?? [];
  await tab.refreshForever();
}

/** Follow links within the page; TensorBoard's <base> would make the browser leave it. */
function followAnchor(event) {
  const link = event.target.closest?.('a[href^="#"]');
  const target = link && document.getElementById(link.getAttribute("href").slice(1));
  if (!target) return;
  event.preventDefault();
  target.scrollIntoView();
  if (target.tabIndex >= -1) target.focus({ preventScroll: true });
}

/** Return TensorBoard's theme, "light" or "dark"; "light" outside of TensorBoard. */
function theme() {
  const outer = window.parent === window ? null : window.frameElement?.ownerDocument.body;
  return outer?.classList.contains("dark-mode") ? "dark" : "light";
}

function applyTheme() {
  document.body.dataset.theme = theme();
}

function style(name) {
  return load(make("link", { rel: "stylesheet", href: new URL(name, import.meta.url).href }));
}

function script(name) {
  return load(make("script", { src: new URL(name, import.meta.url).href }));
}

function load(element) {
  const loaded = new Promise((resolve, reject) => {
    element.addEventListener("load", resolve);
    element.addEventListener("error", () => reject(new Error(`${element.src || element.href} could not be loaded`)));
  });
  document.head.append(element);
  return loaded;
}

async function request(route, fields) {
  const url = new URL(route, import.meta.url);
  for (const [name, value] of fields) url.searchParams.append(name, value);
  const response = await fetch(url);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? `TensorBoard answered with status ${response.status}`);
  return answer;
}

class Tab {
  constructor() {
    this.runs = new Runs(() => this.refresh());
    this.requested = []; // runs named in the address, until the server has listed some
    this.briefs = new Map(); // by id of each chosen run: verdict, findings and phases
    this.answers = new Map(); // by view that was opened: the account that its panels show
    this.view = null;
    this.drawn = "";
    this.refreshing = Promise.resolve();
    this.views = make("div", { class: "fwt-views", role: "tablist", "aria-label": "Runs and comparison" });
    this.state = make("p", { class: "fwt-state", role: "status" });
    this.findings = make("div");
    this.panels = make("div", { role: "tabpanel" });
    this.roots = new Map(); // one element per view, which keeps what was opened, zoomed or sorted in it
    this.main = make("div", { class: "fwt-main" }, make("div", { class: "fwt-head" }, this.views, this.state), this.findings, this.panels);
  }

  /** Refresh again and again while the page is visible. */
  async refreshForever() {
    for (;;) {
      // TensorBoard keeps the iframe of a hidden tab, with a width of 0.
      const visible = !document.hidden && document.documentElement.clientWidth > 0;
      const pause = visible ? await this.refresh() : INTERVAL;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  /** Fetch and draw what has changed, after a refresh that is under way; returns the pause before the next one. */
  refresh() {
    this.refreshing = this.refreshing.then(() => this.#refresh());
    return this.refreshing;
  }

  async #refresh() {
    try {
      const answer = await request("runs", this.runs.chosen.map((id) => ["run", id]));
      this.runs.update(answer, this.requested);
      if (answer.runs.length) this.requested = [];
      const busy = answer.searching || (await this.#fetchChanges(new Map(answer.runs.map((run) => [run.id, run.version]))));
      // In local time, unlike the times of a run, since readers compare it with their clock.
      this.#showState(busy ? "reading" : `as of ${new Date().toLocaleTimeString()}`);
      return busy ? SHORT_INTERVAL : INTERVAL;
    } catch (error) {
      this.#showState(`no answer: ${error.message}`, true);
      return INTERVAL;
    }
  }

  /** Fetch the changes of the chosen runs and of the view; returns whether the server is still reading. */
  async #fetchChanges(versions) {
    const { chosen } = this.runs;
    const views = chosen.length > 1 ? [COMPARISON, ...chosen] : chosen;
    if (!views.includes(this.view)) this.view = views[0] ?? null;
    for (const map of [this.briefs, this.answers, this.roots]) {
      for (const name of [...map.keys()]) if (!views.includes(name)) map.delete(name);
    }
    let busy = false;
    for (const id of chosen) busy = (await this.#fetch(this.briefs, id, "account", [id], versions.get(id), [["brief", "1"]])) || busy;
    // The comparison needs every run, so it is not requested while one is still being read.
    if (this.view === COMPARISON && !busy) busy = await this.#fetch(this.answers, COMPARISON, "comparison", chosen, this.#versions(chosen));
    else if (this.view && this.view !== COMPARISON) busy = (await this.#fetch(this.answers, this.view, "account", [this.view], versions.get(this.view))) || busy;
    this.#draw(views);
    return busy;
  }

  #versions(ids) {
    return ids.map((id) => this.briefs.get(id)?.version).join("+");
  }

  /** Fetch an answer into `map`, unless it has this version already; returns whether the server is still reading. */
  async #fetch(map, name, route, ids, version, more = []) {
    // The same view may be of other runs than before.
    const key = ids.join();
    const known = map.get(name)?.key === key ? map.get(name) : null;
    if (known && version && known.version === version) return false;
    const since = known ? [["since", known.version]] : [];
    const answer = await request(route, [...ids.map((id) => ["run", id]), ...since, ...more]);
    if (!answer.reading && !answer.unchanged) map.set(name, { ...answer, key });
    return Boolean(answer.reading);
  }

  #showState(text, bad = false) {
    this.state.textContent = text;
    this.state.classList.toggle("bad", bad);
  }

  #draw(views) {
    applyTheme();
    const versions = views.map((name) => `${name} ${this.briefs.get(name)?.version} ${this.runs.name(name)}`);
    const content = [this.view, this.answers.get(this.view)?.version, document.body.dataset.theme, ...versions].join("\n");
    if (content === this.drawn) return;
    this.drawn = content;
    this.#drawViews(views);
    this.#drawFindings();
    this.#drawPanels();
  }

  #drawViews(views) {
    const buttons = views.map((name) => make("button", {
      type: "button", role: "tab", text: name === COMPARISON ? "Comparison" : this.runs.name(name),
      "aria-selected": String(name === this.view), on: { click: () => this.#show(name) },
    }));
    const focused = [...this.views.children].indexOf(document.activeElement);
    this.views.replaceChildren(...buttons);
    buttons[focused]?.focus();
  }

  #show(name) {
    this.view = name;
    const chosen = this.runs.chosen;
    // At once, with what is known; the refresh adds what is missing.
    this.#draw(chosen.length > 1 ? [COMPARISON, ...chosen] : chosen);
    this.refresh();
  }

  #drawFindings() {
    const entries = [...this.briefs].map(([id, { account }]) => ({ id, name: this.runs.name(id), account })).filter((entry) => entry.account);
    this.findings.replaceChildren(...(entries.length ? [timeline(entries, (id) => this.#show(id))] : []));
  }

  #drawPanels() {
    const answer = this.answers.get(this.view);
    const errors = answer ? [answer.error, ...Object.entries(answer.errors ?? {}).map(([name, why]) => `${name}: ${why}`)] : [];
    const messages = errors.filter(Boolean).map((text) => make("p", { class: "fwt-error", text }));
    if (!this.roots.has(this.view)) this.roots.set(this.view, make("div", { class: this.view === COMPARISON ? "comparison" : null }));
    const root = this.roots.get(this.view);
    // Not replaced by itself: an element that is taken out of the document loses focus and scroll position.
    if (this.panels.lastChild !== root) this.panels.replaceChildren(root);
    while (this.panels.firstChild !== root) this.panels.firstChild.remove();
    root.before(...messages);
    root.hidden = !answer?.account;
    if (answer?.account) globalThis.fieldwatch.draw(root, answer.account, { theme: document.body.dataset.theme });
    // Tests wait for this attribute.
    document.body.dataset.drawn = answer ? `${this.view} ${answer.version}` : "";
  }
}
