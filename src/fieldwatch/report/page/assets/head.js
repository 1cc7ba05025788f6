// Everything but the panels: name and state of the run, verdict, findings, contents, legend of marks.

// A title stands alone in tables and terminals; on the page, the level is above it already.
const withoutLevel = (title) => title.replace(/^Healthy: ./, (start) => start.at(-1).toUpperCase());
const LEVELS = { healthy: "Healthy", notes: "Healthy, with notes", findings: "Findings", failed: "Failed", running: "Running", empty: "Nothing yet" };

function drawHead(view) {
  const { run } = view.account;
  const skip = make("a", { class: "skip", href: "#panels", text: "Skip to the panels" });
  const steps = run.steps_planned ? `${number((run.last_step ?? -1) + 1)} of ${number(run.steps_planned)} steps` : `last step ${number(run.last_step)}`;
  const said = run.said ?? [run.pipeline, run.state, steps, duration(run.seconds), `${number(run.rows)} rows`, run.started && moment(run.started)];
  const line = make("p", { class: "said" }, said.filter(Boolean).map((part) => make("span", { text: part })));
  return make("header", {}, skip, make("div", {}, make("h1", { text: run.name || "run" }), line), themeButton(view));
}

function themeButton(view) {
  const order = [null, "light", "dark"];
  const names = { null: "Colors: auto", light: "Colors: light", dark: "Colors: dark" };
  const press = () => {
    view.paint(order[(order.indexOf(view.wanted) + 1) % order.length]);
    toggle.textContent = names[view.wanted];
  };
  const toggle = button(names[view.wanted], press, { class: "tool theme", "aria-label": "Colors: as the system, light or dark" });
  return toggle;
}

function drawContents(view, sections) {
  const { panels } = view.account;
  const link = (id, title, empty) => make("li", {}, make("a", { href: `#${id}`, class: empty ? "empty" : null, text: title }));
  const isMore = (one) => String(one.id).startsWith("more-");
  const links = (chosen) => chosen.map((one) => link(panelId(one), one.title || one.id, one.kind === "empty"));
  const more = panels.filter(isMore);
  const list = () => make("ol", {}, link("verdict", "Verdict"), links(panels.filter((one) => !isMore(one))), more.length ? make("li", { class: "also", text: "Also recorded" }) : null, links(more));
  const menu = make("details", { class: "menu" }, make("summary", { text: "Contents" }), list());
  menu.addEventListener("click", (event) => (event.target.tagName === "A" ? (menu.open = false) : null));
  const nav = make("nav", { "aria-label": "Contents" }, menu, make("div", { class: "side" }, list()));
  followReading(view, nav, sections);
  return nav;
}

