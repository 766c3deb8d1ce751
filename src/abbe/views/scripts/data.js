"use strict";
// What pages of heads share: numbers, data of the page, the choices of the reader, and cells of a map.

// Numbers for people: the same text as in `abbe/words/numbers.py`; a test compares them.
(() => {
  function number(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return { Infinity: "∞", "-Infinity": "-∞" }[value] ?? String(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
    const rounded = Number(value.toPrecision(digits));
    const size = Math.abs(rounded);
    if (size >= 1e9 || (size > 0 && size < 1e-4)) return rounded.toExponential();
    if (size >= 1000 || Number.isInteger(value)) return (value || 0).toLocaleString("en", { maximumFractionDigits: 0 }); // no -0
    return String(rounded);
  }

  window.abbe = { ...window.abbe, number };
})();

// The cells of a map of heads: their colours, and how the keyboard moves among them.
(() => {
  // One hue from the paper's colour to its opposite: lightness gives the order, even to colour-blind readers.
  const RAMPS = {
    light: ["#edf3f8", "#b9d4e8", "#74aed4", "#2f7cb5", "#0b3f78"],
    dark: ["#1c2733", "#23496a", "#2f78ab", "#6bb3e0", "#d5ecfb"],
  };
  const INKS = { dark: "#10161d", light: "#ffffff" };
  const LOGARITHMIC_FROM = 20; // a ratio of largest to smallest

  const keyOf = (layer, head) => `${layer} ${head}`;

  // A row per layer, a button per head; returns the buttons by layer and head.
  function build(map, places) {
    const { element } = window.abbe;
    const layers = [...new Set(places.map(({ layer }) => layer))].sort((a, b) => a - b);
    const width = places.reduce((most, { head }) => Math.max(most, head), 0) + 1;
    const known = new Set(places.map(({ layer, head }) => keyOf(layer, head)));
    const cells = new Map();
    const heads = Array.from({ length: width }, (_, head) => head);
    const cellOf = (layer, head) => {
      const place = { "data-layer": layer, "data-head": head };
      const cell = element("button", { role: "gridcell", type: "button", class: "cell", tabindex: "-1", ...place });
      cells.set(keyOf(layer, head), cell);
      return cell;
    };
    map.classList.toggle("crowded", width > 16);
    map.style.setProperty("--columns", width);
    const absent = () => element("span", { role: "gridcell", "aria-label": "no such head" });
    const line = element("div", { role: "row", class: "map-row" },
      element("span", { role: "columnheader", class: "corner" }, "layer"),
      ...heads.map((head) => element("span", { role: "columnheader", "aria-label": `head ${head}` }, String(head))));
    const caption = element("div", { class: "map-row map-caption", "aria-hidden": "true" }, element("span", {}), element("span", {}, "head"));
    map.replaceChildren(caption, line, ...layers.map((layer) => element("div", { role: "row", class: "map-row" },
      element("span", { role: "rowheader", "aria-label": `layer ${layer}` }, String(layer)),
      ...heads.map((head) => (known.has(keyOf(layer, head)) ? cellOf(layer, head) : absent())))));
    return cells;
  }

  // Places of values between the least and the largest of them.
  function scaleOf(values) {
    const finite = values.filter((value) => Number.isFinite(value));
    const low = finite.reduce((least, value) => Math.min(least, value), Infinity);
    const high = finite.reduce((most, value) => Math.max(most, value), -Infinity);
    const logarithmic = low > 0 && high / low > LOGARITHMIC_FROM;
    const place = logarithmic ? Math.log : (value) => value;
    const share = (value) => (high > low ? (place(value) - place(low)) / (place(high) - place(low)) : 0.5);
    return { low, high, logarithmic, share, empty: finite.length === 0 };
  }

  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  function mixed(ramp, share) {
    const place = share * (ramp.length - 1);
    const at = Math.min(Math.floor(place), ramp.length - 2);
    const [from, to] = [channels(ramp[at]), channels(ramp[at + 1])];
    return from.map((value, index) => Math.round(value + (to[index] - value) * (place - at)));
  }

  function luminance(colour) {
    const linear = colour.map((part) => part / 255).map(
      (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }

  // Both themes at once: the style sheet picks, so that paper is always light.
  function paint(cell, share) {
    for (const [theme, ramp] of Object.entries(RAMPS)) {
      const colour = mixed(ramp, share);
      cell.style.setProperty(`--${theme}`, `rgb(${colour.join(" ")})`);
      cell.style.setProperty(`--on-${theme}`, luminance(colour) > 0.18 ? INKS.dark : INKS.light);
    }
  }

  // Arrows, Home and End move the focus from cell to cell; `cells` are in the order of the map.
  function move(event, cells) {
    const cell = event.target.closest("button.cell");
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    const row = [...cell.parentElement.querySelectorAll("button.cell")];
    const column = (line) => [...(line?.children ?? [])][[...cell.parentElement.children].indexOf(cell)];
    const target = {
      ArrowLeft: () => row[row.indexOf(cell) - 1],
      ArrowRight: () => row[row.indexOf(cell) + 1],
      ArrowUp: () => column(cell.parentElement.previousElementSibling),
      ArrowDown: () => column(cell.parentElement.nextElementSibling),
      Home: () => (event.shiftKey ? [...cells.values()][0] : row[0]),
      End: () => (event.shiftKey ? [...cells.values()].at(-1) : row.at(-1)),
    }[event.key];
    if (!target) return;
    event.preventDefault();
    const next = target();
    if (!next?.matches("button.cell")) return;
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  window.abbe = { ...window.abbe, RAMPS, mixed, cells: { build, keyOf, paint, scaleOf, move } };
})();

// The data of the page, unpacked once; the reader's choices; and helpers that all parts share.
(() => {
  const abbe = window.abbe;
  const show = abbe.number; // as a person reads it; NaN and infinities are shown, not hidden
  const [ABSENT, NOT_A_NUMBER, INFINITE, MINUS_INFINITE, NO_POWER, NO_MANTISSA] = [0, 1, 2, 3, 1000, 2 ** 23];
  const EXACT = 22; // powers of ten up to this one are exact, and so is one product or quotient with them
  const POWERS = Array.from({ length: EXACT + 1 }, (_, power) => Number(`1e${power}`));

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function unpackedJson(id) {
    return JSON.parse(new TextDecoder().decode(await unpacked(id)));
  }

  // The planes of a column from `start` on, put together again.
  function joined(bytes, start, rows, planes) {
    const numbers = new Uint32Array(rows);
    for (let plane = 0; plane < planes; plane += 1) {
      const from = start + plane * rows;
      for (let row = 0; row < rows; row += 1) numbers[row] += bytes[from + row] * 2 ** (8 * plane);
    }
    return numbers;
  }

  function decimal(mantissa, power) {
    if (Math.abs(power) > EXACT) return Number(`${mantissa}e${power}`);
    return power < 0 ? mantissa / POWERS[-power] : mantissa * POWERS[power];
  }

  function number(mantissa, power) {
    if (power === ABSENT) return null;
    if (power === NOT_A_NUMBER) return NaN;
    if (power === INFINITE) return Infinity;
    return power === MINUS_INFINITE ? -Infinity : decimal(mantissa - NO_MANTISSA, power - NO_POWER);
  }

  // Columns by name; `get` gives a number, a text or null.
  class Table {
    constructor(bytes) {
      const end = bytes.indexOf(10);
      const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
      this.rows = head.rows;
      this.columns = {};
      let place = end + 1;
      for (const { name, kind, values, planes } of head.columns) {
        const width = kind === "codes" ? planes : 5;
        this.columns[name] = kind === "codes"
          ? { kind, values, codes: joined(bytes, place, head.rows, planes) }
          : { kind, values: this.decimals(bytes, place) };
        place += width * head.rows;
      }
      this.byMeasure = this.columns.measure ? this.grouped("measure") : new Map();
    }

    decimals(bytes, place) {
      const mantissas = joined(bytes, place, this.rows, 3);
      const powers = joined(bytes, place + 3 * this.rows, this.rows, 2);
      return Array.from(mantissas, (mantissa, row) => number(mantissa, powers[row]));
    }

    grouped(name) {
      const { values, codes } = this.columns[name];
      const rows = new Map(values.map((value) => [value, []]));
      codes.forEach((code, row) => rows.get(values[code]).push(row));
      return rows;
    }

    get(name, row) {
      const column = this.columns[name];
      return column.kind === "codes" ? column.values[column.codes[row]] : column.values[row];
    }

    // The rows of a measure for which the given columns have the given values (null counts as a value).
    find(measure, wanted) {
      const tests = Object.entries(wanted);
      return (this.byMeasure.get(measure) ?? []).filter(
        (row) => tests.every(([name, value]) => this.get(name, row) === value));
    }

    // The values of a column in some rows, without null.
    present(name, rows) {
      const present = new Set(rows.map((row) => this.get(name, row)));
      return this.columns[name].values.filter((value) => value !== null && present.has(value));
    }

    // A row for charts, without non-finite numbers.
    object(row) {
      const plain = {};
      for (const name of Object.keys(this.columns)) {
        const value = this.get(name, row);
        plain[name] = typeof value === "number" && !Number.isFinite(value) ? null : value;
      }
      return plain;
    }
  }

  // An element; strings among the children become text, never markup.
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // Options of a select: pairs of value and text, the chosen one marked.
  function offer(select, options, chosen) {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    select.value = String(chosen);
    select.disabled = options.length < 2;
  }

  const choice = {};
  function choose(changes) {
    const names = Object.keys(changes).filter((name) => choice[name] !== changes[name]);
    if (!names.length) return;
    Object.assign(choice, changes);
    document.dispatchEvent(new CustomEvent("choice", { detail: new Set(names) }));
  }

  // Calls a function whenever one of these choices changes.
  function onChoice(names, react) {
    document.addEventListener("choice", ({ detail }) => {
      if (names.some((name) => detail.has(name))) react();
    });
  }

  async function load() {
    const [about, table, sample, charts] = await Promise.all(
      [unpackedJson("about-data"), unpacked("table-data"), unpackedJson("sample-data"), unpackedJson("chart-data")]);
    Object.assign(abbe, { about, sample, specifications: charts, table: new Table(table) });
  }

  Object.assign(abbe, { load, unpacked, unpackedJson, Table, show, element, offer, choice, choose, onChoice, parts: [] });
})();
