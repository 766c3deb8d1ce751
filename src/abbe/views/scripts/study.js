"use strict";
// Pages of studies: tables of one value at a time, parts that start with the page, and printing.

// A table with data-choose shows the rows of one value of its first column: by a list above it, or by a click on a
// chart. Without scripts, all rows are visible.
(() => {
  function start(table) {
    const rows = [...table.tBodies[0].rows];
    const names = [...new Set(rows.map((row) => row.cells[0].textContent))];
    const field = document.createElement("span");
    const label = document.createElement("label");
    const select = document.createElement("select");
    field.className = "field";
    select.id = `choose-${table.dataset.choose}`;
    label.htmlFor = select.id;
    label.textContent = table.dataset.choose;
    select.append(...names.map((name) => new Option(name)));
    field.append(label, select);
    const controls = document.createElement("div");
    controls.className = "controls";
    controls.append(field);
    table.parentElement.before(controls);
    table.classList.add("chosen"); // its first column would say the same in every row

    function show() {
      rows.forEach((row) => (row.hidden = row.cells[0].textContent !== select.value));
    }
    select.addEventListener("change", show);
    document.addEventListener("head", (event) => {
      const name = `layer ${event.detail.layer}, head ${event.detail.head}`;
      if (!names.includes(name)) return;
      select.value = name;
      show();
      table.scrollIntoView({ block: "nearest" }); // the chart that was clicked may be far above
    });
    show();
  }

  document.querySelectorAll("table[data-choose]").forEach(start);
})();

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
