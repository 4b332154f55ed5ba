// What the theme leaves out for those who use a keyboard or a screen reader.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
for (const wide of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap, .md-sidebar__scrollwrap")) {
  wide.tabIndex = 0; // what scrolls sideways can then be scrolled by the arrow keys
}
