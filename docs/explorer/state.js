// What a person chose, and how the page's address holds it: #a=swish&a.beta=1.5&b=gelu&std=2

export const NUMBERS = {
  range: { initial: 4, low: 1, high: 16 },
  x: { initial: 1, low: -16, high: 16 },
  mean: { initial: 0, low: -4, high: 4 },
  std: { initial: 1, low: 0.1, high: 4 },
};
const INITIAL = { a: "swish", b: "gelu" };

export function defaults(entry) {
  return Object.fromEntries(entry.parameters.map((parameter) => [parameter.name, parameter.default]));
}

function bounded(text, { low, high }, otherwise) {
  const number = text === null || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(number) ? Math.min(high, Math.max(low, number)) : otherwise;
}

/** Read a state; what is missing, unknown or out of range becomes the default or the nearest end. */
export function readState(hash, manifest) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const side of ["a", "b"]) {
    const entry = manifest.byName.get(given.get(side)) ?? manifest.byName.get(INITIAL[side]) ?? manifest.activations[0];
    const values = entry.parameters.map((parameter) => [
      parameter.name,
      bounded(given.get(`${side}.${parameter.name}`), parameter, parameter.default),
    ]);
    state[side] = { entry, values: Object.fromEntries(values) };
  }
  for (const [key, about] of Object.entries(NUMBERS)) state[key] = bounded(given.get(key), about, about.initial);
  return state;
}

/** Write a state as an address's fragment; what is at its default is left out. */
export function writeState(state) {
  const written = new URLSearchParams();
  for (const side of ["a", "b"]) {
    const { entry, values } = state[side];
    written.set(side, entry.name);
    for (const parameter of entry.parameters) {
      if (values[parameter.name] !== parameter.default) written.set(`${side}.${parameter.name}`, values[parameter.name]);
    }
  }
  for (const [key, { initial }] of Object.entries(NUMBERS)) if (state[key] !== initial) written.set(key, state[key]);
  return `#${written}`;
}

/** The text by which lit-gelu knows an activation with its parameters. */
export function specOf({ entry, values }) {
  const given = entry.parameters.filter((parameter) => values[parameter.name] !== parameter.default);
  const text = given.map(({ name }) => `${name}=${values[name]}`).join(", ");
  return text ? `${entry.name}(${text})` : entry.name;
}
