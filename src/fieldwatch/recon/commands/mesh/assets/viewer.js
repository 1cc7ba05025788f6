// A mesh to turn, drawn with WebGL2 whenever something changed. The panel holds the GLB file as base64.

const FIELD = (36 * Math.PI) / 180; // of view
const START = { yaw: 0.6, pitch: 0.26, zoom: 1, shift: [0, 0] };
const CLAY = "clay";
const SHADINGS = [
  ["color", "Color", "Colors or texture (1)"],
  ["normals", "Normals", "Camera-space normals: red right, green up, blue toward you (2)"],
  [CLAY, "Clay", "Lit clay; back faces are red (3)"],
];
const SWITCHES = [
  ["wire", "Wireframe", "Edges of the triangles (W)"],
  ["flat", "Flat", "Flat shading (F)"],
  ["spin", "Turn", "Rotate slowly (Space)"],
  ["whole", "Fill window", "Use the whole window (Escape ends it)"],
];

const VERTEX = `#version 300 es
layout(location = 0) in vec3 position;
layout(location = 1) in vec3 smoothed;
layout(location = 2) in vec3 own;
layout(location = 3) in vec4 color;
layout(location = 4) in vec2 uv;
uniform mat4 camera, lens;
uniform bool flatly;
out vec3 toEye, normal, corner;
out vec4 tint;
centroid out vec2 place; /* never beyond the edge of the face, where the texels of another face begin */
void main() {
  vec4 seen = camera * vec4(position, 1.0);
  toEye = -seen.xyz;
  normal = mat3(camera) * (flatly ? own : smoothed);
  tint = color;
  place = uv;
  int number = gl_VertexID % 3;
  corner = vec3(number == 0, number == 1, number == 2);
  gl_Position = lens * seen;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
in vec3 toEye, normal, corner;
in vec4 tint;
centroid in vec2 place;
uniform int mode; /* 0 colors, 1 texture, 2 normals, 3 clay */
uniform bool wired;
uniform sampler2D picture;
out vec4 pixel;
vec3 encoded(vec3 c) { return mix(12.92 * c, 1.055 * pow(max(c, vec3(0.0)), vec3(1.0 / 2.4)) - 0.055, greaterThan(c, vec3(0.0031308))); }
void main() {
  vec3 eye = normalize(toEye), n = normalize(normal);
  bool behind = !gl_FrontFacing;
  if (behind) n = -n;
  vec3 shade;
  if (mode == 0) shade = encoded(tint.rgb);
  else if (mode == 1) shade = texture(picture, place).rgb;
  else if (mode == 2) shade = 0.5 * n + 0.5;
  else shade = (behind ? vec3(0.59, 0.376, 0.345) : vec3(0.804, 0.784, 0.753)) * (0.28 + 0.72 * max(dot(n, eye), 0.0));
  if (wired) {
    vec3 near = corner / max(fwidth(corner), vec3(1e-6));
    float line = 1.0 - smoothstep(0.5, 1.5, min(min(near.x, near.y), near.z));
    float light = dot(shade, vec3(0.299, 0.587, 0.114));
    shade = mix(shade, mode > 1 || light > 0.45 ? vec3(0.05, 0.06, 0.08) : vec3(0.92), 0.75 * line);
  }
  pixel = vec4(shade, 1.0);
}`;

/** Show why there is no mesh, in place of it. */
function fail(parts, text) {
  parts.message.textContent = text;
  parts.message.hidden = false;
  for (const element of [parts.canvas, parts.controls, parts.hint]) element.hidden = true;
  parts.figure.dataset.state = "failed";
}

function programOf(gl) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error("this browser's WebGL2 could not build the page's shaders");
  return program;
}

function upload(gl, mesh) {
  const parts = [[mesh.positions, 3], [mesh.normals, 3], [mesh.flat, 3]];
  if (mesh.colors) parts[3] = [mesh.colors.values, mesh.colors.size];
  if (mesh.uvs) parts[4] = [mesh.uvs.values, 2];
  parts.forEach(([values, size], location) => {
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, size, gl.FLOAT, false, 0, 0);
  });
}

/** The picture in a size that the device can take. */
async function readTexture(gl, blob) {
  const options = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
  let image;
  try {
    image = await createImageBitmap(blob, options);
  } catch (refused) {
    if (refused.name !== "InvalidStateError") throw refused;
    throw new Error("its texture is not a picture that this browser can read");
  }
  const limit = gl.getParameter(gl.MAX_TEXTURE_SIZE), scale = Math.min(1, limit / Math.max(image.width, image.height));
  if (scale === 1) return image;
  return createImageBitmap(image, { ...options, resizeWidth: Math.max(1, Math.floor(scale * image.width)), resizeHeight: Math.max(1, Math.floor(scale * image.height)) });
}

async function uploadTexture(gl, blob) {
  const image = await readTexture(gl, blob);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, gl.RGBA, gl.UNSIGNED_BYTE, image);
  // No mipmaps: they would mix charts that are neighbors in the texture only.
  for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, filter, gl.LINEAR);
  for (const side of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, side, gl.CLAMP_TO_EDGE);
}

