// A file of lit_gelu.export in onnxruntime-web: opening it, what it says of itself, logits, probabilities.

import { SETS } from "./drawing.js";

const METADATA_PROPS = 14; // ModelProto.metadata_props in onnx.proto: messages of a key (1) and a value (2)
const PREFIX = "lit_gelu.";
const RUNTIMES = { wasm: "./ort/ort.wasm.min.mjs", webgpu: "./ort/ort.webgpu.min.mjs" };

/** A file that takes raw pixels, opened for one backend. */
export class Model {
  /**
   * @param {string} url of the file
   * @param {"wasm" | "webgpu"} backend
   * @returns {Promise<Model>}
   */
  static async open(url, backend = "wasm") {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`${url} cannot be read: the server answers ${response.status}.`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    const ort = await import(RUNTIMES[backend]);
    ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
    return new Model(ort, backend, readMetadata(bytes), await openSession(ort, bytes, backend));
  }

  constructor(ort, backend, metadata, { session, where }) {
    this.ort = ort;
    this.session = session;
    this.backend = backend;
    this.metadata = metadata;
    this.where = where;
    const [input] = session.inputMetadata;
    this.side = input.shape.at(-1);
    this.set = SETS[this.side];
    if (input.type !== "uint8" || input.shape.length !== 4 || !this.set) {
      throw new Error(
        `The file takes ${input.type} [${input.shape}]. This page needs one that takes raw pixels: uint8 ` +
          "[batch, 1, 28, 28] or [batch, 1, 8, 8]. Export it with preprocessing=data.preprocessing().",
      );
    }
    this.threads = ort.env.wasm.numThreads;
    this.version = ort.env.versions.web;
  }

  /**
   * @param {Uint8Array} pixels of any number of images, one after the other
   * @returns {Promise<Float32Array[]>} the logits of each image
   */
  async logits(pixels) {
    const rows = pixels.length / this.side ** 2;
    const input = new this.ort.Tensor("uint8", pixels, [rows, 1, this.side, this.side]);
    const { [this.session.outputNames[0]]: output } = await this.session.run({ [this.session.inputNames[0]]: input });
    const classes = output.dims[1];
    return Array.from({ length: rows }, (_, i) => output.data.slice(i * classes, (i + 1) * classes));
  }

  /** Frees the session's memory. */
  close() {
    return this.session.release();
  }
}

/** A session, and where it computes. onnxruntime would move to the CPU, and not say so, what WebGPU does not take. */
async function openSession(ort, bytes, backend) {
  const options = { executionProviders: [backend], logSeverityLevel: 3 };
  if (backend === "wasm") return { session: await ort.InferenceSession.create(bytes, options), where: "WebAssembly" };
  const strict = { ...options, logSeverityLevel: 4, extra: { session: { disable_cpu_ep_fallback: "1" } } };
  try {
    return { session: await ort.InferenceSession.create(bytes, strict), where: "WebGPU" };
  } catch {
    const session = await ort.InferenceSession.create(bytes, options);
    return { session, where: "WebGPU, with parts of the graph that it does not take in WebAssembly" };
  }
}

/**
 * @param {ArrayLike<number>} logits
 * @returns {number[]} probabilities, computed in float64
 */
export function softmax(logits) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (logit) => Math.exp(logit - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

/**
 * What a file says of itself. onnxruntime-web does not give it out, so it is read from the file's bytes.
 * @param {Uint8Array} bytes of an ONNX file
 * @returns {Object<string, string>} the `lit_gelu.` entries, without that prefix
 */
export function readMetadata(bytes) {
  const text = new TextDecoder();
  const entries = {};
  for (const [field, entry] of fields(bytes)) {
    if (field !== METADATA_PROPS) continue;
    const parts = Object.fromEntries(Array.from(fields(entry), ([number, value]) => [number, text.decode(value)]));
    if (parts[1]?.startsWith(PREFIX)) entries[parts[1].slice(PREFIX.length)] = parts[2] ?? "";
  }
  return entries;
}

/** The length-delimited fields of a protobuf message: [number, bytes]; those of other wire types are stepped over. */
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = bytes[at++];
      if (byte === undefined) throw new Error("The file ends in the middle of a field: it is not a whole ONNX file.");
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const [number, wire] = [Math.floor(tag / 8), tag % 8];
    if (wire === 0) varint();
    else if (wire === 1) at += 8;
    else if (wire === 5) at += 4;
    else if (wire === 2) {
      const length = varint();
      if (at + length > bytes.length) throw new Error("The file is cut short: a field is longer than what is left.");
      yield [number, bytes.subarray(at, at + length)];
      at += length;
    } else throw new Error(`Wire type ${wire} is not protobuf's: this is not an ONNX file.`);
  }
}
