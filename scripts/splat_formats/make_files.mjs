// Write FOLDER/scene.* from FOLDER/scene.ply with other implementations (see tests/fixtures/splat_files/README.md).
//
//     node make_files.mjs FOLDER
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import createSpz from '@adobe/spz';

const folder = path.resolve(process.argv[2]);
const file = (name) => path.join(folder, name);
const cli = path.join(import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname),
    'node_modules/@playcanvas/splat-transform/bin/cli.mjs');
const transform = (...args) => execFileSync('node', [cli, '-q', '-w', ...args], { stdio: 'inherit' });

transform(file('scene.ply'), file('scene.compressed.ply'));
transform(file('scene.ply'), '--spz-version', '3', file('scene_v3.spz'));
transform(file('scene.ply'), '--spz-version', '4', file('scene_v4.spz'));
transform('-g', 'cpu', file('scene.ply'), file('scene.sog'));

// The reference implementation of .spz, compiled to WebAssembly, still writes version 2.
const spz = await createSpz();
const axes = spz.CoordinateSystem.RUB;
const cloud = spz.loadSpzFromBuffer(new Uint8Array(fs.readFileSync(file('scene_v4.spz'))), { to: axes });
fs.writeFileSync(file('scene_v2.spz'), spz.saveSpzToBuffer(cloud, { version: 2, from: axes, sh1Bits: 5, shRestBits: 4 }));

// The library is made for browsers: it asks for these names when it is imported.
globalThis.window = globalThis;
globalThis.self = globalThis;
globalThis.document = {};
const { PlyLoader } = await import('@mkkellogg/gaussian-splats-3d');
const data = fs.readFileSync(file('scene.ply'));
const buffer = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
for (const level of [0, 1, 2]) {
    const splats = await PlyLoader.loadFromFileData(buffer, 1, level, true, 2, 0);
    fs.writeFileSync(file(`scene_${level}.ksplat`), Buffer.from(splats.bufferData));
}
