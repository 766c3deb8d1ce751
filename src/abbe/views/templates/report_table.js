"use strict";
// The table of everything: filters, sorting, pages of 50 rows, and the filtered rows as files.
(() => {
  const abbe = window.abbe;
  const { element, show, offer } = abbe;
  const byId = (id) => document.getElementById(id);
  const PAGE = 50;
  const FILTERS = ["measure", "length", "n", "layer", "head"];
  const NONE = { length: "no single length", n: "no set size", layer: "all layers together", head: "all heads together" };
  const DIGITS = 5;
  const state = { rows: [], page: 0, sorted: null, down: false };
  const counted = (number) => number.toLocaleString("en");
  const select = (name) => byId(`filter-${name}`);

  function offerFilters() {
    const { table, about } = abbe;
    const labels = new Map(about.measures.map(({ name, label }) => [name, label]));
    const texts = { measure: (name) => labels.get(name) ?? name, length: (length) => length.toLocaleString("en") };
    for (const name of FILTERS) {
      const { values, codes } = table.columns[name];
      const present = new Set(codes);
      const order = name === "measure" ? about.measures.map((found) => found.name) : values.filter((found) => found !== null);
      const options = order.map((found) => [String(found), String((texts[name] ?? String)(found))]);
      if (present.has(values.length - 1) && NONE[name]) options.push(["none", NONE[name]]);
      offer(select(name), [["", "all"], ...options], "");
      select(name).addEventListener("change", filter);
    }
  }

  // Rows whose code is the chosen one in every filter that is set.
  function filter() {
    const { table } = abbe;
    const tests = FILTERS.filter((name) => select(name).value !== "").map((name) => {
      const { values, codes } = table.columns[name];
      const wanted = select(name).value;
      return [codes, values.findIndex((value) => (value === null ? wanted === "none" : String(value) === wanted))];
    });
    state.rows = [];
    for (let row = 0; row < table.rows; row += 1) {
      if (tests.every(([codes, code]) => codes[row] === code)) state.rows.push(row);
    }
    state.page = 0;
    sort();
  }

  function sort() {
    const { table, compare } = abbe;
    const { sorted, down } = state;
    if (sorted) state.rows.sort((a, b) => compare(table.get(sorted, a), table.get(sorted, b), down) || a - b);
    draw();
  }

  function cell(name, row) {
    const value = abbe.table.get(name, row);
    if (name === "measure") return element("td", {}, value);
    return element("td", { class: "number" }, show(value, DIGITS));
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(state.rows.length / PAGE));
    const from = state.page * PAGE;
    const shown = state.rows.slice(from, from + PAGE);
    byId("rows").replaceChildren(...shown.map((row) => element("tr", {}, ...state.columns.map((name) => cell(name, row)))));
    byId("rows-told").textContent = shown.length
      ? `rows ${counted(from + 1)} to ${counted(from + shown.length)} of ${counted(state.rows.length)}`
      : "no row fits these filters";
    byId("page-before").disabled = byId("page-first").disabled = state.page === 0;
    byId("page-after").disabled = byId("page-last").disabled = state.page >= pages - 1;
  }

  function turn(to) {
    const last = Math.max(0, Math.ceil(state.rows.length / PAGE) - 1);
    state.page = Math.min(Math.max(to(state.page, last), 0), last);
    draw();
  }

  function headers() {
    const cells = state.columns.map((name) => {
      const header = element("th", { scope: "col", "aria-sort": "none" });
      const button = element("button", { type: "button", class: "sort" }, name === "n" ? "N" : name);
      button.addEventListener("click", () => {
        state.down = header.getAttribute("aria-sort") === "ascending";
        state.sorted = name;
        state.page = 0;
        abbe.markSorted(cells, header, state.down);
        sort();
      });
      header.append(button);
      return header;
    });
    byId("row-headers").replaceChildren(...cells);
  }

  function quoted(value) {
    if (value === null) return "";
    if (typeof value === "number" && !Number.isFinite(value)) return { Infinity: "inf", "-Infinity": "-inf" }[value] ?? "NaN";
    const text = String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv() {
    const names = Object.keys(abbe.table.columns);
    const lines = state.rows.map((row) => names.map((name) => quoted(abbe.table.get(name, row))).join(","));
    return [names.join(","), ...lines, ""].join("\n");
  }

  function parquetFile() {
    return abbe.parquet(Object.entries(abbe.table.columns).map(([name, { kind }]) => ({
      name,
      type: kind === "decimals" ? "double" : ["model", "measure"].includes(name) ? "text" : "int",
      values: state.rows.map((row) => abbe.table.get(name, row)),
    })));
  }

  function save(content, type, ending) {
    const plain = abbe.about.model.replaceAll(/[^A-Za-z0-9._-]+/g, "-").replaceAll(/^[-.]+|[-.]+$/g, "");
    const model = plain.slice(0, 60) || "model";
    const address = URL.createObjectURL(new Blob([content], { type }));
    const link = element("a", { href: address, download: `abbe-${model}-heads.${ending}` });
    document.body.append(link);
    link.click();
    link.remove();
    window.setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  abbe.parts.push(() => {
    const { model, ...shown } = abbe.table.columns; // the same in every row
    state.columns = Object.keys(shown);
    headers();
    offerFilters();
    byId("filters-clear").addEventListener("click", () => {
      FILTERS.forEach((name) => (select(name).value = ""));
      filter();
    });
    byId("page-first").addEventListener("click", () => turn(() => 0));
    byId("page-before").addEventListener("click", () => turn((page) => page - 1));
    byId("page-after").addEventListener("click", () => turn((page) => page + 1));
    byId("page-last").addEventListener("click", () => turn((_, last) => last));
    byId("save-csv").addEventListener("click", () => save(csv(), "text/csv;charset=utf-8", "csv"));
    byId("save-parquet").addEventListener("click", () => save(parquetFile(), "application/vnd.apache.parquet", "parquet"));
    filter();
  });
})();
