// A mesh to turn, drawn with WebGL2 whenever something changed. The panel holds the GLB file as base64.

const CLAY = "clay";
const SHADINGS = [
  ["color", "Color", "Colors or texture (1)"],
  ["normals", "Normals", "Camera-space normals: red right, green up, blue toward you (2)"],
  [CLAY, "Clay", "Lit clay; back faces are red (3)"],
];
const SWITCHES = [
  ["wire", "Wireframe", "Edges of the triangles (W)"],
  ["flat", "Flat", "Flat shading (F)"],
  SPIN,
  WHOLE,
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

function start(gl, mesh, parts) {
  const program = programOf(gl, VERTEX, FRAGMENT);
  const own = mesh.uvs && mesh.picture ? 1 : mesh.colors ? 0 : null; // the shader's mode for the mesh's own colors
  const at = Object.fromEntries(["camera", "lens", "flatly", "mode", "wired"].map((name) => [name, gl.getUniformLocation(program, name)]));
  const show = { mode: own === null ? CLAY : "color", wire: false, flat: false, spin: false, whole: false };
  const { radius, triangles } = mesh, modes = { color: own, normals: 2, clay: 3 };
  upload(gl, mesh);
  gl.useProgram(program);
  gl.enable(gl.DEPTH_TEST);
  const paint = (look, aspect) => {
    const distance = distanceOf(look, radius, aspect), reach = radius + Math.hypot(...look.shift);
    gl.uniformMatrix4fv(at.camera, false, cameraOf(look, distance));
    gl.uniformMatrix4fv(at.lens, false, lensOf(distance, reach, aspect));
    gl.uniform1i(at.mode, modes[show.mode]);
    gl.uniform1i(at.wired, show.wire);
    gl.uniform1i(at.flatly, show.flat);
    gl.drawArrays(gl.TRIANGLES, 0, 3 * triangles);
  };
  present(gl, parts, { show, modes, letters: { w: "wire", f: "flat" }, radius, paint, counts: { triangles }, named: `the mesh (${number(triangles)} triangles)` });
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
  const parts = partsOf(panel, SHADINGS, SWITCHES);
  begin(parts, panel.glb).catch((error) => fail(parts, `The mesh could not be shown: ${error.message}.`));
  return parts.figure;
}
