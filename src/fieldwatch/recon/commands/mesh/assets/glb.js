// Reads the panel's GLB (glTF 2.0) into unindexed triangles: what fieldwatch writes, not every glTF there is.

const SIZES = { SCALAR: 1, VEC2: 2, VEC3: 3, VEC4: 4 };
const COMPONENTS = { 5121: Uint8Array, 5123: Uint16Array, 5125: Uint32Array, 5126: Float32Array };

function chunksOf(bytes) {
  const words = new DataView(bytes.buffer);
  if (bytes.length < 20 || words.getUint32(0, true) !== 0x46546c67) throw new Error("the embedded mesh is not a GLB file");
  if (words.getUint32(8, true) !== bytes.length) throw new Error("the embedded GLB file was cut short");
  const found = {};
  for (let at = 12; at + 8 <= bytes.length; ) {
    const length = words.getUint32(at, true);
    found[words.getUint32(at + 4, true)] = bytes.subarray(at + 8, at + 8 + length);
    at += 8 + length;
  }
  return { about: JSON.parse(new TextDecoder().decode(found[0x4e4f534a])), binary: found[0x004e4942] };
}

function accessorOf(glb, number) {
  const { bufferView, byteOffset = 0, componentType, count, type, normalized } = glb.about.accessors[number];
  const view = glb.about.bufferViews[bufferView], Kind = COMPONENTS[componentType], size = SIZES[type];
  if (!Kind || !size || view.byteStride) throw new Error(`the GLB file stores values (${componentType}, ${type}) in a layout that this page does not read`);
  const from = (view.byteOffset || 0) + byteOffset;
  const values = new Kind(glb.binary.slice(from, from + count * size * Kind.BYTES_PER_ELEMENT).buffer);
  const top = normalized ? 2 ** (8 * Kind.BYTES_PER_ELEMENT) - 1 : 1;
  return { values, count, size, top };
}

/** A node's matrix, column by column; fieldwatch writes no other transformations and no nested nodes. */
function placedPrimitives(glb) {
  const found = [];
  for (const node of glb.about.nodes || []) {
    if (node.mesh === undefined) continue;
    const matrix = node.matrix || [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
    for (const primitive of glb.about.meshes[node.mesh].primitives) found.push({ primitive, matrix });
  }
  if (found.length !== 1) throw new Error(`the GLB file has ${found.length} parts, but this page draws one`);
  return found[0];
}

function moved(values, count, m, shift) {
  const out = new Float32Array(3 * count);
  for (let i = 0; i < 3 * count; i += 3)
    for (let r = 0; r < 3; r++) out[i + r] = m[r] * values[i] + m[4 + r] * values[i + 1] + m[8 + r] * values[i + 2] + shift * m[12 + r];
  return out;
}

function spread(source, indices) {
  const { values, size, top } = source, out = new Float32Array(indices.length * size);
  for (let k = 0; k < indices.length; k++)
    for (let c = 0; c < size; c++) out[k * size + c] = values[indices[k] * size + c] / top;
  return { values: out, size };
}

/** Normals of the faces, repeated for their three corners. */
function faceNormals(p) {
  const out = new Float32Array(p.length);
  for (let i = 0; i < p.length; i += 9) {
    const ux = p[i + 3] - p[i], uy = p[i + 4] - p[i + 1], uz = p[i + 5] - p[i + 2];
    const vx = p[i + 6] - p[i], vy = p[i + 7] - p[i + 1], vz = p[i + 8] - p[i + 2];
    const n = [uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx], length = Math.hypot(...n) || 1;
    for (let k = 0; k < 9; k++) out[i + k] = n[k % 3] / length;
  }
  return out;
}

/** Normals of the vertices, except at sharp edges, where a corner takes the normal of its face. */
function cornerNormals(smooth, flat) {
  const out = new Float32Array(flat);
  for (let i = 0; i < flat.length; i += 3) {
    if (smooth[i] * flat[i] + smooth[i + 1] * flat[i + 1] + smooth[i + 2] * flat[i + 2] > 0.85) out.set(smooth.subarray(i, i + 3), i);
  }
  return out;
}

function boundsOf(positions) {
  const low = [Infinity, Infinity, Infinity], high = [-Infinity, -Infinity, -Infinity];
  for (let i = 0; i < positions.length; i++) {
    const axis = i % 3;
    if (positions[i] < low[axis]) low[axis] = positions[i];
    if (positions[i] > high[axis]) high[axis] = positions[i];
  }
  const middle = low.map((value, axis) => (value + high[axis]) / 2);
  let radius = 0;
  for (let i = 0; i < positions.length; i += 3)
    radius = Math.max(radius, Math.hypot(positions[i] - middle[0], positions[i + 1] - middle[1], positions[i + 2] - middle[2]));
  return { middle, radius: radius || 1 };
}

/** Positions relative to the center of the mesh, normals, linear colors and texture coordinates: three per triangle. */
function readMesh(bytes) {
  const glb = { ...chunksOf(bytes) }, { primitive, matrix } = placedPrimitives(glb), names = primitive.attributes;
  const places = accessorOf(glb, names.POSITION);
  const indices = primitive.indices === undefined ? Uint32Array.from({ length: places.count }, (_, i) => i) : accessorOf(glb, primitive.indices).values;
  if ((primitive.mode ?? 4) !== 4 || indices.length % 3 || !indices.length) throw new Error("the GLB file holds no triangles");
  const all = moved(places.values, places.count, matrix, 1), bounds = boundsOf(all);
  for (let i = 0; i < all.length; i++) all[i] -= bounds.middle[i % 3];
  const positions = spread({ values: all, size: 3, top: 1 }, indices).values, flat = faceNormals(positions);
  let normals = flat;
  if (names.NORMAL !== undefined) {
    const given = accessorOf(glb, names.NORMAL);
    normals = cornerNormals(spread({ values: moved(given.values, given.count, matrix, 0), size: 3, top: 1 }, indices).values, flat);
  }
  const read = (name) => (names[name] === undefined ? null : spread(accessorOf(glb, names[name]), indices));
  return { positions, normals, flat, colors: read("COLOR_0"), uvs: read("TEXCOORD_0"), picture: pictureOf(glb, primitive), radius: bounds.radius, triangles: indices.length / 3 };
}

function pictureOf(glb, primitive) {
  const material = glb.about.materials?.[primitive.material], shown = material?.pbrMetallicRoughness?.baseColorTexture;
  if (!shown) return null;
  const image = glb.about.images[glb.about.textures[shown.index].source], view = glb.about.bufferViews[image.bufferView];
  const from = view.byteOffset || 0;
  return new Blob([glb.binary.slice(from, from + view.byteLength)], { type: image.mimeType });
}
