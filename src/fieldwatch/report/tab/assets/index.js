// The tab: a list of runs, and for those that are chosen their panels, drawn again whenever their files have changed.

import { make } from "./elements.js";
import { address, connect, onReload } from "./host.js";
import { Runs } from "./runs.js";
import { timeline } from "./timeline.js";

const EVERY = 5000; // milliseconds between two looks at the server
const SOON = 1000; // while it still reads
const COMPARISON = "comparison";

/** What TensorBoard calls once. */
export async function render() {
  connect();
  const tab = new Tab();
  document.title = "fieldwatch";
  document.documentElement.lang = "en";
  document.body.classList.add("fwt");
  document.addEventListener("click", within);
  paint();
  document.body.replaceChildren(tab.runs.element, tab.main);
  await Promise.all([style("panels.css"), style("tab.css"), script("panels.js")]);
  onReload(() => tab.look());
  tab.wanted = address().run?.split(",").map(decodeURIComponent) ?? [];
  await tab.go();
}

/** Links to places of the page: TensorBoard's <base> would send them elsewhere. */
function within(event) {
  const link = event.target.closest?.('a[href^="#"]');
  const place = link && document.getElementById(link.getAttribute("href").slice(1));
  if (!place) return;
  event.preventDefault();
  place.scrollIntoView();
  if (place.tabIndex >= -1) place.focus({ preventScroll: true });
}

/** TensorBoard's own choice of light or dark; "light" where it cannot be seen. */
function theme() {
  const outer = window.parent === window ? null : window.frameElement?.ownerDocument.body;
  return outer?.classList.contains("dark-mode") ? "dark" : "light";
}

function paint() {
  document.body.dataset.theme = theme();
}

function style(name) {
  return loaded(make("link", { rel: "stylesheet", href: new URL(name, import.meta.url).href }));
}

function script(name) {
  return loaded(make("script", { src: new URL(name, import.meta.url).href }));
}

function loaded(element) {
  const done = new Promise((settle, refuse) => {
    element.addEventListener("load", settle);
    element.addEventListener("error", () => refuse(new Error(`${element.src || element.href} did not load`)));
  });
  document.head.append(element);
  return done;
}

async function ask(route, fields) {
  const url = new URL(route, import.meta.url);
  for (const [name, value] of fields) url.searchParams.append(name, value);
  const answer = await fetch(url);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error ?? `TensorBoard answers ${answer.status}`);
  return told;
}

class Tab {
  constructor() {
    this.runs = new Runs(() => this.look());
    this.wanted = [];
    this.briefs = new Map(); // of every chosen run, by its id: verdict, findings, phases
    this.known = new Map(); // of every view that was looked at: what its panels show
    this.view = null;
    this.drawn = "";
    this.looking = Promise.resolve();
    this.views = make("div", { class: "fwt-views", role: "tablist", "aria-label": "What is shown" });
    this.state = make("p", { class: "fwt-state", role: "status" });
    this.findings = make("div");
    this.panels = make("div", { role: "tabpanel" });
    this.roots = new Map(); // an element per view: what a reader opened, zoomed or sorted there stays
    this.main = make("div", { class: "fwt-main" }, make("div", { class: "fwt-head" }, this.views, this.state), this.findings, this.panels);
  }

  /** Look at the server for ever, unless nobody looks at the page. */
  async go() {
    for (;;) {
      const seen = !document.hidden && document.documentElement.clientWidth > 0;
      const pause = seen ? await this.look() : EVERY;
      await new Promise((settle) => setTimeout(settle, pause));
    }
  }

