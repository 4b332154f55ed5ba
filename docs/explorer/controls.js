// Sliders with a field for the exact number, and lists.

let count = 0;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/**
 * A slider and a number field for one value, which call `changed` with it.
 * @param {object} about label, low, high, logarithmic, digits after the point of what the slider gives
 */
export function slider({ label, name, low, high, logarithmic = false, digits = 2 }, value, changed) {
  const id = `slider-${++count}`;
  const [from, to] = logarithmic ? [Math.log(low), Math.log(high)] : [low, high];
  const step = logarithmic ? (to - from) / 200 : 10 ** -digits;
  const range = element("input", { type: "range", id, name, min: String(from), max: String(to), step: String(step) });
  const field = element("input", {
    type: "number", min: String(low), max: String(high), step: "any", name: `${name}-number`,
    "aria-label": `${label}, exact value`,
  });
  const set = (number) => {
    range.value = logarithmic ? Math.log(number) : number;
    range.setAttribute("aria-valuetext", String(number));
    field.value = String(number);
  };
  range.addEventListener("input", () => {
    const exact = Number(range.value);
    const number = logarithmic ? Number(Math.exp(exact).toPrecision(3)) : Number(exact.toFixed(digits));
    range.setAttribute("aria-valuetext", String(number));
    field.value = String(number);
    changed(Math.min(high, Math.max(low, number)));
  });
  field.addEventListener("change", () => {
    const number = field.value.trim() === "" ? NaN : Number(field.value);
    const kept = Number.isFinite(number) ? Math.min(high, Math.max(low, Number(number.toFixed(6)))) : value;
    set(kept);
    changed(kept);
  });
  set(value);
  const box = element("div", { class: "slider" }, element("label", { for: id }, label), range, field);
  return { box, set };
}

export function list({ label, name, options }, value, changed) {
  const id = `list-${++count}`;
  const made = element("select", { id, name }, ...options.map(([key, text]) => element("option", { value: key }, text)));
  made.value = value;
  made.addEventListener("change", () => changed(made.value));
  return { box: element("div", { class: "list" }, element("label", { for: id }, label), made), set: (key) => (made.value = key) };
}
