"use strict";
// Tables with class "sortable": a button in every header sorts the rows. Absent values stay last.
(() => {
  const abbe = (window.abbe ??= {});
  abbe.parts ??= [];

  // Numbers by size, texts by alphabet, absent ones and NaN after all others in both directions.
  function compare(a, b, down) {
    const missing = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
    return (down ? -1 : 1) * (order || 0); // infinities of one sign differ by NaN
  }

  // A cell holds its sort value, or starts with it, as "+1,024 (900 to 1,100)"; infinities are spelled as in Python.
  function sortValue(cell) {
    const text = cell.dataset.sort ?? cell.textContent;
    if (text === "–") return "";
    const known = { inf: Infinity, "-inf": -Infinity, nan: NaN }[text];
    const start = text.match(/^[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?![\w-])/)?.[0];
    return known ?? (start ? Number(start.replaceAll(",", "")) : text);
  }

  function mark(headers, chosen, down) {
    const order = down ? "descending" : "ascending";
    headers.forEach((header) => header.setAttribute("aria-sort", header === chosen ? order : "none"));
  }

  function sortable(table) {
    const headers = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    headers.forEach((header, column) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "sort" });
      button.append(...header.childNodes);
      header.append(button);
      header.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = header.getAttribute("aria-sort") === "ascending";
        const rows = [...body.rows].map((row) => [sortValue(row.cells[column]), row]);
        rows.sort((a, b) => compare(a[0], b[0], down));
        body.append(...rows.map(([, row]) => row));
        mark(headers, header, down);
      });
    });
  }

  Object.assign(abbe, { compare, markSorted: mark });
  abbe.parts.push(() => document.querySelectorAll("table.sortable").forEach(sortable));
})();
