// f, f' and f'' of both activations, and their values at one place.

import { shown } from "./plot.js";
import { specOf } from "./state.js";
import { rows } from "./tables.js";

const POINTS = 801;
const BESIDE = 1e-5; // a jump is drawn between two points that are so near to it
const ORDERS = [["value", "f"], ["first", "f′"], ["second", "f″"]];

/** Evenly distributed places, and two beside each kink. */
function places(range, kinks) {
  const even = Array.from({ length: POINTS }, (_, i) => range * ((2 * i) / (POINTS - 1) - 1));
  const apart = even.filter((x) => !kinks.some((kink) => Math.abs(x - kink) < BESIDE));
  const beside = kinks.filter((kink) => Math.abs(kink) < range).flatMap((kink) => [kink - BESIDE, kink + BESIDE]);
  return [...apart, ...beside].sort((a, b) => a - b);
}

/** Where f' jumps within the picture: f'' has a point mass there, upwards or downwards. */
function jumps(side, { xs, all }, range) {
  const near = (x) => xs.findIndex((each) => Math.abs(each - x) < BESIDE / 2);
  return side.entry.kinks
    .filter((kink) => Math.abs(kink) < range)
    .map((kink) => [kink, all.first[near(kink + BESIDE)] - all.first[near(kink - BESIDE)]])
    .filter(([, jump]) => Math.abs(jump) > 1e-3)
    .map(([kink, jump]) => ({ side: side.side, x: kink, up: jump > 0 }));
}

/** An interval that holds all values, with room above and below; never less than a tenth. */
function around(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const middle = (low + high) / 2;
  const half = Math.max(0.05, (high - low) / 2) * 1.08;
  return [middle - half, middle + half];
}

export async function showFunctions(plots, sides, { range, x: cursor }) {
  const at = Math.min(range, Math.max(-range, cursor));
  const drawn = {};
  for (const side of Object.values(sides)) {
    const xs = places(range, side.entry.kinks);
    const all = await side.at([...xs, cursor]);
    side.atCursor = Object.fromEntries(ORDERS.map(([key]) => [key, all[key][xs.length]]));
    drawn[side.side] = { xs, all };
  }
  for (const [key, name] of ORDERS) {
    const lines = Object.values(sides).map((side) => {
      const { xs, all } = drawn[side.side];
      return { side: side.side, x: xs, y: all[key].subarray(0, xs.length), breaks: key === "value" ? [] : side.entry.kinks };
    });
    const ends = lines.map(({ side, y }) => {
      const which = `${side.toUpperCase()}, ${specOf(sides[side])}`;
      return `${which}: ${shown(y[0])} at ${shown(-range)}, ${shown(y.at(-1))} at ${shown(range)}`;
    });
    plots[key].draw({
      x: [-range, range],
      y: around(lines.flatMap(({ y }) => Array.from(y))),
      lines,
      cursor: at,
      masses: key === "second" ? Object.values(sides).flatMap((side) => jumps(side, drawn[side.side], range)) : [],
      points: at === cursor ? lines.map(({ side }) => ({ side, x: at, y: sides[side].atCursor[key] })) : [],
      summary: `${name} for x from ${-range} to ${range}. ${ends.join(". ")}.`,
    });
  }
  const [a, b] = [sides.a.atCursor, sides.b.atCursor];
  rows(plots.readout, ORDERS.map(([key, name]) => [`${name}(${shown(cursor)})`, a[key], b[key], a[key] - b[key]]));
}
