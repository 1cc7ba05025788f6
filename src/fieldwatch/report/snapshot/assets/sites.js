// The table of sites: press a heading to sort, a name to see its stack.
const COLUMNS = [["name", "Site"], ["now", "Now"], ["peak", "At peak"], ["churn", "Allocated in all"], ["count", "Allocations"]];

class SitesView {
  constructor(data) {
    this.data = data;
    this.by = "peak";
    this.down = true;
    this.heads = COLUMNS.map(([key, title]) => {
      const head = element("th", "", { scope: "col" }), button = element("button", title, { type: "button" });
      button.addEventListener("click", () => {
        this.down = this.by === key ? !this.down : key !== "name";
        this.by = key;
        this.draw();
      });
      head.append(button);
      return head;
    });
    byId("sites-head").replaceChildren(...this.heads);
  }

  show(device) {
    this.device = device;
    byId("sites-note").textContent = device.sites_left ? `${device.sites_left} smaller sites are left out.` : "";
    this.draw();
  }

  draw() {
    const sign = this.down ? -1 : 1, key = this.by;
    const compare = (a, b) => (key === "name" ? a.name.localeCompare(b.name) : a[key] - b[key]) * sign;
    const rows = this.device.sites.map((site, layer) => ({ ...site, layer })).sort(compare);
    this.heads.forEach((head, i) => {
      if (COLUMNS[i][0] === key) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    byId("sites").replaceChildren(...rows.map((site) => this.row(site)));
  }

  row(site) {
    const row = element("tr"), name = element("td"), swatch = element("span", "", { class: "swatch" });
    swatch.style.background = layerColour(this.device, site.layer, this.data.layers);
    if (site.stack.length > 1) {
      const details = element("details"), summary = element("summary"), calls = element("ol");
      summary.append(swatch, site.name);
      calls.append(...site.stack.map((call) => element("li", call)));
      details.append(summary, calls);
      name.append(details);
    } else name.append(swatch, site.name);
    row.append(name, ...["now", "peak", "churn"].map((key) => element("td", nbytes(site[key]))));
    row.append(element("td", number(site.count)));
    return row;
  }
}
