"use strict";
// All parts start; paper has no clicks, so what is folded is opened for it.
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
