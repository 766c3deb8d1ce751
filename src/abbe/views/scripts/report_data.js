"use strict";
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
