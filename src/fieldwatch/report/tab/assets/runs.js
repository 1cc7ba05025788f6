// The list of runs, each with a box to choose it.

import { make } from "./elements.js";

const KEPT = "fieldwatch.chosen";

/** The list; `changed` is called when the choice of the reader is another one. */
export class Runs {
  constructor(changed) {
    this.changed = changed;
    this.all = [];
    this.chosen = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
    this.shown = "";
    this.filter = make("input", {
      type: "search", placeholder: "filter", "aria-label": "Filter runs by name", on: { input: () => this.#draw() },
    });
    this.list = make("ul", { class: "fwt-list" });
    this.note = make("p", { class: "fwt-quiet", role: "status" });
    this.element = make("nav", { class: "fwt-runs", "aria-label": "Runs" },
      make("h2", { text: "Runs" }), this.filter, this.list, this.note);
  }

  /** Take the server's list; where nothing was ever chosen, the run that went on last is. */
  take(told, wanted) {
    this.note.textContent = told.searching ? "looking for runs" : told.note || (told.runs.length ? "" : "no run found here");
    if (told.searching) return;
    this.all = told.runs;
    const there = new Set(this.all.map((run) => run.id));
    const before = this.chosen.join();
    const named = this.all.filter((run) => wanted.includes(run.name) || wanted.includes(run.id)).map((run) => run.id);
    if (named.length) this.chosen = named;
    this.chosen = this.chosen.filter((id) => there.has(id));
    if (!this.chosen.length && this.all.length) this.chosen = [this.all.reduce((last, run) => (run.changed > last.changed ? run : last)).id];
    this.#draw();
    if (this.chosen.join() !== before) this.#keep();
  }

  name(id) {
    return this.all.find((run) => run.id === id)?.name ?? id;
  }

  #keep() {
    sessionStorage.setItem(KEPT, JSON.stringify(this.chosen));
    this.changed();
  }

  #choose(id, on) {
    this.chosen = this.all.map((run) => run.id).filter((other) => (other === id ? on : this.chosen.includes(other)));
    this.#keep();
  }

  #draw() {
    const sought = this.filter.value.toLowerCase();
    const runs = this.all.filter((run) => run.name.toLowerCase().includes(sought));
    const now = JSON.stringify([runs.map((run) => [run.id, run.name]), this.chosen]);
    if (now === this.shown) return;
    this.shown = now;
    const focused = document.activeElement?.value;
    this.list.replaceChildren(...runs.map((run) => this.#entry(run)));
    if (this.list.children.length && focused) this.list.querySelector(`input[value="${CSS.escape(focused)}"]`)?.focus();
  }

  #entry(run) {
    const box = make("input", {
      type: "checkbox", value: run.id, checked: this.chosen.includes(run.id),
      on: { change: (event) => this.#choose(run.id, event.target.checked) },
    });
    const title = `${run.folder} (in TensorBoard's own list: ${run.events})`;
    return make("li", {}, make("label", { title }, box, make("span", { text: run.name })));
  }
}
