// The page: drawing by pointer and keyboard, the bars, and what is shown of the file.

import { Model, softmax } from "./model.js";

const INK = "#111";
const STEP = 10; // pixels that an arrow key moves the pen, of 280; with Shift 2
const element = (id) => document.getElementById(id);
const canvas = element("drawing");
const paper = canvas.getContext("2d", { willReadFrequently: true });
const bars = Array.from({ length: 10 }, (_, digit) => addBar(digit));
const keyboard = { x: canvas.width / 2, y: canvas.height / 2, down: false };

let model = null;
let last = null; // where the pen of the mouse or finger was
let changed = false;
let busy = false;

function addBar(digit) {
  const row = element("bars").insertRow();
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = digit;
  row.append(head);
  const meter = document.createElement("meter");
  meter.ariaLabel = `Probability of ${digit}`;
  row.insertCell().append(meter);
  return { meter, text: row.insertCell() };
}

// ---- drawing

function position(event) {
  const box = canvas.getBoundingClientRect();
  const scale = canvas.width / canvas.clientWidth;
  return {
    x: (event.clientX - box.left - canvas.clientLeft) * scale,
    y: (event.clientY - box.top - canvas.clientTop) * scale,
  };
}

function line(from, to) {
  paper.strokeStyle = INK;
  paper.lineWidth = canvas.width * model.set.pen;
  paper.lineCap = "round";
  paper.beginPath();
  paper.moveTo(from.x, from.y);
  paper.lineTo(to.x, to.y);
  paper.stroke();
  refresh();
}

function clear() {
  paper.clearRect(0, 0, canvas.width, canvas.height);
  refresh();
}

canvas.addEventListener("pointerdown", (event) => {
  if (!model || !event.isPrimary || event.button !== 0) return;
  canvas.setPointerCapture(event.pointerId);
  last = position(event);
  line(last, last);
});
canvas.addEventListener("pointermove", (event) => {
  if (!last || !event.isPrimary) return;
  const between = event.getCoalescedEvents?.() ?? [];
  for (const point of (between.length ? between : [event]).map(position)) {
    line(last, point);
    last = point;
  }
});
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, (event) => {
    if (!event.isPrimary) return;
    last = null;
    refresh();
  });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function movePen([right, down], step) {
  const from = { x: keyboard.x, y: keyboard.y };
  keyboard.x = Math.min(canvas.width, Math.max(0, from.x + right * step));
  keyboard.y = Math.min(canvas.height, Math.max(0, from.y + down * step));
  if (keyboard.down) line(from, keyboard);
}

function togglePen() {
  keyboard.down = !keyboard.down;
  if (keyboard.down) line(keyboard, keyboard);
  else refresh();
  element("pen-state").textContent = keyboard.down ? "The pen is down." : "The pen is up.";
}

function showPen(seen) {
  const pen = element("pen");
  pen.hidden = !seen;
  pen.classList.toggle("down", keyboard.down);
  pen.style.left = `${(100 * keyboard.x) / canvas.width}%`;
  pen.style.top = `${(100 * keyboard.y) / canvas.height}%`;
}

canvas.addEventListener("keydown", (event) => {
  if (!model || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key in ARROWS) movePen(ARROWS[event.key], event.shiftKey ? STEP / 5 : STEP);
  else if (event.key === " ") togglePen();
  else if (event.key === "Delete" || event.key === "Backspace") clear();
  else return;
  event.preventDefault();
  showPen(true);
});
canvas.addEventListener("focus", () => showPen(canvas.matches(":focus-visible")));
canvas.addEventListener("blur", () => {
  keyboard.down = false;
  element("pen-state").textContent = "";
  showPen(false);
  refresh();
});
element("clear").addEventListener("click", clear);

// ---- probabilities

/** Reads the drawing anew, once for any number of strokes that come while the net is at work. */
async function refresh() {
  changed = true;
  if (busy || !model) return;
  setBusy(true);
  try {
    while (changed) {
      changed = false;
      await predict();
    }
  } catch (error) {
    report(error);
  } finally {
    setBusy(false);
  }
}

