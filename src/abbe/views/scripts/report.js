"use strict";
// The rest of the report: commands to copy, the table of everything, and the start of all parts.

// Commands can be copied; on a phone the meaning of a key number is folded, so that the answer fits two screens.
(() => {
  const abbe = window.abbe;
  const SHOWN = 2000; // milliseconds

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      window.getSelection().selectAllChildren(code); // not allowed to copy: the reader can
      button.textContent = "selected";
    }
    window.setTimeout(() => (button.textContent = "copy"), SHOWN);
  }

  abbe.parts.push(() => {
    document.addEventListener("click", ({ target }) => target.closest("button.copy") && copy(target.closest("button.copy")));
    const narrow = window.matchMedia("(max-width: 40rem)");
    const fold = () => document.querySelectorAll("details.meaning").forEach((part) => (part.open = !narrow.matches));
    narrow.addEventListener("change", fold);
    fold();
  });
})();

// The table of everything: filters, sorting, pages of 50 rows, and the filtered rows as files. Every row
// with a head shows the verdict on it.
(() => {
  const abbe = window.abbe;
  const { element, show, offer } = abbe;
  const byId = (id) => document.getElementById(id);
  const PAGE = 50;
  const FILTERS = ["measure", "temperature", "length", "n", "layer", "head"];
  const VERDICT = "verdict";
  const NONE = { length: "no single length", n: "no set size", layer: "all layers together", head: "all heads together" };
  const DIGITS = 5;
  const state = { rows: [], page: 0, sorted: null, down: false };
  const counted = (number) => number.toLocaleString("en");
  const select = (name) => byId(`filter-${name}`);

  function offerFilters() {
    const { table, about } = abbe;
    const families = new Map(about.measures.map(({ family, family_label: label }) => [family, label]));
    const warm = new Set(about.measures.map(({ temperature }) => temperature).filter((value) => value !== null));
    const listed = { measure: [...families], temperature: [...warm].sort((a, b) => a - b).map((value) => [value, String(value)]) };
    for (const name of FILTERS) {
      const options = listed[name] ?? values(table.columns[name], NONE[name], name === "length");
      offer(select(name), [["", "all"], ...options], "");
      select(name).addEventListener("change", filter);
    }
  }

  function values({ values: all, codes }, none, counts) {
    const options = all.filter((value) => value !== null).map((value) => [String(value), counts ? counted(value) : String(value)]);
    return new Set(codes).has(all.length - 1) && none ? [...options, ["none", none]] : options;
  }

  // The codes of the measures of the chosen family and temperature.
  function measureTest() {
    const [family, temperature] = [select("measure").value, select("temperature").value];
    const names = new Set(abbe.about.measures.filter((measure) => (family === "" || measure.family === family)
      && (temperature === "" || String(measure.temperature) === temperature)).map(({ name }) => name));
    const { values: all, codes } = abbe.table.columns.measure;
    const wanted = all.map((name) => names.has(name));
    return (row) => wanted[codes[row]];
  }

  // Rows that match every filter.
  function filter() {
    const { table } = abbe;
    const columns = FILTERS.filter((name) => table.columns[name] && name !== "measure");
    const tests = columns.filter((name) => select(name).value !== "").map((name) => {
      const { values: all, codes } = table.columns[name];
      const wanted = select(name).value;
      const code = all.findIndex((value) => (value === null ? wanted === "none" : String(value) === wanted));
      return (row) => codes[row] === code;
    });
    tests.push(measureTest());
    state.rows = [];
    for (let row = 0; row < table.rows; row += 1) {
      if (tests.every((test) => test(row))) state.rows.push(row);
    }
    state.page = 0;
    sort();
  }

  function sort() {
    const { sorted, down } = state;
    if (sorted) state.rows.sort((a, b) => abbe.compare(get(sorted, a), get(sorted, b), down) || a - b);
    draw();
  }

  function get(name, row) {
    if (name !== VERDICT) return abbe.table.get(name, row);
    return state.verdicts.get(`${abbe.table.get("layer", row)} ${abbe.table.get("head", row)}`) ?? null;
  }

  function cell(name, row) {
    const value = get(name, row);
    if (name === "measure" || name === VERDICT) return element("td", {}, element("bdi", {}, value ?? ""));
    return element("td", { class: "number" }, show(value, DIGITS));
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(state.rows.length / PAGE));
    const from = state.page * PAGE;
    const shown = state.rows.slice(from, from + PAGE);
    byId("rows").replaceChildren(...shown.map((row) => element("tr", {}, ...state.columns.map((name) => cell(name, row)))));
    byId("rows-words").textContent = shown.length
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
    const names = saved();
    const lines = state.rows.map((row) => names.map((name) => quoted(get(name, row))).join(","));
    return [names.join(","), ...lines, ""].join("\n");
  }

  const saved = () => [...Object.keys(abbe.table.columns), VERDICT];

  // One object per row; JSON has no non-finite numbers, so they become words.
  function json() {
    const plain = (value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
    const lines = state.rows.map((row) => JSON.stringify(
      Object.fromEntries(saved().map((name) => [name, plain(get(name, row))]))));
    return `[\n${lines.join(",\n")}\n]\n`;
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
    state.columns = [...Object.keys(shown), VERDICT];
    state.verdicts = new Map(abbe.about.heads.map(({ layer, head, kind }) => [`${layer} ${head}`, kind]));
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
    byId("save-json").addEventListener("click", () => save(json(), "application/json", "json"));
    filter();
  });
})();

// When the data is unpacked, every part of the page starts, then the charts; the navigation follows the reader.
(async () => {
  const abbe = window.abbe;

  function follow() {
    const links = new Map([...document.querySelectorAll("nav a[href^='#']")].map((link) => [link.hash.slice(1), link]));
    const visible = new Set();
    const watch = new IntersectionObserver((entries) => {
      entries.forEach(({ target, isIntersecting }) => visible[isIntersecting ? "add" : "delete"](target.id));
      const first = [...links.keys()].find((id) => visible.has(id));
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(first)?.setAttribute("aria-current", "true");
    }, { rootMargin: "-64px 0px -55% 0px" });
    links.forEach((_, id) => document.getElementById(id) && watch.observe(document.getElementById(id)));
  }

  // Paper has no clicks: printing opens the rule behind the answer and the meanings of the numbers.
  function unfold() {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll(".answer details:not([open]), details.meaning:not([open])")];
      opened.forEach((part) => (part.open = true));
    });
    window.addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
  }

  // Every head of the table, in order.
  function places(table) {
    const places = new Map();
    for (let row = 0; row < table.rows; row += 1) {
      const [layer, head] = [table.get("layer", row), table.get("head", row)];
      if (layer !== null && head !== null) places.set(`${layer} ${head}`, { layer, head });
    }
    return [...places.values()].sort((a, b) => a.layer - b.layer || a.head - b.head);
  }

  try {
    await abbe.load();
    abbe.places = places(abbe.table);
    if (!abbe.places.length) throw new Error("the table has no heads");
    abbe.parts.forEach((start) => start());
    follow();
    unfold();
    document.documentElement.dataset.ready = "";
    await abbe.charts.start(abbe.specifications);
  } catch (error) {
    const notice = document.getElementById("trouble");
    notice.textContent = `This browser could not show the interactive parts (${error.message}); the text below is complete.`;
    notice.hidden = false;
    throw error;
  }
})();
