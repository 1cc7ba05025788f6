// Small helpers: colours, elements, canvases, the tip. Numbers are formatted by the page's text_format.js.

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const byId = (id) => document.getElementById(id);

// Fits a canvas to its place on the page and returns a context in CSS pixels.
function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

function layerColour(device, layer, layers) {
  if (layer >= layers) return colour("other");
  return device.sites[layer] && device.sites[layer].before ? colour("before") : colour(`layer-${layer}`);
}

// Shows lines beside a point, and says them to a screen reader when the keyboard asked.
function showTip(x, y, title, lines, stack, aloud) {
  const tip = byId("tip");
  tip.replaceChildren(element("b", title), ...lines.map((line) => element("div", line)));
  stack.slice(0, 10).forEach((call) => tip.append(element("div", call, { class: "stack" })));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  if (aloud) byId("readout").textContent = [title, ...lines].join(", ");
}

function hideTip() { byId("tip").hidden = true; }
