// f, f' and f'' of an activation, computed by its ONNX file in onnxruntime-web.

import * as ort from "./ort/ort.js";

const runtime = (name) => new URL(`./ort/${name}`, import.meta.url).href;
ort.env.wasm.wasmPaths = { mjs: runtime("threaded.js"), wasm: runtime("threaded.wasm") };
ort.env.wasm.numThreads = 1; // the graphs are small, and threads would take headers that not every server sends

const MODELS = new URL("./models/", import.meta.url);

/** @returns {Promise<object>} the manifest, with its activations by name as `byName` */
export async function readManifest() {
  const manifest = await (await fetched("manifest.json")).json();
  return { ...manifest, byName: new Map(manifest.activations.map((entry) => [entry.name, entry])) };
}

async function fetched(name) {
  const answer = await fetch(new URL(name, MODELS));
  if (!answer.ok) throw new Error(`${name} cannot be loaded: the server answers ${answer.status}.`);
  return answer;
}

let last = Promise.resolve(); // a session runs one input at a time

export class Curves {
  static #opened = new Map(); // by file: activations that are one function share a session

  /**
   * @param {object} entry of the manifest
   * @returns {Promise<Curves>} with its file loaded
   */
  static async open(entry) {
    if (!Curves.#opened.has(entry.file)) {
      const session = fetched(entry.file)
        .then((answer) => answer.arrayBuffer())
        .then((bytes) => ort.InferenceSession.create(new Uint8Array(bytes), { executionProviders: ["wasm"] }));
      session.catch(() => Curves.#opened.delete(entry.file)); // so that the next call tries again
      Curves.#opened.set(entry.file, session);
    }
    return new Curves(entry, await Curves.#opened.get(entry.file));
  }

  constructor(entry, session) {
    this.entry = entry;
    this.session = session;
  }

  /**
   * @param {ArrayLike<number>} x inputs, rounded to float32
   * @param {Object<string, number>} values of the parameters, by their names in a spec
   * @returns {Promise<{value: Float32Array, first: Float32Array, second: Float32Array}>} f, f' and f''
   */
  at(x, values) {
    const inputs = { x: new ort.Tensor("float32", Float32Array.from(x), [x.length]) };
    for (const { name, argument } of this.entry.parameters) {
      inputs[argument] = new ort.Tensor("float32", Float32Array.of(values[name]), []);
    }
    const run = last.then(() => this.session.run(inputs));
    last = run.catch(() => {});
    return run.then((outputs) => ({
      value: outputs.value.data,
      first: outputs.first.data,
      second: outputs.second.data,
    }));
  }
}
