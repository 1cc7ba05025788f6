// The findings of the chosen runs, each run a row over the steps: phases as bands, findings as marks.

import { make } from "./elements.js";

const GRAVE = { error: "grave", critical: "grave", warning: "warn", note: "note" };

/** The timeline of `entries` ([{id, name, account}]); a press on a mark calls `chosen(id, finding)`. */
export function timeline(entries, chosen) {
  const last = Math.max(1, ...entries.map(({ account }) => account.run.last_step ?? 0));
  const rows = entries.map((entry) => row(entry, last, chosen));
  const scale = make("div", { class: "fwt-scale", "aria-hidden": "true" },
    make("span", { text: "step 0" }), make("span", { text: `step ${last.toLocaleString("en-US")}` }));
  return make("section", { class: "fwt-timeline", "aria-label": "Findings over the steps" },
    make("h2", { text: "Findings" }), rows, scale);
}

function row({ id, name, account }, last, chosen) {
  const place = (step) => `${(100 * Math.min(Math.max(step, 0), last)) / last}%`;
  const lane = make("div", { class: "fwt-lane" });
  account.phases.forEach((phase, number) => {
    const band = make("span", { class: number % 2 ? "fwt-band odd" : "fwt-band", title: `phase ${phase.name}` });
    band.style.left = place(phase.first);
    band.style.right = `calc(100% - ${place(phase.last ?? last)})`;
    lane.append(band);
  });
  const reached = make("span", { class: "fwt-reached" });
  reached.style.width = place(account.run.last_step ?? 0);
  lane.append(reached);
  for (const finding of [...account.findings].reverse()) lane.append(mark(finding, place, () => chosen(id, finding)));
  const told = account.findings.length ? `${account.findings.length} finding${account.findings.length > 1 ? "s" : ""}` : account.verdict.level;
  return make("div", { class: "fwt-row" }, make("span", { class: "fwt-name", text: name }), lane, make("span", { class: "fwt-quiet", text: told }));
}

function mark(finding, place, pressed) {
  const said = `${finding.severity}: ${finding.rule} at step ${finding.step}${finding.count > 1 ? `, ${finding.count} times until ${finding.last_step}` : ""}. ${finding.message} ${finding.remedy}`;
  const grade = Object.hasOwn(GRAVE, finding.severity) ? GRAVE[finding.severity] : "warn";
  const element = make("button", { type: "button", class: `fwt-mark ${grade}`, title: said, "aria-label": said, on: { click: pressed } });
  element.style.left = place(finding.step);
  return element;
}
