// What pages with something to turn have in common: the view, and mouse, fingers, keys and buttons for it.

const FIELD = (36 * Math.PI) / 180; // of view
const START = { yaw: 0.6, pitch: 0.26, zoom: 1, shift: [0, 0] };

const SPIN = ["spin", "Turn", "Rotate slowly (Space)"];
const WHOLE = ["whole", "Fill window", "Use the whole window (Escape ends it)"];

function bytesOfBase64(text) {
  const decoded = atob(text.trim());
  const bytes = new Uint8Array(decoded.length);
  for (let i = 0; i < decoded.length; i++) bytes[i] = decoded.charCodeAt(i);
  return bytes;
}

/** Show why there is no picture, in place of it. */
function fail(parts, text) {
  parts.message.textContent = text;
  parts.message.hidden = false;
  for (const element of [parts.canvas, parts.controls, parts.hint]) element.hidden = true;
  parts.figure.dataset.state = "failed";
}

function programOf(gl, vertex, fragment) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error("this browser's WebGL2 could not build the page's shaders");
  return program;
}

/** Distance from the center at which a sphere fits into the canvas. */
function distanceOf(look, radius, aspect) {
  const half = Math.tan(FIELD / 2) * Math.min(aspect, 1);
  return (1.03 * radius) / Math.sin(Math.atan(half)) / look.zoom;
}

function cameraOf(look, distance) {
  const cy = Math.cos(look.yaw), sy = Math.sin(look.yaw), cp = Math.cos(look.pitch), sp = Math.sin(look.pitch);
  const right = [cy, 0, -sy], up = [-sy * sp, cp, -cy * sp], back = [sy * cp, sp, cy * cp], m = new Float32Array(16);
  for (let c = 0; c < 3; c++) [m[4 * c], m[4 * c + 1], m[4 * c + 2]] = [right[c], up[c], back[c]];
  [m[12], m[13], m[14], m[15]] = [look.shift[0], look.shift[1], -distance, 1];
  return m;
}

function lensOf(distance, radius, aspect) {
  const focal = 1 / Math.tan(FIELD / 2), far = distance + 1.05 * radius, near = Math.max(distance - 1.05 * radius, 2e-3 * far);
  return new Float32Array([focal / aspect, 0, 0, 0, 0, focal, 0, 0, 0, 0, (far + near) / (near - far), -1, 0, 0, (2 * far * near) / (near - far), 0]);
}

/**
 * Draw whenever something changed, and listen.
 *
 * `paint(look, aspect)` draws a frame of something of this `radius`; `counts` become attributes of the figure, for tests
 * and scripts, with the fraction of the canvas that is covered; `named` is what may be too large for the device.
 */
function present(gl, parts, { show, modes, letters, radius, paint, counts, named }) {
  const { canvas, figure } = parts, look = structuredClone(START);
  let waiting = false, first = true, before = 0;
  const size = () => {
    const density = Math.min(window.devicePixelRatio || 1, 2);
    const wanted = [canvas.clientWidth, canvas.clientHeight].map((length) => Math.max(1, Math.round(length * density)));
    if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) [canvas.width, canvas.height] = wanted;
    gl.viewport(0, 0, canvas.width, canvas.height);
    return canvas.width / canvas.height;
  };
  const draw = (time) => {
    waiting = false;
    if (show.spin) look.yaw -= Math.min(time - before, 100) * 4e-4;
    before = time;
    const aspect = size();
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    paint(look, aspect);
    if (first) report();
    if (show.spin) redraw();
  };
  const redraw = () => {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  const report = () => {
    first = false;
    const pixels = new Uint8Array(4 * canvas.width * canvas.height);
    gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
    let covered = 0;
    for (let i = 3; i < pixels.length; i += 4) covered += pixels[i] > 0;
    const error = gl.getError();
    if (error) return fail(parts, `WebGL2 failed with error ${error}: ${named} may be too large for this device`);
    Object.assign(figure.dataset, { ...counts, covered: (covered / (pixels.length / 4)).toFixed(4), state: "drawn" });
  };
  const update = () => {
    for (const [name, one] of Object.entries(parts.shadings)) {
      one.setAttribute("aria-pressed", String(name === show.mode));
      one.disabled = modes[name] === null;
    }
    for (const [name, one] of Object.entries(parts.switches)) one.setAttribute("aria-pressed", String(show[name]));
    figure.classList.toggle("whole", show.whole);
    figure.dataset.shading = show.mode;
    redraw();
  };
  const unit = () => (2 * Math.tan(FIELD / 2) * distanceOf(look, radius, canvas.width / canvas.height)) / canvas.clientHeight;
  control(parts, { look, show, modes, letters, redraw, update, unit });
  new ResizeObserver(redraw).observe(canvas);
  update();
}

