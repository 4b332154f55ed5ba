// Line plots in SVG, as wide as the place that they stand in.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 250;
const MARGIN = { left: 48, right: 14, top: 10, bottom: 38 };

function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** Numbers at round distances within an interval, about `many` of them. */
export function ticks(low, high, many) {
  const rough = (high - low) / many;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

export function shown(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return number.toExponential(3).replace("-", "−");
  return String(Number(number.toPrecision(6))).replace("-", "−");
}

export class Plot {
  /**
   * @param {HTMLElement} figure
   * @param {object} about title (shown), label of the horizontal axis, and moved(x), which gets the place
   *   of a pointer
   */
  constructor(figure, { title, label, moved = null }) {
    this.figure = figure;
    this.about = { title, label };
    this.caption = document.createElement("figcaption");
    this.caption.textContent = title;
    this.svg = svg("svg", { role: "img", height: HEIGHT });
    figure.append(this.caption, this.svg);
    new ResizeObserver(() => this.drawn && this.draw(this.drawn)).observe(figure);
    if (moved) this.#follow(moved);
  }

  #follow(moved) {
    const place = (event) => {
      if (!this.scale || (event.type === "pointermove" && event.pointerType !== "mouse" && !event.buttons)) return;
      const x = this.scale.inverse(event.clientX - this.svg.getBoundingClientRect().left);
      moved(Math.min(this.drawn.x[1], Math.max(this.drawn.x[0], x)));
    };
    this.svg.addEventListener("pointermove", place);
    this.svg.addEventListener("pointerdown", place);
  }

  /**
   * @param {object} drawn x and y: intervals; lines: {side, x, y, breaks}; area: {x, y}; stems: {side, x, y, text, row};
   *   cursor: a place; points: {side, x, y}; masses: {side, x, up}, drawn as arrows; summary: what the picture shows, in words
   */
  draw(drawn) {
    this.drawn = drawn;
    const width = Math.max(220, this.figure.clientWidth);
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    const [[x0, x1], [y0, y1]] = [drawn.x, drawn.y];
    const x = (value) => MARGIN.left + ((value - x0) / (x1 - x0)) * inner.width;
    const limit = (value) => Math.min(3 * HEIGHT, Math.max(-2 * HEIGHT, value)); // far outside is as good as infinite
    const y = (value) => limit(MARGIN.top + ((y1 - value) / (y1 - y0)) * inner.height);
    this.scale = { x, y, inverse: (pixel) => x0 + ((pixel - MARGIN.left) / inner.width) * (x1 - x0) };
    this.svg.replaceChildren(svg("title", {}, `${this.about.title}. ${drawn.summary ?? ""}`));
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#axes(drawn, inner, x, y);
    const clip = `clip-${this.figure.id}`;
    const window = svg("clipPath", { id: clip });
    window.append(svg("rect", { x: MARGIN.left, y: MARGIN.top - 2, width: inner.width, height: inner.height + 4 }));
    const lines = svg("g", { "clip-path": `url(#${clip})` });
    this.svg.append(window, lines);
    if (drawn.area) lines.append(this.#area(drawn.area, x, y));
    if (drawn.cursor !== undefined) {
      lines.append(svg("path", { class: "cursor", d: `M${x(drawn.cursor)} ${MARGIN.top}V${MARGIN.top + inner.height}` }));
    }
    for (const line of drawn.lines) lines.append(svg("path", { class: `line ${line.side}`, d: path(line, x, y) }));
    for (const stem of drawn.stems ?? []) this.#stem(stem, x, y, width);
    for (const { side, x: at, y: value } of drawn.points ?? []) {
      lines.append(svg("circle", { class: `point ${side}`, cx: x(at), cy: y(value), r: 4 }));
    }
    for (const { side, x: at, up } of drawn.masses ?? []) {
      const [tip, shaft] = up ? [-34, -26] : [34, 26];
      const head = `M${x(at) - 5} ${y(0) + shaft}L${x(at)} ${y(0) + tip}L${x(at) + 5} ${y(0) + shaft}Z`;
      lines.append(svg("path", { class: `line mass ${side}`, d: `M${x(at)} ${y(0)}V${y(0) + shaft}` }));
      lines.append(svg("path", { class: `head ${side}`, d: head }));
    }
  }

  #axes({ x: [x0, x1], y: [y0, y1] }, inner, x, y) {
    const bottom = MARGIN.top + inner.height;
    const grid = svg("g", { class: "axes" });
    const many = Math.max(3, Math.min(8, Math.floor(inner.width / 60)));
    for (const tick of ticks(x0, x1, many)) {
      grid.append(svg("path", { class: tick === 0 ? "zero" : "grid", d: `M${x(tick)} ${MARGIN.top}V${bottom}` }));
      grid.append(svg("text", { x: x(tick), y: bottom + 15, "text-anchor": "middle" }, shown(tick)));
    }
    const marks = ticks(y0, y1, 5).map((tick) => [tick, shown(tick)]);
    for (const [at, text] of marks) {
      const zero = at === 0 ? "zero" : "grid";
      grid.append(svg("path", { class: zero, d: `M${MARGIN.left} ${y(at)}H${MARGIN.left + inner.width}` }));
      grid.append(svg("text", { x: MARGIN.left - 6, y: y(at) + 4, "text-anchor": "end" }, text.replace("-", "−")));
    }
    grid.append(svg("text", { x: MARGIN.left + inner.width, y: HEIGHT - 6, "text-anchor": "end" }, this.about.label));
    this.svg.append(grid);
  }

  #area(area, x, y) {
    const top = path({ ...area, breaks: [] }, x, y);
    return svg("path", { class: "area", d: `${top}L${x(area.x.at(-1))} ${y(0)}L${x(area.x[0])} ${y(0)}Z` });
  }

  #stem({ side, x: at, y: height, text, row }, x, y, width) {
    const left = x(at) > width / 2;
    const place = { x: x(at) + (left ? -9 : 9), y: MARGIN.top + 14 + 17 * row, "text-anchor": left ? "end" : "start" };
    this.svg.append(svg("path", { class: `line stem ${side}`, d: `M${x(at)} ${y(0)}V${y(height)}` }));
    this.svg.append(svg("circle", { class: `point ${side}`, cx: x(at), cy: y(height), r: 4 }));
    this.svg.append(svg("text", { class: `label ${side}`, ...place }, text));
  }
}

/** An SVG path through points; it is broken where a line's `breaks` say that the function jumps. */
function path({ x: xs, y: ys, breaks = [] }, x, y) {
  let text = "";
  let next = 0;
  for (let i = 0; i < xs.length; i++) {
    let command = i === 0 ? "M" : "L";
    while (next < breaks.length && breaks[next] <= xs[i]) {
      if (i > 0 && xs[i - 1] < breaks[next]) command = "M";
      next++;
    }
    text += `${command}${x(xs[i]).toFixed(2)} ${y(ys[i]).toFixed(2)}`;
  }
  return text;
}
