// The page: controls, what they change, and drawing anew.

import { element, list, slider } from "./controls.js";
import { Curves, readManifest } from "./curves.js";
import { showFunctions } from "./functions_view.js";
import { showSignals } from "./signals_view.js";
import { tabulate } from "./quadrature.js";
import { defaults, NUMBERS, readState, writeState } from "./state.js";
import { Plot } from "./plot.js";

const byId = (id) => document.getElementById(id);
const status = byId("status");
let manifest;
let state;

/* Drawing: one round at a time, and the newest state in the next. */

let running = false;
let wanted = false;
let rounds = 0;
const tables = new Map(); // by activation and parameters; a slider of the input moves none of them

async function tableOf(curves, values) {
  const key = JSON.stringify([curves.entry.file, values]);
  if (!tables.has(key)) {
    if (tables.size > 20) tables.delete(tables.keys().next().value);
    tables.set(key, await tabulate(curves, values));
  }
  return tables.get(key);
}

let drawnBelow = ""; // what the pictures below those of f, f' and f'' show: the place of the cursor changes none of it

async function round(now) {
  const sides = {};
  for (const side of ["a", "b"]) {
    const { entry, values } = now[side];
    const curves = await Curves.open(entry);
    sides[side] = { side, entry, values, curves, at: (x) => curves.at(x, values) };
  }
  await showFunctions(plots, sides, now);
  const { x, range, ...below } = now;
  const wantedBelow = JSON.stringify(below);
  if (wantedBelow === drawnBelow) return;
  drawnBelow = "";
  for (const each of Object.values(sides)) each.table = await tableOf(each.curves, each.values);
  await showSignals(plots, sides, now);
  drawnBelow = wantedBelow;
}

async function redraw() {
  wanted = true;
  if (running) return;
  running = true;
  while (wanted) {
    wanted = false;
    try {
      await round(structuredClone(state));
      status.textContent = "";
      status.className = "";
    } catch (error) {
      status.textContent = `This cannot be drawn: ${error.message ?? error}`;
      status.className = "error";
    }
    rounds += 1;
    document.body.dataset.ready = String(rounds); // tests wait for it
  }
  running = false;
}

let writing = 0;

function writeAddress() {
  clearTimeout(writing);
  history.replaceState(null, "", writeState(state));
}

function changed() {
  clearTimeout(writing);
  writing = setTimeout(writeAddress, 150); // browsers refuse an address that changes many times a second
  redraw();
}

/* Controls. */

const SETTERS = {};

function numberSlider(key, label, about = {}) {
  const made = slider({ label, name: key, ...NUMBERS[key], ...about }, state[key], (number) => {
    state[key] = number;
    changed();
  });
  SETTERS[key] = made.set;
  return made.box;
}

function card(side) {
  const box = byId(`card-${side}`);
  const names = manifest.activations.map(({ name }) => [name, name]);
  const choice = list({ label: `Activation ${side.toUpperCase()}`, name: side, options: names }, state[side].entry.name, (name) => {
    const entry = manifest.byName.get(name);
    state[side] = { entry, values: defaults(entry) };
    parameters(side);
    changed();
  });
  const own = element("div", { class: "parameters" });
  box.append(choice.box, own);
  SETTERS[side] = () => {
    choice.set(state[side].entry.name);
    parameters(side);
  };
}

function parameters(side) {
  const { entry, values } = state[side];
  const formula = element("p", { class: "formula" }, element("code", {}, `f(x) = ${entry.formula}`));
  const boxes = entry.parameters.map((parameter) => {
    const about = { ...parameter, label: parameter.name, name: `${side}.${parameter.name}` };
    return slider(about, values[parameter.name], (number) => {
      values[parameter.name] = number;
      changed();
    }).box;
  });
  const reset = element("button", { type: "button", class: "reset" }, "Defaults");
  reset.addEventListener("click", () => {
    state[side] = { entry, values: defaults(entry) };
    parameters(side);
    byId(`card-${side}`).querySelector(".reset")?.focus();
    changed();
  });
  const source = entry.reference ? [element("p", { class: "reference" }, entry.reference)] : [];
  const place = byId(`card-${side}`).querySelector(".parameters");
  place.replaceChildren(formula, ...boxes, ...(boxes.length ? [reset] : []), ...source);
}

function build() {
  card("a");
  card("b");
  byId("view-controls").append(
    numberSlider("x", "x"),
    numberSlider("range", "Widest x", { digits: 1 }),
  );
  byId("input-controls").append(
    numberSlider("mean", "Mean"),
    numberSlider("std", "Standard deviation", { logarithmic: true }),
  );
}

function show() {
  for (const [key, set] of Object.entries(SETTERS)) set(state[key]);
}

function exchange() {
  [state.a, state.b] = [state.b, state.a];
  show();
  changed();
}

/* Theme and link. */

function theme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => localStorage.getItem("lit-gelu-explorer-theme");
  const apply = () => {
    const dark = kept() ? kept() === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
  };
  button.addEventListener("click", () => {
    localStorage.setItem("lit-gelu-explorer-theme", button.getAttribute("aria-pressed") === "true" ? "light" : "dark");
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

async function share() {
  writeAddress();
  try {
    await navigator.clipboard.writeText(location.href);
    status.textContent = "The link is copied.";
  } catch {
    status.textContent = "The browser does not let this page copy: the address above is the link.";
  }
}

function moveCursor(x) {
  state.x = Number(x.toFixed(3));
  SETTERS.x(state.x);
  changed();
}

const plots = {};

function makePlots() {
  const over = { label: "x", moved: moveCursor };
  plots.value = new Plot(byId("plot-value"), { title: "f(x)", ...over });
  plots.first = new Plot(byId("plot-first"), { title: "f′(x)", ...over });
  plots.second = new Plot(byId("plot-second"), { title: "f″(x)", ...over });
  plots.density = new Plot(byId("plot-density"), { title: "Densities of x, A and B", label: "value" });
  plots.readout = byId("readout").tBodies[0];
  plots.gains = byId("gains").tBodies[0];
}

async function start() {
  theme();
  makePlots();
  manifest = await readManifest();
  state = readState(location.hash, manifest);
  build();
  show();
  byId("swap").addEventListener("click", exchange);
  byId("share").addEventListener("click", share);
  addEventListener("hashchange", () => {
    state = readState(location.hash, manifest);
    show();
    redraw();
  });
  redraw();
}

start().catch((error) => {
  status.textContent = `The explorer cannot start: ${error.message ?? error}`;
  status.className = "error";
});