/** Distance from the center at which the mesh fits into the canvas. */
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

function start(gl, mesh, parts) {
  const { canvas, figure } = parts, program = programOf(gl);
  const own = mesh.uvs && mesh.picture ? 1 : mesh.colors ? 0 : null; // the shader's mode for the mesh's own colors
  const at = Object.fromEntries(["camera", "lens", "flatly", "mode", "wired"].map((name) => [name, gl.getUniformLocation(program, name)]));
  const show = { mode: own === null ? CLAY : "color", wire: false, flat: false, spin: false, whole: false };
  const look = structuredClone(START), { radius, triangles } = mesh;
  const modes = { color: own, normals: 2, clay: 3 };
  let waiting = false, first = true, before = 0;
  upload(gl, mesh);
  gl.useProgram(program);
  gl.enable(gl.DEPTH_TEST);

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
    const aspect = size(), distance = distanceOf(look, radius, aspect), reach = radius + Math.hypot(...look.shift);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.uniformMatrix4fv(at.camera, false, cameraOf(look, distance));
    gl.uniformMatrix4fv(at.lens, false, lensOf(distance, reach, aspect));
    gl.uniform1i(at.mode, modes[show.mode]);
    gl.uniform1i(at.wired, show.wire);
    gl.uniform1i(at.flatly, show.flat);
    gl.drawArrays(gl.TRIANGLES, 0, 3 * triangles);
    if (first) report();
    if (show.spin) redraw();
  };
  const redraw = () => {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  /** For tests and scripts: the number of triangles, and the fraction of the canvas that they cover. */
  const report = () => {
    first = false;
    const pixels = new Uint8Array(4 * canvas.width * canvas.height);
    gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
    let covered = 0;
    for (let i = 3; i < pixels.length; i += 4) covered += pixels[i] > 0;
    const error = gl.getError();
    if (error) return fail(parts, `WebGL2 failed with error ${error}: the mesh (${number(triangles)} triangles) may be too large for this device`);
    Object.assign(figure.dataset, { triangles, covered: (covered / (pixels.length / 4)).toFixed(4), state: "drawn" });
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
  control(parts, { look, show, modes, redraw, update, unit: () => (2 * Math.tan(FIELD / 2) * distanceOf(look, radius, canvas.width / canvas.height)) / canvas.clientHeight });
  new ResizeObserver(redraw).observe(canvas);
  update();
}

/** Mouse, fingers, keys and buttons; `unit` is the length of a pixel at the mesh. */
function control(parts, { look, show, modes, redraw, update, unit }) {
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
    // Until the mesh was clicked, the wheel scrolls the page, which would otherwise stop at the mesh.
    if (!show.whole && document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0015)));
  }, { passive: false });
  canvas.addEventListener("dblclick", () => (reset(), update()));
  const keys = {
    1: () => choose("color"), 2: () => choose("normals"), 3: () => choose(CLAY),
    w: () => flip("wire"), f: () => flip("flat"), " ": () => flip("spin"), r: reset, Escape: () => (show.whole = false),
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
function partsOf(panel) {
  const buttons = (entries) => Object.fromEntries(entries.map(([name, text, title]) => [name, make("button", { type: "button", class: "tool", text, title, "aria-pressed": "false" })]));
  const shadings = buttons(SHADINGS), switches = buttons(SWITCHES);
  const reset = make("button", { type: "button", class: "tool", text: "Reset", title: "Reset the view (R)" });
  const group = (label, all) => make("span", { class: "group", role: "group", "aria-label": label }, all);
  const controls = make("p", { class: "controls" }, group("Shading", Object.values(shadings)), group("View", [...Object.values(switches), reset]));
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": `${panel.title}: drag to turn, + and - to zoom` });
  const message = make("p", { class: "why", role: "alert", hidden: true });
  const hint = make("figcaption", { class: "quiet", text: "Drag turns; right button, Shift or two fingers move. After a click, the wheel zooms; arrow keys, + and - work, too." });
  const figure = make("figure", { class: "mesh" }, controls, message, canvas, hint);
  return { figure, controls, shadings, switches, reset, canvas, message, hint };
}

async function begin(parts, glb) {
  const gl = parts.canvas.getContext("webgl2", { antialias: true, alpha: true, preserveDrawingBuffer: true }); // kept for printing
  if (!gl) return fail(parts, "The mesh needs WebGL2, which this browser does not have or does not allow. Use a current Firefox, Chrome, Edge or Safari with hardware acceleration, or open the mesh file in Blender or MeshLab.");
  parts.canvas.addEventListener("webglcontextlost", () => fail(parts, "The graphics device was lost (asleep, or out of memory). Load the page again."));
  const mesh = readMesh(bytesOfBase64(glb));
  if (mesh.picture) await uploadTexture(gl, mesh.picture);
  start(gl, mesh, parts);
}

function drawPanel(view, panel) {
  const parts = partsOf(panel);
  begin(parts, panel.glb).catch((error) => fail(parts, `The mesh could not be shown: ${error.message}.`));
  return parts.figure;
}
