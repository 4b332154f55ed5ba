// From a drawing to the bytes that the file takes. Pure functions of numbers: no page, no canvas.
//
// `ink` is a Float32Array with one row after the other, 0 (paper) to 1 (ink). Every output pixel is the mean of the ink
// over the rectangle that it covers, cut edges counted by their share, so edges are grey as in a scan.

const MNIST_BOX = 20; // pixels of the longer side, of 28
const DIGITS_COLUMNS = 6; // of 8: where wider, the digit is narrowed, as nearly all of the set are

/**
 * What the nets were trained on, by the side of the image that the file takes. `pen` is the width of a stroke on the
 * page as a share of the drawing's side: as thick, for a digit that fills most of it, as in that set.
 */
export const SETS = {
  28: {
    name: "MNIST",
    pen: 0.11,
    pixels: mnistPixels,
    method:
      "The ink's bounding box is scaled so that its longer side is 20 pixels, with grey edges (each pixel is the mean of " +
      "the ink it covers), and placed in 28x28 with its centre of mass in the middle: what MNIST's makers did with the " +
      "scans, except that they moved the digit by whole pixels.",
  },
  8: {
    name: "scikit-learn's digits",
    pen: 0.15,
    pixels: digitsPixels,
    method:
      "The ink's bounding box is scaled to a height of 8 cells, and in width by the same factor but to 6 at most, and " +
      "centred; each cell holds the share of ink in it as a level from 0 to 16: what the set's makers got by counting the " +
      "dark pixels in blocks of 4x4 of scans scaled to a box.",
  },
};

/**
 * The smallest rectangle with all ink.
 * @param {Float32Array} ink
 * @param {number} width pixels in a row
 * @returns {{left: number, top: number, right: number, bottom: number} | null} null for an empty drawing
 */
export function bounds(ink, width) {
  const box = { left: Infinity, top: Infinity, right: 0, bottom: 0 };
  ink.forEach((value, i) => {
    if (value <= 0) return;
    const x = i % width;
    const y = Math.floor(i / width);
    box.left = Math.min(box.left, x);
    box.right = Math.max(box.right, x + 1);
    box.top = Math.min(box.top, y);
    box.bottom = Math.max(box.bottom, y + 1);
  });
  return box.right > 0 ? box : null;
}

/**
 * The ink's centre of mass; a pixel's mass lies in its middle.
 * @param {Float32Array} ink not all 0
 * @param {number} width pixels in a row
 * @returns {{x: number, y: number}}
 */
export function centreOfMass(ink, width) {
  let mass = 0;
  let x = 0;
  let y = 0;
  ink.forEach((value, i) => {
    mass += value;
    x += value * ((i % width) + 0.5);
    y += value * (Math.floor(i / width) + 0.5);
  });
  return { x: x / mass, y: y / mass };
}

/**
 * Means of the ink over the cells of a grid of `cells` x `cells`; outside the drawing there is paper.
 * @param {Float32Array} ink
 * @param {number} width pixels in a row
 * @param {{left: number, top: number, cellWidth: number, cellHeight: number}} grid in pixels of the drawing
 * @param {number} cells
 * @returns {Float64Array}
 */
export function cellMeans(ink, width, grid, cells) {
  const columns = overlaps(grid.left, grid.cellWidth, cells, width);
  const rows = overlaps(grid.top, grid.cellHeight, cells, ink.length / width);
  const means = new Float64Array(cells * cells);
  rows.forEach((row, i) => {
    columns.forEach((column, j) => {
      let mean = 0;
      for (const [y, high] of row) for (const [x, wide] of column) mean += high * wide * ink[y * width + x];
      means[i * cells + j] = mean;
    });
  });
  return means;
}

/** For each of `cells` intervals that begin at `start`: [pixel, share of the interval that lies in it], ... */
function overlaps(start, size, cells, length) {
  return Array.from({ length: cells }, (_, i) => {
    const from = start + i * size;
    const to = from + size;
    const parts = [];
    for (let p = Math.max(0, Math.floor(from)); p < Math.min(length, to); p++) {
      const share = (Math.min(to, p + 1) - Math.max(from, p)) / size;
      if (share > 0) parts.push([p, share]);
    }
    return parts;
  });
}

/**
 * A drawing as an image of MNIST.
 * @param {Float32Array} ink
 * @param {number} width pixels in a row
 * @returns {Uint8Array} 28x28, 0 to 255; all 0 for an empty drawing
 */
export function mnistPixels(ink, width) {
  const box = bounds(ink, width);
  if (!box) return new Uint8Array(28 * 28);
  const size = Math.max(box.right - box.left, box.bottom - box.top) / MNIST_BOX;
  const { x, y } = centreOfMass(ink, width);
  const grid = { left: x - 14 * size, top: y - 14 * size, cellWidth: size, cellHeight: size };
  return Uint8Array.from(cellMeans(ink, width, grid, 28), (mean) => Math.round(255 * mean));
}

/**
 * A drawing as an image of scikit-learn's digits.
 * @param {Float32Array} ink
 * @param {number} width pixels in a row
 * @returns {Uint8Array} 8x8, 0 to 16; all 0 for an empty drawing
 */
export function digitsPixels(ink, width) {
  const box = bounds(ink, width);
  if (!box) return new Uint8Array(8 * 8);
  const cellHeight = (box.bottom - box.top) / 8;
  const cellWidth = Math.max(cellHeight, (box.right - box.left) / DIGITS_COLUMNS);
  const grid = { left: (box.left + box.right) / 2 - 4 * cellWidth, top: box.top, cellWidth, cellHeight };
  return Uint8Array.from(cellMeans(ink, width, grid, 8), (mean) => Math.round(16 * mean));
}
