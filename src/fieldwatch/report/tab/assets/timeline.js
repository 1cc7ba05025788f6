// Timeline of the findings of the chosen runs: one row per run over the steps, with phases as bands and findings as marks.

import { make } from "./elements.js";
import { number } from "./text_format.js";

const CLASSES = { error: "grave", critical: "grave", warning: "warn", note: "note" };

/** Return the timeline of `entries` ([{id, name, account}]); a click on a mark calls `choose(id, finding)`. */
export function timeline(entries, choose) {
  const last = Math.max(1, ...entries.map(({ account }) => account.run.last_step ?? 0));
  const rows = entries.map((entry) => row(entry, last, choose));
  // Hidden from screen readers: each mark says its step.
  const scale = make("div", { class: "fwt-scale", "aria-hidden": "true" },
    make("span", { text: "step 0" }), make("span", { text: `step ${number(last)}` }));
  return make("section", { class: "fwt-timeline", "aria-label": "Findings over the steps" },
    make("h2", { text: "Findings" }), rows, scale);
}

function row({ id, name, account }, last, choose) {
  const place = (step) => `${(100 * Math.min(Math.max(step, 0), last)) / last}%`;
  const lane = make("div", { class: "fwt-lane" });
  account.phases.forEach((phase, index) => {
    const band = make("span", { class: index % 2 ? "fwt-band odd" : "fwt-band", title: `phase ${phase.name}` });
    band.style.left = place(phase.first);
    band.style.right = `calc(100% - ${place(phase.last ?? last)})`;
    lane.append(band);
  });
  const reached = make("span", { class: "fwt-reached" });
  reached.style.width = place(account.run.last_step ?? 0);
  lane.append(reached);
  // Worst finding last, so that its mark is on top of the others.
  for (const finding of [...account.findings].reverse()) lane.append(mark(finding, place, () => choose(id, finding)));
  const count = account.findings.length;
  const summary = count ? `${number(count)} finding${count > 1 ? "s" : ""}` : account.verdict.level;
  return make("div", { class: "fwt-row" }, make("span", { class: "fwt-name", text: name }), lane, make("span", { class: "fwt-quiet", text: summary }));
}

function mark(finding, place, onClick) {
  const repeated = finding.count > 1 ? `, ${number(finding.count)} times until ${number(finding.last_step)}` : "";
  const text = `${finding.severity}: ${finding.rule} at step ${number(finding.step)}${repeated}. ${finding.message} ${finding.remedy}`;
  // hasOwn, because the severity comes from a file: "constructor" is a property of every object.
  const grade = Object.hasOwn(CLASSES, finding.severity) ? CLASSES[finding.severity] : "warn";
  const element = make("button", { type: "button", class: `fwt-mark ${grade}`, title: text, "aria-label": text, on: { click: onClick } });
  element.style.left = place(finding.step);
  return element;
}
