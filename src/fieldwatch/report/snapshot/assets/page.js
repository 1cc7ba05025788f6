// Puts the parts together.
const data = JSON.parse(byId("data").textContent);
const views = [new TimelineView(data), new SegmentsView(data), new SitesView(data)];

function tile(title, value, note) {
  const box = element("div"), shown = element("dd", value);
  shown.append(element("small", note));
  box.append(element("dt", title), shown);
  return box;
}

function showTiles(device) {
  const totals = device.totals, peak = device.peak, free = totals.not_returnable + totals.returnable;
  const rounding = totals.requested === null ? "" : `${nbytes(totals.requested)} asked for`;
  const when = !peak ? "no history" : peak.event < 0 ? "when the history began" : `after event ${number(peak.event)}`;
  byId("tiles").replaceChildren(
    tile("Reserved", nbytes(totals.reserved), `${device.segments.length + device.segments_left} segments`),
    tile("Allocated", nbytes(totals.allocated), rounding),
    tile("Peak requested", peak ? nbytes(peak.bytes) : "unknown", peak && peak.phase ? `${when}, in ${peak.phase}` : when),
    tile("Free, returnable", nbytes(totals.returnable), "wholly free segments"),
    tile("Free, not returnable", nbytes(totals.not_returnable), "pieces between live blocks"),
    tile("Fragmentation", free ? percent(totals.fragmentation) : "none", free ? `largest free block ${nbytes(totals.largest_free)}` : "no block is free"),
  );
}

function showDevice(device) {
  showTiles(device);
  views.forEach((view) => view.show(device));
  byId("notes-section").hidden = !device.notes.length;
  byId("notes").replaceChildren(...device.notes.map((note) => element("li", `${note.kind}: ${note.text}`)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches ? "dark" : "light");
let current = data.devices[0];
const again = () => current && views.forEach((view) => view.draw());
const recolour = (theme) => { setTheme(theme); if (current) { views.forEach((view) => view.draw()); views[0].legend(); views[1].legend(); } };
dark.addEventListener("change", () => recolour(dark.matches ? "dark" : "light"));
byId("theme").addEventListener("click", () => recolour(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
addEventListener("resize", again);

if (!current) byId("tiles").replaceChildren(tile("Empty", "no memory", "The process had not used CUDA when this was dumped."));
else {
  data.devices.forEach((device, i) => byId("device").append(element("option", `cuda:${device.device}`, { value: i })));
  byId("device-choice").hidden = data.devices.length < 2;
  byId("device").addEventListener("change", (event) => { current = data.devices[event.target.value]; showDevice(current); });
  showDevice(current);
}
if (!current) document.querySelectorAll("section").forEach((section) => { section.hidden = true; });
