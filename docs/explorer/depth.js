// Signals and gradients in a deep, wide, plain net with random weights: the mean-field maps.
// Poole et al. 2016 (arXiv 1606.05340), Schoenholz et al. 2017 (arXiv 1611.01232); lit_gelu.activations.depth.propagate.

import { moments } from "./quadrature.js";

const SMALLEST = 2 ** -70; // where the table of f ends, with room for the tails
const LARGEST = 2 ** 40;

/**
 * The variances of weights (times fan-in) and biases that a rule gives at the first layer's variance.
 * @param {"gain" | "edge" | "own"} rule
 * @returns {{weight: number, bias: number} | null} null where there is no edge of chaos
 */
export function variances(rule, table, q, own) {
  if (rule === "own") return own;
  const { square, slopeSquare } = moments(table, 0, Math.sqrt(q));
  if (rule === "gain") return square > 0 ? { weight: q / square, bias: 0 } : null;
  const bias = q - square / slopeSquare;
  return bias >= -1e-6 * q ? { weight: 1 / slopeSquare, bias: bias > 1e-6 * q ? bias : 0 } : null;
}

/**
 * @param {number} layers how many follow the first
 * @param {number} q0 variance of the first layer's pre-activations
 * @returns {{q: number[], chi: number[], gradient: number[], ended: boolean}} the variance in every layer; the factor
 *   on mean squared gradients between a layer and the next; the mean squared gradient in every layer over that in the
 *   last one; whether q left the range of numbers here, so that layers are missing
 */
export function propagate(table, layers, q0, { weight, bias }) {
  const q = [q0];
  const chi = [];
  let ended = false;
  while (q.length <= layers) {
    const { square, slopeSquare } = moments(table, 0, Math.sqrt(q.at(-1)));
    const next = weight * square + bias;
    ended = !(next > SMALLEST && next < LARGEST);
    if (ended) break;
    chi.push(weight * slopeSquare);
    q.push(next);
  }
  const gradient = [1];
  for (const factor of chi.toReversed()) gradient.unshift(gradient[0] * factor);
  return { q, chi, gradient, ended };
}
