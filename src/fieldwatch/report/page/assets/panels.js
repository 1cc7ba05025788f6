// Elements of an account: the verdict, then the panels in order. The only global name is `fieldwatch`, which script.py
// assembles from all these files:
//   fieldwatch.draw(root, account, options)   draw or redraw the account in an element; options.theme: "light", "dark", null
//   fieldwatch.panel(account, panel)          return one panel as an element

const VIEWS = new WeakMap();
const KINDS = { lines: drawChart, stack: drawChart, histogram: drawChart, table: drawTable, images: drawImages, facts: drawFacts, text: drawText, empty: drawEmpty, group: drawGroup, allocations: drawAllocations, segments: drawSegments, points: drawPoints };

function draw(root, account, options = {}) {
  const view = VIEWS.get(root) ?? newView(root);
  if ("theme" in options) view.wanted = options.theme;
  const [scrolled, focused] = [root.scrollTop, focusPlace(root)];
  const page = [window.scrollX, window.scrollY];
  view.begin(account);
  root.classList.add("fieldwatch");
  const sections = account.panels.map((panel) => drawSection(view, panel));
  root.replaceChildren(
    drawHead(view),
    make("div", { class: "columns" }, drawContents(view, sections), make("main", { id: "panels", tabindex: "-1" }, drawVerdict(view), drawMarkLegend(view), sections)),
  );
  watchCharts(view);
  root.scrollTop = scrolled;
  if (window.scrollX !== page[0] || window.scrollY !== page[1]) window.scrollTo(...page);
  focusAgain(root, focused);
  return root;
}

function panel(account, one) {
  const root = make("div", { class: "fieldwatch alone" });
  const view = newView(root);
  view.begin(account);
  root.append(drawSection(view, one));
  watchCharts(view);
  return root;
}

function newView(root) {
  const view = new View(root);
  VIEWS.set(root, view);
  const again = () => view.paint(view.wanted);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new ResizeObserver(() => view.charts.forEach((chart) => (chart.plot ? chart.resize() : null))).observe(root);
  printing(view);
  return view;
}

/** Print with light colors and all charts, in the width of the paper, and restore the page afterwards. */
function printing(view) {
  const width = 680;
  addEventListener("beforeprint", () => {
    view.root.dataset.theme = "light";
    view.root.classList.add("paper");
    for (const chart of view.charts) {
      chart.drop();
      chart.drawFor("light", width);
    }
  });
  addEventListener("afterprint", () => {
    view.root.classList.remove("paper");
    view.root.dataset.theme = view.theme;
    for (const chart of view.charts) chart.redraw();
  });
}

/** Draw each chart when it comes near the visible part of the page. */
function watchCharts(view) {
  view.seen?.disconnect();
  const charts = new Map(view.charts.map((chart) => [chart.box, chart]));
  view.seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) charts.get(entry.target).draw();
  }, { rootMargin: "400px" });
  for (const box of charts.keys()) view.seen.observe(box);
}

function focusPlace(root) {
  const at = document.activeElement;
  return at && at !== root && root.contains(at) ? [...root.querySelectorAll("button, a, [tabindex]")].indexOf(at) : -1;
}

function focusAgain(root, place) {
  if (place >= 0) [...root.querySelectorAll("button, a, [tabindex]")][place]?.focus({ preventScroll: true });
}

function severityClass(severity) {
  return { note: "note", warning: "warning", error: "error" }[severity] ?? "error";
}

function panelId(one) {
  return `panel-${String(one.id).replace(/[^A-Za-z0-9_-]/g, "-")}`;
}

function drawSection(view, one) {
  const state = view.stateOf(one.id, { open: true });
  const body = make("div", { class: "body", id: `${panelId(one)}-body` }, drawBody(view, one));
  const fold = button(one.title || one.id, () => {
    state.open = !state.open;
    show();
  }, { class: "fold", "aria-controls": body.id });
  const section = make("section", { id: panelId(one), class: `panel is-${Object.hasOwn(KINDS, one.kind) ? one.kind : "unknown"}` }, make("h2", {}, fold), one.about ? make("p", { class: "about", text: one.about }) : null, body);
  const show = () => {
    section.classList.toggle("closed", !state.open);
    fold.setAttribute("aria-expanded", String(state.open));
    if (state.open) view.charts.forEach((chart) => (section.contains(chart.box) ? chart.draw() : null));
  };
  show();
  return section;
}

