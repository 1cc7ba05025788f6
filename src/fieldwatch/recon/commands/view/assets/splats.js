// Gaussians to turn, drawn with WebGL2 from back to front. The panel holds them packed, as page.py describes.

const SHADINGS = [
  ["color", "Color", "Colors (1)"],
  ["depth", "Depth", "Distance from the camera: near is bright (2)"],
  ["normals", "Normals", "Shortest axes in camera space: red right, green up, blue toward you (3)"],
];
const SWITCHES = [["points", "Points", "Every Gaussian as a small dot (P)"], SPIN, WHOLE];
const WIDTH = 2048; // texels of a row: four for each of 512 Gaussians
const PER_ROW = WIDTH / 4;
const SORT_BITS = 16;
const BEHIND = 2 ** SORT_BITS;

const VERTEX = `#version 300 es
precision highp float;
precision highp usampler2D;
layout(location = 0) in uint which;
uniform usampler2D gaussians;
uniform mat4 camera;
uniform float tilt; /* largest change of a color along an axis */
uniform vec2 focal, canvas; /* in pixels */
uniform float near;
uniform vec2 range; /* of depth: bright, dark */
uniform int mode; /* 0 colors, 1 depth, 2 normals */
uniform bool dots;
out vec2 place; /* in standard deviations */
out vec4 tint;
uvec4 texel(uint number) {
  return texelFetch(gaussians, ivec2(4u * (which % ${PER_ROW}u) + number, which / ${PER_ROW}u), 0);
}
vec4 bytes(uint packed) { return vec4(packed & 255u, (packed >> 8) & 255u, (packed >> 16) & 255u, packed >> 24) / 255.0; }
/* Four signed bytes, -1 to 1. */
vec4 signedBytes(uint packed) { return vec4(ivec4(int(packed << 24), int(packed << 16), int(packed << 8), int(packed)) >> 24) / 127.0; }
void main() {
  vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1) * 2.0 - 1.0;
  uvec4 first = texel(0u), second = texel(1u), third = texel(2u);
  vec3 seen = (camera * vec4(uintBitsToFloat(first.xyz), 1.0)).xyz;
  float depth = -seen.z;
  gl_Position = vec4(0.0, 0.0, 2.0, 1.0); /* outside */
  if (depth < near) return;
  tint = bytes(first.w);
  uvec4 fourth = texel(3u);
  vec3 toward = normalize(transpose(mat3(camera)) * seen);
  mat3 tilts = mat3(signedBytes(fourth.x).xyz, signedBytes(fourth.y).xyz, signedBytes(fourth.z).xyz);
  tint.rgb = clamp(2.0 * tint.rgb - 0.5 + tilt * (toward * tilts), 0.0, 1.0);
  if (mode == 1) tint.rgb = vec3(clamp(1.0 - (depth - range.x) / (range.y - range.x), 0.0, 1.0));
  if (mode == 2) {
    vec3 normal = mat3(camera) * (2.0 * bytes(third.z).xyz - 1.0);
    tint.rgb = 0.5 * normalize(dot(normal, seen) > 0.0 ? -normal : normal) + 0.5;
  }
  vec4 a = uintBitsToFloat(second);
  vec2 b = uintBitsToFloat(third.xy);
  mat3 spread = mat3(a.x, a.y, a.z, a.y, a.w, b.x, a.z, b.x, b.y);
  /* Far outside of the picture, the linear model of the perspective would stretch without bounds. */
  vec2 slope = clamp(seen.xy / depth, -0.65 * canvas / focal, 0.65 * canvas / focal);
  mat2x3 rows = mat2x3(vec3(focal.x, 0.0, focal.x * slope.x) / depth, vec3(0.0, focal.y, focal.y * slope.y) / depth);
  mat2x3 turned = transpose(mat3(camera)) * rows;
  mat2 planar = transpose(turned) * spread * turned;
  float xx = planar[0][0] + 0.3, xy = planar[0][1], yy = planar[1][1] + 0.3;
  float middle = 0.5 * (xx + yy), apart = length(vec2(0.5 * (xx - yy), xy));
  float large = middle + apart, small = max(middle - apart, 0.1);
  vec2 axis = apart > 1e-6 ? normalize(abs(xy) > 1e-6 * apart ? vec2(xy, large - xx) : (xx > yy ? vec2(1, 0) : vec2(0, 1))) : vec2(1, 0);
  float reach = min(sqrt(2.0 * log(255.0 * max(tint.a, 1.0 / 255.0))), 3.4);
  vec2 longer = axis * min(sqrt(large), 2048.0), shorter = vec2(-axis.y, axis.x) * min(sqrt(small), 2048.0);
  place = corner * reach;
  if (dots) {
    longer = vec2(0.6, 0.0);
    shorter = vec2(0.0, 0.6);
    place = corner;
  }
  vec2 pixels = focal * seen.xy / depth + place.x * longer + place.y * shorter;
  gl_Position = vec4(2.0 * pixels / canvas, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
in vec2 place;
in vec4 tint;
uniform bool dots;
out vec4 pixel;
void main() {
  float alpha = dots ? 1.0 : min(0.99, tint.a * exp(-0.5 * dot(place, place)));
  if (alpha < 1.0 / 255.0) discard;
  pixel = vec4(tint.rgb * alpha, alpha);
}`;

