// What the theme leaves out: code and tables that a keyboard can scroll, and the sidebar's name.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("pre, .table-wrapper").forEach((one) => one.setAttribute("tabindex", "0"));
  document.querySelectorAll("aside.sidebar-drawer").forEach((one) => one.setAttribute("aria-label", "Pages"));
});
