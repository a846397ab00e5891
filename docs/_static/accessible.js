// What the theme leaves out: levels of the sidebar's headings, and code and tables that a keyboard can scroll.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".caption[role=heading]").forEach((one) => one.setAttribute("aria-level", "2"));
  document.querySelectorAll("pre, .table-wrapper").forEach((one) => one.setAttribute("tabindex", "0"));
  document.querySelectorAll("aside.sidebar-drawer").forEach((one) => one.setAttribute("aria-label", "Pages"));
});
