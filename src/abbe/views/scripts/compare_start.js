"use strict";
// Starts all parts; opens folded parts for printing, as paper has no clicks.
(() => {
  (window.abbe.parts ?? []).forEach((start) => start());
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.closest(".vega-embed"));
    opened.forEach((part) => (part.open = true));
  });
  window.addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
  document.documentElement.dataset.ready = "";
})();
