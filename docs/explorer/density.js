// The distribution of f(x) for a normal x: the mass of each narrow cell of x goes to where f puts its ends.

const CELLS = 6000;
const REACH = 6; // standard deviations
const BINS = 200;
const ATOM = 1e-9; // two ends of a cell that are nearer than this (of the range) are one value

/** The inputs whose images `outputDensity` takes. */
export function cellEdges(mean, std) {
  return Float64Array.from({ length: CELLS + 1 }, (_, i) => mean + std * REACH * ((2 * i) / CELLS - 1));
}

export function normalDensity(x, mean, std) {
  const z = (x - mean) / std;
  return Math.exp(-0.5 * z * z) / (std * Math.sqrt(2 * Math.PI));
}

/**
 * @param {ArrayLike<number>} edges of the cells
 * @param {ArrayLike<number>} values f at the edges
 * @param {[number, number]} range of outputs
 * @returns {{y: number[], density: number[], atoms: {at: number, mass: number}[]}} the density at the middles of bins,
 *   and values that f takes with a probability of their own
 */
export function outputDensity(edges, values, mean, std, [low, high]) {
  const width = (high - low) / BINS;
  const bins = new Float64Array(BINS);
  const atoms = new Map();
  for (let i = 0; i < CELLS; i++) {
    const mass = normalDensity((edges[i] + edges[i + 1]) / 2, mean, std) * (edges[i + 1] - edges[i]);
    const [from, to] = values[i] < values[i + 1] ? [values[i], values[i + 1]] : [values[i + 1], values[i]];
    if (to - from <= ATOM * (high - low)) {
      const at = Number(from.toPrecision(6));
      atoms.set(at, (atoms.get(at) ?? 0) + mass);
    } else spread(bins, (from - low) / width, (to - low) / width, mass);
  }
  const heavy = [...atoms].map(([at, mass]) => ({ at, mass })).filter(({ mass }) => mass > 1e-3);
  for (const [at, mass] of atoms) {
    if (mass <= 1e-3) spread(bins, (at - low) / width, (at - low) / width + 1e-9, mass);
  }
  return {
    y: Array.from(bins, (_, i) => low + (i + 0.5) * width),
    density: Array.from(bins, (mass) => mass / width),
    atoms: heavy.sort((a, b) => b.mass - a.mass).slice(0, 3),
  };
}

/** Spread a mass evenly over the bins between two places, in units of a bin; what lies outside is left out. */
function spread(bins, from, to, mass) {
  const perUnit = mass / (to - from);
  for (let bin = Math.max(0, Math.floor(from)); bin < Math.min(BINS, Math.ceil(to)); bin++) {
    bins[bin] += perUnit * (Math.min(to, bin + 1) - Math.max(from, bin));
  }
}