  /** Look once, after the look that is under way; what is new is drawn. The pause that is due then is returned. */
  look() {
    this.looking = this.looking.then(() => this.#look());
    return this.looking;
  }

  async #look() {
    try {
      const told = await ask("runs", this.runs.chosen.map((id) => ["run", id]));
      this.runs.take(told, this.wanted);
      if (told.runs.length) this.wanted = [];
      const busy = told.searching || (await this.#read(new Map(told.runs.map((run) => [run.id, run.version]))));
      this.#say(busy ? "reading" : `as of ${new Date().toLocaleTimeString()}`);
      return busy ? SOON : EVERY;
    } catch (error) {
      this.#say(`no answer: ${error.message}`, true);
      return EVERY;
    }
  }

  /** Fetch what has changed of the chosen runs and of the view; whether something is still being read. */
  async #read(versions) {
    const { chosen } = this.runs;
    const views = chosen.length > 1 ? [COMPARISON, ...chosen] : chosen;
    if (!views.includes(this.view)) this.view = views[0] ?? null;
    for (const map of [this.briefs, this.known, this.roots]) {
      for (const name of [...map.keys()]) if (!views.includes(name)) map.delete(name);
    }
    let busy = false;
    for (const id of chosen) busy = (await this.#fetch(this.briefs, id, "account", [id], versions.get(id), [["brief", "1"]])) || busy;
    if (this.view === COMPARISON && !busy) busy = await this.#fetch(this.known, COMPARISON, "comparison", chosen, this.#versions(chosen));
    else if (this.view && this.view !== COMPARISON) busy = (await this.#fetch(this.known, this.view, "account", [this.view], versions.get(this.view))) || busy;
    this.#draw(views);
    return busy;
  }

  #versions(ids) {
    return ids.map((id) => this.briefs.get(id)?.version).join("+");
  }

  /** Fetch one thing unless its version is the one that is known; whether it is still being read. */
  async #fetch(map, name, route, ids, version, more = []) {
    const key = ids.join();
    const known = map.get(name)?.key === key ? map.get(name) : null;
    if (known && version && known.version === version) return false;
    const since = known ? [["since", known.version]] : [];
    const told = await ask(route, [...ids.map((id) => ["run", id]), ...since, ...more]);
    if (!told.reading && !told.unchanged) map.set(name, { ...told, key });
    return Boolean(told.reading);
  }

  #say(text, bad = false) {
    this.state.textContent = text;
    this.state.classList.toggle("bad", bad);
  }

  #draw(views) {
    paint();
    const versions = views.map((name) => `${name} ${this.briefs.get(name)?.version} ${this.runs.name(name)}`);
    const now = [this.view, this.known.get(this.view)?.version, document.body.dataset.theme, ...versions].join("\n");
    if (now === this.drawn) return;
    this.drawn = now;
    this.#drawViews(views);
    this.#drawFindings();
    this.#drawPanels();
  }

  #drawViews(views) {
    const named = views.map((name) => make("button", {
      type: "button", role: "tab", text: name === COMPARISON ? "Comparison" : this.runs.name(name),
      "aria-selected": String(name === this.view), on: { click: () => this.#show(name) },
    }));
    const focused = [...this.views.children].indexOf(document.activeElement);
    this.views.replaceChildren(...named);
    named[focused]?.focus();
  }

  #show(name) {
    this.view = name;
    const chosen = this.runs.chosen;
    this.#draw(chosen.length > 1 ? [COMPARISON, ...chosen] : chosen);
    this.look();
  }

  #drawFindings() {
    const entries = [...this.briefs].map(([id, { account }]) => ({ id, name: this.runs.name(id), account })).filter((entry) => entry.account);
    this.findings.replaceChildren(...(entries.length ? [timeline(entries, (id) => this.#show(id))] : []));
  }

  #drawPanels() {
    const known = this.known.get(this.view);
    const errors = known ? [known.error, ...Object.entries(known.errors ?? {}).map(([name, why]) => `${name}: ${why}`)] : [];
    const told = errors.filter(Boolean).map((text) => make("p", { class: "fwt-error", text }));
    if (!this.roots.has(this.view)) this.roots.set(this.view, make("div", { class: this.view === COMPARISON ? "beside" : null }));
    const root = this.roots.get(this.view);
    if (this.panels.lastChild !== root) this.panels.replaceChildren(root);
    while (this.panels.firstChild !== root) this.panels.firstChild.remove();
    root.before(...told);
    root.hidden = !known?.account;
    if (known?.account) globalThis.fieldwatch.draw(root, known.account, { theme: document.body.dataset.theme });
    document.body.dataset.drawn = known ? `${this.view} ${known.version}` : "";
  }
}
