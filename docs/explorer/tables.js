// Rows of the page's tables.

import { element } from "./controls.js";
import { shown } from "./plot.js";

/**
 * @param {HTMLTableSectionElement} body
 * @param {[string, ...number][]} lines a row's name and its numbers, which are also kept in `data-value`
 */
export function rows(body, lines) {
  body.replaceChildren(
    ...lines.map(([name, ...numbers]) => {
      const cells = numbers.map((number) => {
        const cell = element("td", {}, shown(number));
        cell.dataset.value = String(number);
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
    }),
  );
}