function setBusy(state) {
  busy = state;
  element("bars").ariaBusy = String(state);
}

async function predict() {
  const { data } = paper.getImageData(0, 0, canvas.width, canvas.height);
  const ink = Float32Array.from({ length: data.length / 4 }, (_, i) => data[4 * i + 3] / 255); // how opaque it is
  const pixels = model.set.pixels(ink, canvas.width);
  showInput(pixels);
  if (pixels.every((pixel) => pixel === 0)) return showProbabilities(null);
  const [logits] = await model.logits(pixels);
  showProbabilities(softmax(logits));
}

function showInput(pixels) {
  const picture = element("input");
  picture.width = picture.height = model.side;
  const full = model.side === 28 ? 255 : 16;
  const data = new ImageData(model.side, model.side);
  pixels.forEach((pixel, i) => data.data.set([0, 0, 0, (255 * pixel) / full], 4 * i));
  picture.getContext("2d").putImageData(data, 0, 0);
}

function showProbabilities(probabilities) {
  bars.forEach(({ meter, text }, digit) => {
    meter.value = probabilities?.[digit] ?? 0;
    text.textContent = probabilities ? `${(100 * probabilities[digit]).toFixed(1)} %` : "";
  });
  if (last || keyboard.down) return; // said once a stroke, or a screen reader would never come to its end
  const best = probabilities ? probabilities.indexOf(Math.max(...probabilities)) : -1;
  element("answer").textContent = probabilities
    ? `This is a ${best} (${(100 * probabilities[best]).toFixed(1)} %)`
    : "Draw a digit from 0 to 9.";
}

// ---- the file

function readable(key, text) {
  if (key === "sites") {
    const calls = new Map();
    for (const { spec, operators, lowering, calls: count } of JSON.parse(text)) {
      const line = `${spec}, ${operators.length ? `as ${operators.join(" ")} (${lowering})` : "as torch decomposes it"}`;
      calls.set(line, (calls.get(line) ?? 0) + count);
    }
    return Array.from(calls, ([line, count]) => `${count} x ${line}`).join("; ");
  }
  if (key !== "versions") return text || "none";
  return Object.entries(JSON.parse(text)).map(([name, version]) => `${name} ${version}`).join(", ");
}

function showFile() {
  const list = element("metadata");
  list.replaceChildren();
  for (const [key, text] of Object.entries(model.metadata)) {
    const term = document.createElement("dt");
    const value = document.createElement("dd");
    term.textContent = key === "sites" ? "activations" : key.replaceAll("_", " ");
    value.textContent = readable(key, text);
    value.dataset.key = key;
    list.append(term, value);
  }
  element("method").textContent = model.set.method;
  const threads = model.threads === 1 ? "1 thread" : `${model.threads} threads`;
  element("where").textContent = `onnxruntime-web ${model.version} runs it in ${model.where} (${threads} on the CPU)`;
}

async function open() {
  const backend = element("backend");
  backend.disabled = true;
  try {
    const opened = await Model.open("model.onnx", backend.value);
    while (busy) await new Promise((done) => setTimeout(done, 10)); // a session that runs must not be freed
    const before = model;
    model = opened;
    await before?.close();
    element("problem").hidden = true;
    showFile();
  } catch (error) {
    report(error);
    if (model) backend.value = model.backend; // it is still there
  }
  backend.disabled = false;
  document.body.dataset.ready = String(Boolean(model));
  refresh();
}

function report(error) {
  element("problem").textContent = error.message ?? String(error);
  element("problem").hidden = false;
  if (!model) element("answer").textContent = "The net could not be opened.";
}

element("backend").addEventListener("change", open);
navigator.gpu?.requestAdapter().then((adapter) => {
  element("backend").options[1].disabled = !adapter;
});
open();
