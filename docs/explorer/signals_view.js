// What becomes of a normal input: densities, expectations, gains.

import { cellEdges, normalDensity, outputDensity } from "./density.js";
import { gains, moments } from "./quadrature.js";
import { rows } from "./tables.js";
import { specOf } from "./state.js";

const SHOWN = 4.5; // standard deviations of the input that the picture's width holds
const HIGHEST = 2.5; // of the input's peak: the density of an output may be infinite at a place

export async function showSignals(plots, sides, { mean, std }) {
  const found = {};
  for (const side of Object.values(sides)) {
    const expectations = moments(side.table, mean, std);
    found[side.side] = { ...expectations, gains: gains(expectations) };
  }
  const [a, b] = [found.a, found.b];
  rows(plots.gains, [
    ["mean of f", a.mean, b.mean],
    ["deviation of f", Math.sqrt(a.variance), Math.sqrt(b.variance)],
    ["mean of f′", a.slope, b.slope],
    ["forward gain", a.gains.forward, b.gains.forward],
    ["variance gain", a.gains.variance, b.gains.variance],
    ["backward gain", a.gains.backward, b.gains.backward],
  ]);
  await showDensities(plots.density, sides, found, mean, std);
}

async function showDensities(plot, sides, found, mean, std) {
  const edges = cellEdges(mean, std);
  const interval = [mean - SHOWN * std, mean + SHOWN * std];
  const outputs = [];
  for (const side of Object.values(sides)) {
    const { value } = await side.at(edges);
    const inside = value.filter((_, i) => edges[i] >= interval[0] && edges[i] <= interval[1]);
    interval[0] = Math.min(interval[0], inside.reduce((x, y) => Math.min(x, y)));
    interval[1] = Math.max(interval[1], Math.min(mean + 3 * SHOWN * std, inside.reduce((x, y) => Math.max(x, y))));
    outputs.push({ side: side.side, value });
  }
  const room = 0.03 * (interval[1] - interval[0]);
  const range = [interval[0] - room, interval[1] + room];
  const lines = outputs.map(({ side, value }) => ({ side, ...outputDensity(edges, value, mean, std, range) }));
  const input = Array.from({ length: 241 }, (_, i) => range[0] + ((range[1] - range[0]) * i) / 240);
  const peak = normalDensity(mean, mean, std);
  const highest = Math.max(...lines.flatMap(({ density }) => density));
  const top = 1.1 * Math.max(peak, Math.min(HIGHEST * peak, highest));
  const stems = lines.flatMap(({ side, atoms }) => atoms.map(({ at, mass }) => ({ side, at, mass })));
  plot.draw({
    x: range,
    y: [0, top],
    area: { x: input, y: input.map((x) => normalDensity(x, mean, std)) },
    lines: lines.map(({ side, y, density }) => ({ side, x: y, y: density })),
    stems: stems.map(({ side, at, mass }, row) => ({
      side,
      x: at,
      y: mass * top * 0.9,
      row,
      text: `${side.toUpperCase()}: ${(100 * mass).toFixed(1)} % at ${Number(at.toPrecision(3))}`,
    })),
    summary: Object.values(sides)
      .map((side) => {
        const { mean: middle, variance } = found[side.side];
        const numbers = `mean ${middle.toPrecision(3)}, deviation ${Math.sqrt(variance).toPrecision(3)}`;
        return `${side.side.toUpperCase()}, ${specOf(side)}: ${numbers}`;
      })
      .join(". "),
  });
}