/** Highlight the panel in view in the contents. */
function followReading(view, nav, sections) {
  const links = new Map([...nav.querySelectorAll(".side a")].map((link) => [link.hash.slice(1), link]));
  view.reading?.disconnect();
  view.reading = new IntersectionObserver((entries) => {
    for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of sections) view.reading.observe(section);
}

function drawVerdict(view) {
  const { verdict, findings, crash, run } = view.account;
  const level = Object.hasOwn(LEVELS, verdict.level) ? verdict.level : "findings";
  const labels = new Set(findings.map((finding) => finding.label));
  const causes = findings.filter((finding) => !finding.because_of || !labels.has(finding.because_of));
  const list = causes.length ? make("ol", { class: "findings" }, causes.map((cause) =>
    drawFinding(view, cause, cause.label ? findings.filter((finding) => finding.because_of === cause.label) : []))) : null;
  const resume = crash?.resume || run.resume;
  const detail = newLines(verdict.detail, [crash?.error, ...findings.map((finding) => finding.message)]);
  return make("section", { id: "verdict", class: `verdict ${level}`, "aria-label": "Verdict" },
    make("p", { class: "level", text: verdict.label ?? LEVELS[level] }), make("h2", { text: withoutLevel(verdict.title) }),
    detail ? make("p", { class: "detail", text: detail }) : null,
    crash ? drawCrash(view, crash) : null, list, resume ? drawCommand("Resume with", resume) : null);
}

/** Return the lines of a text that the findings below do not repeat. */
function newLines(text, told) {
  const known = told.filter(Boolean);
  return (text ?? "").split("\n").filter((line) => !known.some((one) => line.includes(one) || one.includes(line))).join("\n");
}

/** Draw a cause, with a folded list of the findings that it explains. */
function drawFinding(view, finding, consequences = []) {
  const many = finding.count > 1 ? `, ${number(finding.count)} times up to step ${number(finding.last_step ?? finding.step)}` : "";
  const at = Number.isInteger(finding.step) ? make("span", { class: "at" }, "step ", stepButton(view, finding.step), many) : null;
  return make("li", { class: severityClass(finding.severity) },
    make("p", { class: "what" }, make("span", { class: "severity", text: finding.severity }), make("b", { text: finding.rule }), at),
    make("p", { text: finding.message }),
    finding.because_of?.startsWith("event ") ? make("p", { class: "quiet", text: `It follows ${plain(finding.because_of)}.` }) : null,
    finding.remedy ? make("p", { class: "remedy", text: finding.remedy }) : null,
    consequences.length ? make("details", { class: "explains" },
      make("summary", { text: `Explains ${consequences.length} more ${consequences.length > 1 ? "findings" : "finding"}` }),
      make("ol", { class: "findings" }, consequences.map((one) => drawFinding(view, one)))) : null);
}

function drawCrash(view, crash) {
  const first = crash.first_bad ? make("p", {}, "First bad value at step ", stepButton(view, crash.first_bad.step), crash.first_bad.metrics?.length ? `: ${plain(crash.first_bad.metrics.join(", "))}` : "") : null;
  const at = Number.isInteger(crash.step) ? make("span", { class: "at" }, "step ", stepButton(view, crash.step)) : null;
  const trace = crash.traceback ? make("details", { class: "trace" }, make("summary", { text: "Traceback" }), make("pre", { tabindex: "0", text: crash.traceback })) : null;
  return make("div", { class: "crash" },
    make("p", { class: "what" }, make("span", { class: "severity", text: "crash" }), make("b", { text: crash.cause }), at),
    crash.error ? make("p", { class: "raised", text: crash.error }) : null, first, crash.memory ? make("p", { text: crash.memory }) : null,
    crash.folder ? make("p", { class: "quiet", text: `Crash report: ${crash.folder}` }) : null, trace);
}

function drawCommand(title, text) {
  const command = /`([^`]+)`/.exec(text)?.[1] ?? text;
  return make("p", { class: "command" }, make("span", { class: "quiet", text: title }), make("code", { text: command }), copyButton("the command", () => command));
}

function drawMarkLegend(view) {
  const kinds = [...new Set(view.account.marks.map((mark) => mark.kind))];
  if (!kinds.length) return null;
  const bar = make("div", { class: "marks", role: "group", "aria-label": "Event marks: press to show or hide" }, make("span", { class: "quiet", text: "Events" }));
  for (const kind of kinds) bar.append(drawMarkEntry(view, kind, markTitle(view.account.marks.find((mark) => mark.kind === kind))));
  const none = button("", () => view.choose(null), { class: "tool chosen", hidden: view.chosen === null });
  const show = () => {
    none.hidden = view.chosen === null;
    none.textContent = `step ${number(view.chosen)} is marked: clear`;
  };
  view.stepChosen = show;
  show();
  bar.append(none);
  return bar;
}

function drawMarkEntry(view, kind, title) {
  const style = markStyle(kind);
  const shape = document.createElementNS(SVG, "path");
  shape.setAttribute("d", style.path);
  shape.setAttribute("fill-rule", "evenodd");
  shape.setAttribute("fill", `var(--${style.color})`);
  const glyph = document.createElementNS(SVG, "svg");
  for (const [name, value] of [["viewBox", "0 0 10 10"], ["width", 9], ["height", 9], ["aria-hidden", "true"]]) glyph.setAttribute(name, value);
  glyph.append(shape);
  const count = view.account.marks.reduce((sum, mark) => sum + (mark.kind === kind ? mark.count || 1 : 0), 0);
  const press = () => {
    if (!view.hiddenMarks.delete(kind)) view.hiddenMarks.add(kind);
    entry.setAttribute("aria-pressed", String(!view.hiddenMarks.has(kind)));
    for (const chart of view.charts) chart.plot?.redraw(false);
  };
  const entry = button("", press, { class: "entry", "aria-pressed": String(!view.hiddenMarks.has(kind)) });
  entry.append(glyph, make("span", { text: title }), make("span", { class: "value", text: number(count) }));
  return entry;
}

/** Mark a step in all charts, and scroll to the first chart unless one is visible. */
function goTo(view, step) {
  view.choose(step);
  const seen = view.charts.some((chart) => {
    const { top, bottom } = chart.box.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
  });
  if (!seen) view.charts[0]?.box.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}
