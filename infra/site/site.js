// Names and keyboard access for parts that the theme's script adds to a page.
const label = () => {
  document.querySelectorAll("nav.md-code__nav:not([aria-label])").forEach((nav, number) => {
    nav.setAttribute("aria-label", `Code block ${number + 1}`);
  });
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((area) => {
    if (area.scrollWidth > area.clientWidth) area.tabIndex = 0;
  });
};
new MutationObserver(label).observe(document.documentElement, { childList: true, subtree: true });
addEventListener("resize", label);
label();