/** The arrays that a panel packs, by name. */
function unpack(panel) {
  const bytes = bytesOfBase64(panel.packed), n = panel.count;
  const sizes = { places: 6 * n, scales: 3 * n, turns: 4 * n, tints: 4 * n, tilts: 9 * n };
  const all = Object.values(sizes).reduce((sum, size) => sum + size, 0);
  if (bytes.length !== all) throw new Error(`the embedded Gaussians were cut short: ${bytes.length} of ${all} bytes`);
  const found = {};
  let at = 0;
  for (const [name, size] of Object.entries(sizes)) {
    found[name] = bytes.subarray(at, at + size);
    at += size;
  }
  return { ...found, places: new Uint16Array(found.places.slice().buffer), turns: new Int8Array(found.turns.slice().buffer) };
}

/** Four texels for each Gaussian: center and color; four values of the covariance; its other two and the normal; tilts. */
function texelsOf(panel) {
  const { places, scales, turns, tints, tilts } = unpack(panel), n = panel.count;
  const rows = Math.ceil(n / PER_ROW), words = new Uint32Array(4 * WIDTH * rows), floats = new Float32Array(words.buffer);
  const [low, step] = panel.log_scale, reach = panel.reach, unit = panel.unit, m = new Float32Array(9);
  const centers = new Float32Array(3 * n);
  for (let i = 0; i < n; i++) {
    const at = 16 * i;
    for (let c = 0; c < 3; c++) {
      const code = (places[3 * i + c] / 65535) * 2 - 1;
      centers[3 * i + c] = floats[at + c] = Math.sign(code) * unit * Math.expm1(Math.abs(code) * reach);
    }
    words[at + 3] = tints[4 * i] | (tints[4 * i + 1] << 8) | (tints[4 * i + 2] << 16) | (tints[4 * i + 3] << 24);
    let [w, x, y, z] = [turns[4 * i], turns[4 * i + 1], turns[4 * i + 2], turns[4 * i + 3]];
    const length = Math.hypot(w, x, y, z) || 1;
    [w, x, y, z] = [w / length, x / length, y / length, z / length];
    const axes = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)];
    let thin = 0;
    for (let c = 0; c < 3; c++) {
      const size = Math.exp(low + step * scales[3 * i + c]);
      if (scales[3 * i + c] < scales[3 * i + thin]) thin = c;
      for (let r = 0; r < 3; r++) m[3 * r + c] = axes[3 * r + c] * size;
    }
    const product = (r, s) => m[3 * r] * m[3 * s] + m[3 * r + 1] * m[3 * s + 1] + m[3 * r + 2] * m[3 * s + 2];
    [floats[at + 4], floats[at + 5], floats[at + 6], floats[at + 7]] = [product(0, 0), product(0, 1), product(0, 2), product(1, 1)];
    [floats[at + 8], floats[at + 9]] = [product(1, 2), product(2, 2)];
    const code = (r) => Math.round(127.5 + 127.5 * axes[3 * r + thin]);
    words[at + 10] = code(0) | (code(1) << 8) | (code(2) << 16);
    for (let c = 0; c < 3; c++) words[at + 12 + c] = tilts[9 * i + 3 * c] | (tilts[9 * i + 3 * c + 1] << 8) | (tilts[9 * i + 3 * c + 2] << 16);
  }
  return { words, rows, centers };
}

