"use strict";
// The theme follows the system until the reader chooses one. Charts listen to "theme".
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let dark = system.matches;
  let chosen = false;
  function show() {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light theme" : "Dark theme"; // what a click gives
    document.dispatchEvent(new Event("theme"));
  }
  system.addEventListener("change", () => {
    if (!chosen) {
      dark = system.matches;
      show();
    }
  });
  button.addEventListener("click", () => {
    chosen = true;
    dark = !dark;
    show();
  });
  button.hidden = false;
  show();
})();
