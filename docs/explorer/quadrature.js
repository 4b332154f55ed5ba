// Expectations of f and f' over normal distributions, by Gauss-Legendre quadrature over panels.

const NODES = 24;
const SMALLEST = -40; // the first panels end at powers of 2 from here ...
const LARGEST = 24; // ... to here
const TOLERANCE = 2e-7; // of a panel's integral: the values are float32
const NOISE = 3e-8; // times a panel's width
const LEVELS = 24;
const REACH = 37; // standard deviations

/** Nodes and weights of Gauss-Legendre quadrature on [-1, 1], by Newton's method on the Legendre polynomial. */
export function gaussLegendre(n) {
  const nodes = new Float64Array(n);
  const weights = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    let x = -Math.cos((Math.PI * (i + 0.75)) / (n + 0.5));
    let slope = 1;
    for (let round = 0; round < 100; round++) {
      let [before, value] = [1, x];
      for (let k = 2; k <= n; k++) [before, value] = [value, ((2 * k - 1) * x * value - (k - 1) * before) / k];
      slope = (n * (x * value - before)) / (x * x - 1);
      const step = value / slope;
      x -= step;
      if (Math.abs(step) < 1e-16) break;
    }
    nodes[i] = x;
    weights[i] = 2 / ((1 - x * x) * slope * slope);
  }
  return { nodes, weights };
}

const RULE = gaussLegendre(NODES);

/** Panels that are narrow about 0, where activations bend and where deep layers' signals may be tiny. */
function firstPanels(kinks) {
  const marks = new Set([0, ...kinks]);
  const both = (mark) => marks.add(mark).add(-mark);
  for (let k = SMALLEST; k < -1; k++) both(2 ** k);
  for (let k = 1; k <= 32; k++) both(k / 2);
  for (let k = 4; k < LARGEST; k++) both(1.5 * 2 ** k).add(2 ** (k + 1)).add(-(2 ** (k + 1)));
  const edges = [...marks].sort((a, b) => a - b);
  return edges.slice(1).map((right, i) => [edges[i], right]);
}

/** f and f' at the nodes of panels, and for each panel the integrals of f, f^2, f'^2 and those of their sizes. */
async function measured(curves, values, panels) {
  const x = new Float64Array(panels.length * NODES);
  panels.forEach(([left, right], p) => {
    for (let i = 0; i < NODES; i++) x[p * NODES + i] = (left + right) / 2 + ((right - left) / 2) * RULE.nodes[i];
  });
  const { value, first } = await curves.at(x, values);
  return panels.map(([left, right], p) => {
    const at = p * NODES;
    const sums = [0, 0, 0, 0];
    for (let i = 0; i < NODES; i++) {
      const [w, f, slope] = [(RULE.weights[i] * (right - left)) / 2, value[at + i], first[at + i]];
      sums[0] += w * f;
      sums[1] += w * f * f;
      sums[2] += w * slope * slope;
      sums[3] += w * Math.abs(f);
    }
    const end = at + NODES;
    return { left, right, sums, x: x.subarray(at, end), value: value.subarray(at, end), first: first.subarray(at, end) };
  });
}

function agree(whole, halves) {
  const noise = NOISE * (whole.right - whole.left);
  const sizes = [halves[0].sums[3] + halves[1].sums[3], whole.sums[1], whole.sums[2]];
  return sizes.every((size, k) => Math.abs(halves[0].sums[k] + halves[1].sums[k] - whole.sums[k]) <= TOLERANCE * size + noise);
}

/**
 * f and f' where they have to be known for expectations over any normal distribution about 0: panels are halved until
 * a panel and its halves agree.
 * @param {import("./curves.js").Curves} curves
 * @param {Object<string, number>} values of the parameters
 * @returns {Promise<{x: Float64Array, weight: Float64Array, value: Float64Array, first: Float64Array}>}
 */
export async function tabulate(curves, values) {
  const settled = [];
  let open = await measured(curves, values, firstPanels(curves.entry.kinks));
  for (let level = 0; open.length; level++) {
    const pieces = open.flatMap(({ left, right }) => [[left, (left + right) / 2], [(left + right) / 2, right]]);
    const halves = await measured(curves, values, pieces);
    const rough = [];
    open.forEach((panel, p) => {
      const pair = [halves[2 * p], halves[2 * p + 1]];
      const narrow = panel.right - panel.left < 1e-7 * Math.max(Math.abs(panel.left), Math.abs(panel.right));
      if (level === LEVELS || narrow || agree(panel, pair)) settled.push(panel);
      else rough.push(...pair);
    });
    open = rough;
  }
  return joined(settled);
}

function joined(panels) {
  const size = panels.length * NODES;
  const table = Object.fromEntries(["x", "weight", "value", "first"].map((key) => [key, new Float64Array(size)]));
  panels.forEach((panel, p) => {
    for (let i = 0; i < NODES; i++) {
      const at = p * NODES + i;
      table.x[at] = panel.x[i];
      table.weight[at] = (RULE.weights[i] * (panel.right - panel.left)) / 2;
      table.value[at] = panel.value[i];
      table.first[at] = panel.first[i];
    }
  });
  return table;
}

/**
 * Moments of f and f' for x ~ N(mean, std^2).
 * @returns {{mean: number, square: number, variance: number, slope: number, slopeSquare: number}} E f, E f^2,
 *   E f^2 - (E f)^2, E f', E f'^2
 */
export function moments(table, mean, std) {
  const { x, weight, value, first } = table;
  const scale = 1 / (std * Math.sqrt(2 * Math.PI));
  const found = { mean: 0, square: 0, variance: 0, slope: 0, slopeSquare: 0 };
  const masses = new Float64Array(x.length);
  for (let i = 0; i < x.length; i++) {
    const z = (x[i] - mean) / std;
    if (z > REACH || z < -REACH) continue;
    const mass = weight[i] * scale * Math.exp(-0.5 * z * z);
    masses[i] = mass;
    found.mean += mass * value[i];
    found.square += mass * value[i] * value[i];
    found.slope += mass * first[i];
    found.slopeSquare += mass * first[i] * first[i];
  }
  for (let i = 0; i < x.length; i++) if (masses[i]) found.variance += masses[i] * (value[i] - found.mean) ** 2;
  if (!(found.variance > 1e-13 * found.square)) found.variance = 0; // float32's last digit: f is constant
  return found;
}

/** The three gains of lit_gelu.activations.gain; Infinity where the expectation is 0. */
export function gains({ square, variance, slopeSquare }) {
  const gain = (expectation) => (expectation > 0 ? 1 / Math.sqrt(expectation) : Infinity);
  return { forward: gain(square), variance: gain(variance), backward: gain(slopeSquare) };
}