/** Sorts the Gaussians from back to front, by counting: the keys have 16 bits. */
function sorterOf(centers) {
  const n = centers.length / 3, depths = new Float32Array(n), keys = new Uint32Array(n), order = new Uint32Array(n);
  const counts = new Uint32Array(BEHIND + 1);
  return (m) => {
    let nearest = Infinity, farthest = -Infinity;
    for (let i = 0; i < n; i++) {
      const depth = -(m[2] * centers[3 * i] + m[6] * centers[3 * i + 1] + m[10] * centers[3 * i + 2]);
      depths[i] = depth;
      if (depth < nearest) nearest = depth;
      if (depth > farthest) farthest = depth;
    }
    const scale = (BEHIND - 1) / (farthest - nearest || 1);
    counts.fill(0);
    for (let i = 0; i < n; i++) counts[(keys[i] = BEHIND - 1 - Math.floor((depths[i] - nearest) * scale)) + 1]++;
    for (let k = 1; k <= BEHIND; k++) counts[k] += counts[k - 1];
    for (let i = 0; i < n; i++) order[counts[keys[i]]++] = i;
    return order;
  };
}

function uploadTexels(gl, { words, rows }) {
  const limit = gl.getParameter(gl.MAX_TEXTURE_SIZE);
  if (rows > limit) throw new Error(`this device takes ${number(limit * PER_ROW)} Gaussians: write the page with fewer (--most)`);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, filter, gl.NEAREST);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32UI, WIDTH, rows, 0, gl.RGBA_INTEGER, gl.UNSIGNED_INT, words);
}

function start(gl, panel, parts) {
  const program = programOf(gl, VERTEX, FRAGMENT), texels = texelsOf(panel), sort = sorterOf(texels.centers), count = panel.count;
  const at = Object.fromEntries(["camera", "tilt", "focal", "canvas", "near", "range", "mode", "dots"].map((name) => [name, gl.getUniformLocation(program, name)]));
  const show = { mode: "color", points: false, spin: false, whole: false }, modes = { color: 0, depth: 1, normals: 2 };
  const { canvas } = parts, radius = panel.radius;
  uploadTexels(gl, texels);
  gl.useProgram(program);
  gl.disable(gl.DEPTH_TEST);
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
  gl.enableVertexAttribArray(0);
  gl.vertexAttribIPointer(0, 1, gl.UNSIGNED_INT, 0, 0);
  gl.vertexAttribDivisor(0, 1);
  let sorted = null;
  const paint = (look, aspect) => {
    const distance = distanceOf(look, radius, aspect), camera = cameraOf(look, distance);
    // The order depends on the direction of the view only: moving does not change it.
    const toward = [camera[2], camera[6], camera[10]];
    if (!sorted || toward[0] * sorted[0] + toward[1] * sorted[1] + toward[2] * sorted[2] < 0.99995) {
      gl.bufferData(gl.ARRAY_BUFFER, sort(camera), gl.DYNAMIC_DRAW);
      sorted = toward;
    }
    const focal = canvas.height / (2 * Math.tan(FIELD / 2));
    gl.uniformMatrix4fv(at.camera, false, camera);
    gl.uniform1f(at.tilt, panel.tilt);
    gl.uniform2f(at.focal, focal, focal);
    gl.uniform2f(at.canvas, canvas.width, canvas.height);
    gl.uniform1f(at.near, 5e-3 * radius);
    gl.uniform2f(at.range, Math.max(distance - radius, 0), distance + radius);
    gl.uniform1i(at.mode, modes[show.mode]);
    gl.uniform1i(at.dots, show.points);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count);
  };
  present(gl, parts, { show, modes, letters: { p: "points" }, radius, paint, counts: { gaussians: count }, named: `the scene (${number(count)} Gaussians)` });
}

async function begin(parts, panel) {
  const gl = parts.canvas.getContext("webgl2", { antialias: false, alpha: true, preserveDrawingBuffer: true }); // kept for printing
  if (!gl) return fail(parts, "The Gaussians need WebGL2, which this browser does not have or does not allow. Use a current Firefox, Chrome, Edge or Safari with hardware acceleration.");
  parts.canvas.addEventListener("webglcontextlost", () => fail(parts, "The graphics device was lost (asleep, or out of memory). Load the page again."));
  start(gl, panel, parts);
}

function drawPanel(view, panel) {
  const parts = partsOf(panel, SHADINGS, SWITCHES);
  begin(parts, panel).catch((error) => fail(parts, `The Gaussians could not be shown: ${error.message}.`));
  return parts.figure;
}
