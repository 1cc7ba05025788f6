// List of the runs, each with a checkbox to choose it.

import { make } from "./elements.js";

const STORAGE_KEY = "fieldwatch.chosen";

/** The list; it calls `onChange` when other runs are chosen. */
export class Runs {
  constructor(onChange) {
    this.onChange = onChange;
    this.all = [];
    this.chosen = JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "[]");
    this.drawn = "";
    this.filter = make("input", {
      type: "search", placeholder: "filter", "aria-label": "Filter runs by name", on: { input: () => this.#draw() },
    });
    this.list = make("ul", { class: "fwt-list" });
    this.note = make("p", { class: "fwt-quiet", role: "status" });
    this.element = make("nav", { class: "fwt-runs", "aria-label": "Runs" },
      make("h2", { text: "Runs" }), this.filter, this.list, this.note);
  }

  /** Update the list with an answer of the server. Without a choice, the run with the latest change is chosen. */
  update(answer, requested) {
    this.note.textContent = answer.searching ? "searching for runs" : answer.note || (answer.runs.length ? "" : "no runs found");
    if (answer.searching) return;
    this.all = answer.runs;
    const ids = new Set(this.all.map((run) => run.id));
    const before = this.chosen.join();
    // Runs named in the address come before the stored choice.
    const named = this.all.filter((run) => requested.includes(run.name) || requested.includes(run.id)).map((run) => run.id);
    if (named.length) this.chosen = named;
    this.chosen = this.chosen.filter((id) => ids.has(id));
    if (!this.chosen.length && this.all.length) this.chosen = [this.all.reduce((latest, run) => (run.changed > latest.changed ? run : latest)).id];
    this.#draw();
    if (this.chosen.join() !== before) this.#store();
  }

  name(id) {
    return this.all.find((run) => run.id === id)?.name ?? id;
  }

  #store() {
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify(this.chosen));
    this.onChange();
  }

  #choose(id, on) {
    // In the order of the list, whatever the order of the clicks: a run keeps its color.
    this.chosen = this.all.map((run) => run.id).filter((other) => (other === id ? on : this.chosen.includes(other)));
    this.#store();
  }

  #draw() {
    const query = this.filter.value.toLowerCase();
    const runs = this.all.filter((run) => run.name.toLowerCase().includes(query));
    const content = JSON.stringify([runs.map((run) => [run.id, run.name]), this.chosen]);
    if (content === this.drawn) return;
    this.drawn = content;
    // Replacing the list would lose the keyboard focus.
    const focused = document.activeElement?.value;
    this.list.replaceChildren(...runs.map((run) => this.#entry(run)));
    if (this.list.children.length && focused) this.list.querySelector(`input[value="${CSS.escape(focused)}"]`)?.focus();
  }

  #entry(run) {
    const box = make("input", {
      type: "checkbox", value: run.id, checked: this.chosen.includes(run.id),
      on: { change: (event) => this.#choose(run.id, event.target.checked) },
    });
    const title = `${run.folder} (in TensorBoard's list: ${run.events})`;
    return make("li", {}, make("label", { title }, box, make("span", { text: run.name })));
  }
}
