// Signals and gradients through layers, drawn.

import { propagate, variances } from "./depth.js";
import { shown } from "./plot.js";

export function showDepth(plots, sides, { std, layers, rule, weight, bias }) {
  const nets = Object.values(sides).map((side) => {
    const chosen = variances(rule, side.table, std * std, { weight, bias });
    return { side: side.side, chosen, ...(chosen ? propagate(side.table, layers, std * std, chosen) : {}) };
  });
  const there = nets.filter(({ chosen }) => chosen);
  const lines = (key) =>
    there.map((net) => ({ side: net.side, x: net[key].map((_, i) => i + 1), y: net[key].map(Math.log10) }));
  draw(plots.variance, lines("q"), layers);
  draw(plots.gradient, lines("gradient"), layers);
  plots.summary.replaceChildren(...nets.map(sentence));
}

function draw(plot, lines, layers) {
  const logs = lines.flatMap(({ y }) => y).filter(Number.isFinite);
  const [low, high] = logs.length ? [Math.min(...logs), Math.max(...logs)] : [-1, 1];
  const half = Math.max(0.1, (high - low) / 2) * 1.08;
  const middle = (low + high) / 2;
  const ends = lines.map(({ side, y }) => {
    return `${side.toUpperCase()}: ${shown(10 ** y[0])} in layer 1, ${shown(10 ** y.at(-1))} in layer ${y.length}`;
  });
  plot.draw({ x: [1, layers + 1], y: [middle - half, middle + half], lines, summary: `${ends.join(". ")}.` });
}

function sentence({ side, chosen, q, chi, gradient, ended }) {
  const made = document.createElement("span");
  made.className = `sentence ${side}`;
  const name = side.toUpperCase();
  if (!chosen) {
    made.textContent = `${name} has no such weights at this standard deviation. `;
    return made;
  }
  const deep = ended ? `leaves the range of numbers after layer ${q.length}` : `ends at ${shown(q.at(-1))}`;
  const first = chi.length ? ` χ₁ is ${shown(chi[0])} in layer 1, and the gradient there is ${shown(gradient[0])} of the last.` : "";
  made.textContent = `${name}: σw² = ${shown(chosen.weight)}, σb² = ${shown(chosen.bias)}. The variance ${deep}.${first} `;
  made.dataset.value = JSON.stringify({ chosen, q, chi });
  return made;
}
