// What the theme leaves out for those who use a keyboard or a screen reader.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
// What scrolls sideways can be reached, and then scrolled by the arrow keys; the theme takes the mark away again.
const reachable = (wide) => wide.hasAttribute("tabindex") || wide.setAttribute("tabindex", "0");
const watch = new MutationObserver((changes) => changes.forEach(({ target }) => reachable(target)));
for (const wide of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap, .md-sidebar__scrollwrap")) {
  reachable(wide);
  watch.observe(wide, { attributes: true, attributeFilter: ["tabindex"] });
}