/**
 * Mouse, fingers, keys and buttons.
 *
 * `modes` has a value other than null for every shading that there is, in the order of the keys 1, 2, 3; `letters` names
 * the switch of a key; `unit` is the length of a pixel at the center.
 */
function control(parts, { look, show, modes, letters, redraw, update, unit }) {
  const { canvas, figure } = parts, fingers = new Map();
  const turn = (dx, dy) => {
    look.yaw -= dx * 0.0075;
    look.pitch = Math.min(Math.max(look.pitch + dy * 0.0075, -1.55), 1.55);
    redraw();
  };
  const zoom = (factor) => {
    look.zoom = Math.min(Math.max(look.zoom * factor, 0.1), 60);
    redraw();
  };
  const move = (dx, dy) => {
    look.shift = [look.shift[0] + dx * unit(), look.shift[1] - dy * unit()];
    redraw();
  };
  const reset = () => Object.assign(look, structuredClone(START));
  const choose = (mode) => modes[mode] !== null && (show.mode = mode);
  const flip = (name) => (show[name] = !show[name]);
  const pinch = () => {
    const [a, b] = [...fingers.values()];
    return { apart: Math.hypot(a[0] - b[0], a[1] - b[1]), x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2 };
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    canvas.classList.add("held");
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    const was = fingers.size === 2 ? pinch() : null;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    const dx = event.clientX - last[0], dy = event.clientY - last[1];
    if (was) {
      const now = pinch();
      zoom(now.apart / Math.max(was.apart, 1));
      move(now.x - was.x, now.y - was.y);
    } else if (event.buttons & 6 || event.shiftKey) move(dx, dy);
    else turn(dx, dy);
  });
  const released = (event) => {
    fingers.delete(event.pointerId);
    if (!fingers.size) canvas.classList.remove("held");
  };
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, released);
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("wheel", (event) => {
    // Until the picture was clicked, the wheel scrolls the page, which would otherwise stop at it.
    if (!show.whole && document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0015)));
  }, { passive: false });
  canvas.addEventListener("dblclick", () => (reset(), update()));
  const keys = {
    ...Object.fromEntries(Object.keys(modes).map((name, at) => [at + 1, () => choose(name)])),
    ...Object.fromEntries(Object.entries(letters).map(([key, name]) => [key, () => flip(name)])),
    " ": () => flip("spin"), r: reset, Escape: () => (show.whole = false),
    ArrowLeft: () => turn(-16, 0), ArrowRight: () => turn(16, 0), ArrowUp: () => turn(0, -16), ArrowDown: () => turn(0, 16),
    "+": () => zoom(1.15), "=": () => zoom(1.15), "-": () => zoom(1 / 1.15),
  };
  figure.addEventListener("keydown", (event) => {
    const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const pressed = event.key === " " && event.target.closest("button");
    if (!action || pressed || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
    update();
  });
  for (const [name, one] of Object.entries(parts.shadings)) one.addEventListener("click", () => (choose(name), update()));
  for (const [name, one] of Object.entries(parts.switches)) one.addEventListener("click", () => (flip(name), update()));
  parts.reset.addEventListener("click", () => (reset(), update()));
}

/** The elements of the panel. */
function partsOf(panel, shadingsOf, switchesOf) {
  const buttons = (entries) => Object.fromEntries(entries.map(([name, text, title]) => [name, make("button", { type: "button", class: "tool", text, title, "aria-pressed": "false" })]));
  const shadings = buttons(shadingsOf), switches = buttons(switchesOf);
  const reset = make("button", { type: "button", class: "tool", text: "Reset", title: "Reset the view (R)" });
  const group = (label, all) => make("span", { class: "group", role: "group", "aria-label": label }, all);
  const controls = make("p", { class: "controls" }, group("Shading", Object.values(shadings)), group("View", [...Object.values(switches), reset]));
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": `${panel.title}: drag to turn, + and - to zoom` });
  const message = make("p", { class: "why", role: "alert", hidden: true });
  const hint = make("figcaption", { class: "quiet", text: "Drag turns; right button, Shift or two fingers move. After a click, the wheel zooms; arrow keys, + and - work, too." });
  const figure = make("figure", { class: "turned" }, controls, message, canvas, hint);
  return { figure, controls, shadings, switches, reset, canvas, message, hint };
}