function drawBody(view, one) {
  return Object.hasOwn(KINDS, one.kind) ? KINDS[one.kind](view, one) : drawEmpty(view, { why: `This page cannot draw panels of the kind ${one.kind}; their data are in its account.` });
}

function drawGroup(view, group) {
  const alone = group.parts.filter((part) => part.kind === "lines" && part.series.length === 1);
  return make("div", { class: "parts" }, group.parts.map((part, place) => {
    const one = { ...part, id: part.id ?? `${group.id}-${place}`, small: alone.length > 2 && alone.includes(part) };
    const chart = isChart(one) ? chartOf(view, one) : null;
    const title = make("div", { class: "title" }, part.title ? make("h3", { text: part.title }) : null, chart?.tools);
    const head = make("div", { class: "heading" }, title, part.about ? make("p", { class: "about", text: part.about }) : null);
    return make("div", { class: `part is-${part.kind}${chart ? " has-chart" : ""}${one.small ? " small" : ""}` }, head, chart?.element ?? drawBody(view, one));
  }));
}

function isChart(one) {
  return one.kind === "lines" || one.kind === "stack" || one.kind === "histogram";
}

function chartOf(view, one) {
  if (one.kind === "histogram") {
    const histogram = new Histogram(view, one);
    view.charts.push(histogram);
    return histogram;
  }
  const chart = new Chart(view, one);
  if (chart.names.length) view.charts.push(chart);
  return chart.names.length ? chart : null;
}

function drawChart(view, one) {
  const chart = chartOf(view, one);
  return chart ? [make("div", { class: "title" }, chart.tools), chart.element] : drawEmpty(view, { why: "The account contains none of its series." });
}

function drawImages(view, one) {
  const allowed = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]*$/;
  return make("div", { class: "pictures" }, one.items.map((item) => {
    const words = [item.title, item.caption].filter(Boolean).join(": ");
    if (!allowed.test(item.src)) return make("p", { class: "why", text: `${words}: no picture that this page may show` });
    const picture = () => make("img", { src: item.src, alt: words, decoding: "async" });
    const open = button("", () => enlarge(view, item, picture()), { class: "picture", "aria-label": `Enlarge: ${words}` });
    open.append(picture());
    const step = Number.isInteger(item.step) ? [" · step ", stepButton(view, item.step)] : [];
    const caption = make("figcaption", {}, make("b", { text: item.title }), ...step, item.caption ? make("span", { class: "quiet", text: item.caption }) : null);
    return make("figure", {}, open, caption);
  }));
}

function enlarge(view, item, picture) {
  const close = () => box.close();
  const box = make("dialog", { class: "enlarged", "aria-label": item.title, on: { click: close, close: () => box.remove() } });
  box.append(picture, make("p", {}, make("b", { text: item.title }), " ", make("span", { text: item.caption })), button("Close", close, { class: "tool" }));
  view.root.append(box);
  box.showModal();
}

function drawFacts(view, one) {
  const list = make("dl", { class: "facts" }, one.facts.map((fact) => make("div", {}, make("dt", { text: fact.name }), make("dd", {}, drawFact(fact.value)))));
  const copy = copyButton(one.title || one.id, () => tsv(one.facts.map((fact) => [fact.name, textOf(fact.value ?? "")])));
  return [list, make("div", { class: "foot" }, copy)];
}

function drawFact(value) {
  if (isLink(value)) return make("a", { href: value.href, text: value.text });
  return plain(typeof value === "number" ? number(value, 6) : textOf(value ?? "-"));
}

function drawText(view, one) {
  return [make("pre", { tabindex: "0", text: one.text }), make("div", { class: "foot" }, copyButton(one.title || one.id, () => one.text))];
}

function drawEmpty(view, one) {
  return make("p", { class: "why", text: one.why });
}

globalThis.fieldwatch = { draw, panel };
