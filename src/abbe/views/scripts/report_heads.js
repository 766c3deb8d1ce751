"use strict";
// The heads of the report: the map, the chosen head, and the address that holds the choices.

// The map: a cell per head, coloured by the chosen measure. One cell is in the tab order; arrows move.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice, offer } = abbe;
  const { keyOf, paint, scaleOf } = abbe.cells;
  const byId = (id) => document.getElementById(id);
  const [map, measureSelect, warmSelect, lengthSelect, sizeSelect, whatSelect] =
    ["map", "map-measure", "map-temperature", "map-length", "map-size", "map-what"].map(byId);
  const words = () => abbe.about.measures.find(({ name }) => name === choice.measure);

  function rowsOfHeads(measure) {
    return (abbe.table.byMeasure.get(measure) ?? []).filter((row) => abbe.table.get("head", row) !== null);
  }

  function valueOf(row) {
    const value = abbe.table.get("value", row);
    if (choice.what === "value") return value;
    const other = abbe.table.get(choice.what === "headroom" ? "limit" : "control", row);
    if (value === null || other === null) return null;
    return choice.what === "headroom" ? 1 - value / other : value / other;
  }

  function values() {
    const rows = rowsOfHeads(choice.measure);
    const timeless = rows.every((row) => abbe.table.get("length", row) === null);
    const sized = rows.some((row) => abbe.table.get("n", row) !== null);
    const byPlace = new Map();
    for (const row of rows) {
      if (!timeless && abbe.table.get("length", row) !== choice.length) continue;
      if (sized && abbe.table.get("n", row) !== choice.size) continue;
      byPlace.set(keyOf(abbe.table.get("layer", row), abbe.table.get("head", row)), valueOf(row));
    }
    return byPlace;
  }

  const UNITS = ["tokens", "nats", "logits"];
  function spoken(value) {
    if (value === undefined || value === null) return "no value";
    const { label, unit } = words();
    if (choice.what === "headroom") return `headroom ${show(value)}`;
    if (choice.what === "control") return `${show(value)} times the control`;
    return UNITS.includes(unit) ? `${show(value)} ${unit}` : `${label} ${show(value)}`;
  }

  let cells = new Map();
  function colour() {
    const byPlace = values();
    const scale = scaleOf([...byPlace.values()]);
    for (const [key, cell] of cells) {
      const value = byPlace.get(key);
      const finite = Number.isFinite(value);
      const label = `layer ${cell.dataset.layer}, head ${cell.dataset.head}: ${spoken(value)}`;
      cell.classList.toggle("empty", value === undefined || value === null);
      cell.classList.toggle("odd", value !== undefined && value !== null && !finite);
      cell.setAttribute("aria-label", label);
      cell.title = label;
      cell.textContent = value === undefined || value === null ? "" : show(value, 2);
      if (finite) paint(cell, scale.share(value));
    }
    legend(byPlace, scale);
  }

  function legend(byPlace, scale) {
    const { label, unit, meaning, limit, control } = words();
    const what = {
      value: unit && !label.includes(unit) ? `${label} (${unit})` : label,
      headroom: "headroom: 1 - value / limit; 0 means that the limit is reached",
      control: "value over control; 1 means no better than the control",
    }[choice.what];
    const odd = [...byPlace.values()].some((value) => value !== null && !Number.isFinite(value));
    const empty = [...cells.keys()].some((key) => (byPlace.get(key) ?? null) === null);
    byId("legend").replaceChildren(...[
      scale.empty ? "No head has a value here." : null,
      scale.empty ? null : element("span", {}, show(scale.low)),
      scale.empty ? null : element("span", { class: "bar", "aria-hidden": "true" }),
      scale.empty ? null : element("span", {}, show(scale.high)),
      element("span", {}, `${what}${scale.logarithmic ? ", logarithmic colours" : ""}`),
      empty ? element("span", {}, element("span", { class: "cell sign empty", "aria-hidden": "true" }), " no value") : null,
      odd ? element("span", {}, element("span", { class: "cell sign odd", "aria-hidden": "true" }, "∞"), " infinite or NaN") : null,
    ].filter((part) => part !== null));
    const beside = [limit && `Limit: ${limit}.`, control && `Control: ${control}.`].filter(Boolean).join(" ");
    byId("meaning").textContent = `${meaning} ${beside}`.trim();
  }

  function offerMeasures() {
    const families = new Map(usable().map((measure) => [measure.family, measure]));
    const groups = [...new Set([...families.values()].map(({ group }) => group))];
    measureSelect.replaceChildren(...groups.map((group) => element("optgroup", { label: group },
      ...[...families.values()].filter((measure) => measure.group === group).map(
        ({ family, family_label: label }) => element("option", { value: family }, label)))));
  }

  const usable = () => abbe.about.measures.filter(({ name }) => rowsOfHeads(name).length);
  const temperatures = (family) => usable().filter((measure) => measure.family === family && measure.temperature !== null)
    .map(({ temperature }) => temperature).sort((a, b) => a - b);

  // The measure of a family at a temperature; at 1, that of the model, or any if it was not measured there.
  function measureAt(family, temperature) {
    const members = usable().filter((measure) => measure.family === family);
    const at = (wanted) => members.find((measure) => measure.temperature === wanted);
    return (at(temperature) ?? at(1) ?? members[0])?.name;
  }

  function offerRest() {
    const { family, temperature } = words();
    const warm = temperatures(family);
    measureSelect.value = family;
    offer(warmSelect, warm.map((value) => [value, String(value)]), temperature);
    byId("map-temperature-field").hidden = warm.length < 2;
    const rows = rowsOfHeads(choice.measure);
    const lengths = abbe.table.present("length", rows);
    const sizes = abbe.table.present("n", rows);
    const has = (name) => rows.some((row) => abbe.table.get(name, row) !== null);
    const changes = {};
    if (lengths.length && !lengths.includes(choice.length)) changes.length = lengths.at(-1);
    if (sizes.length && !sizes.includes(choice.size)) changes.size = nearest(sizes, abbe.about.shown_size);
    const whats = [
      ["value", "value"],
      has("limit") && ["headroom", "headroom below the limit"],
      has("control") && ["control", "value over control"],
    ].filter(Boolean);
    if (!whats.some(([what]) => what === choice.what)) changes.what = "value";
    choose(changes);
    if (lengths.length) {
      offer(lengthSelect, lengths.map((length) => [length, `${length.toLocaleString("en")} tokens`]), choice.length);
    } else {
      offer(lengthSelect, [["", "all together"]], "");
    }
    offer(sizeSelect, sizes.map((size) => [size, String(size)]), choice.size);
    byId("map-size-field").hidden = sizes.length === 0;
    offer(whatSelect, whats, choice.what);
  }

  const nearest = (sizes, wanted) => sizes.reduce(
    (best, size) => (Math.abs(size - wanted) < Math.abs(best - wanted) ? size : best));

  function mark() {
    for (const [key, cell] of cells) {
      const chosen = key === keyOf(choice.layer, choice.head);
      cell.setAttribute("aria-selected", String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }
  }

  function select(cell) {
    choose({ layer: Number(cell.dataset.layer), head: Number(cell.dataset.head) });
  }

  // Highlights heads of one kind; pressed again, all are equal.
  function kinds() {
    const of = new Map(abbe.about.heads.map(({ layer, head, kind }) => [keyOf(layer, head), kind]));
    const present = [...new Set(of.values())].sort((a, b) => abbe.about.kinds.indexOf(a) - abbe.about.kinds.indexOf(b));
    const buttons = present.map((kind) => {
      const count = [...of.values()].filter((other) => other === kind).length;
      return element("button", { type: "button", "aria-pressed": "false", "data-kind": kind }, `${kind} ${count}`);
    });
    byId("kinds").replaceChildren(...buttons);
    byId("kinds").addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      const pressed = button.getAttribute("aria-pressed") !== "true";
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(pressed && other === button)));
      for (const [key, cell] of cells) cell.classList.toggle("aside", pressed && of.get(key) !== button.dataset.kind);
    });
  }

  function listen() {
    map.addEventListener("click", ({ target }) => target.closest("button.cell") && select(target.closest("button.cell")));
    map.addEventListener("keydown", (event) => abbe.cells.move(event, cells));
    measureSelect.addEventListener("change", () => choose({ measure: measureAt(measureSelect.value, words().temperature) }));
    warmSelect.addEventListener("change", () => choose({ measure: measureAt(words().family, Number(warmSelect.value)) }));
    lengthSelect.addEventListener("change", () => choose({ length: Number(lengthSelect.value) }));
    sizeSelect.addEventListener("change", () => choose({ size: Number(sizeSelect.value) }));
    whatSelect.addEventListener("change", () => choose({ what: whatSelect.value }));
    onChoice(["measure"], offerRest);
    onChoice(["length", "size", "what"], () => {
      if (choice.length !== null) lengthSelect.value = String(choice.length);
      sizeSelect.value = String(choice.size);
      whatSelect.value = choice.what;
    });
    onChoice(["measure", "length", "size", "what"], colour);
    onChoice(["layer", "head"], mark);
  }

  // The page opens with the longest length, and with the head in the middle of what the map shows.
  function first() {
    const named = abbe.about.measures.filter(({ name }) => rowsOfHeads(name).length).map(({ name }) => name);
    const measure = named.includes("effective_tokens") ? "effective_tokens" : named[0];
    Object.assign(choice, { measure, what: "value", size: abbe.about.shown_size });
    choice.length = abbe.table.present("length", rowsOfHeads(choice.measure)).at(-1) ?? null;
    const ordered = [...values()].filter(([, value]) => Number.isFinite(value)).sort((a, b) => a[1] - b[1]);
    const middle = ordered[Math.floor(ordered.length / 2)]?.[0].split(" ").map(Number);
    const [layer, head] = middle ?? [abbe.places[0].layer, abbe.places[0].head];
    Object.assign(choice, { layer, head });
    Object.assign(choice, abbe.address.read());
  }

  Object.assign(abbe, { rowsOfHeads, temperatures, measureAt });

  abbe.parts.push(() => {
    first();
    cells = abbe.cells.build(map, abbe.places);
    offerMeasures();
    offerRest();
    kinds();
    listen();
    colour();
    mark();
  });
})();

// The chosen head: its verdict, its rows in every chart, and its alternatives.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice } = abbe;
  const byId = (id) => document.getElementById(id);
  const WITHOUT_SIZE = ["effective_tokens", "effective_tokens_floor", "max_weight", "entropy"];
  const AT_SHOWN_SIZE = ["separability", "top_mass"];
  const SENSITIVITY = /^sensitivity_worst_(mean|p95|max)(?:@T=([^,]+))?$/;

  const place = () => ({ layer: choice.layer, head: choice.head });
  const objects = (rows) => rows.map((row) => abbe.table.object(row));

  function bySize() {
    const sized = abbe.about.measures.flatMap(({ name }) => abbe.table.find(name, { ...place(), length: choice.length }));
    return objects(sized.filter((row) => abbe.table.get("n", row) !== null));
  }

  function byLength() {
    return objects([
      ...WITHOUT_SIZE.flatMap((name) => abbe.table.find(name, { ...place(), n: null })),
      ...AT_SHOWN_SIZE.flatMap((name) => abbe.table.find(name, { ...place(), n: abbe.about.shown_size })),
    ]);
  }

  // A name without a temperature is measured at that of the model, 1.
  function byTemperature() {
    const points = [];
    for (const { name } of abbe.about.measures) {
      const parts = name.match(SENSITIVITY);
      if (!parts) continue;
      for (const row of abbe.table.find(name, { ...place(), length: choice.length, n: null })) {
        const { value, low, high, limit } = abbe.table.object(row);
        points.push({ temperature: Number(parts[2] ?? 1), part: parts[1], value, low, high, limit });
      }
    }
    return points.sort((a, b) => a.temperature - b.temperature);
  }

  function alternatives() {
    return abbe.about.alternatives.filter(({ layer, head }) => layer === choice.layer && head === choice.head);
  }

  const finite = (rows) => rows.map((row) => Object.fromEntries(Object.entries(row).map(
    ([name, value]) => [name, ["NaN", "Infinity", "-Infinity"].includes(value) && name !== "normalizer" ? null : value])));

  function fill() {
    abbe.charts.fill("sizes", { rows: bySize() });
    abbe.charts.fill("lengths", { rows: byLength() });
    abbe.charts.fill("growth", { chosen: byLength() });
    abbe.charts.fill("gradient", { chosen: byTemperature() });
    abbe.charts.fill("alternatives", { chosen: finite(alternatives()) });
  }

  function facts(numbers) {
    return element("dl", {}, ...numbers.flatMap(
      ([name, value]) => [element("dt", {}, element("bdi", {}, name)), element("dd", {}, value)]));
  }

  function verdict() {
    const title = `Layer ${choice.layer}, head ${choice.head}`;
    const judged = abbe.about.heads.find(({ layer, head }) => layer === choice.layer && head === choice.head);
    const patterns = judged?.patterns ?? [];
    const sentences = [judged?.sentence ?? "There is no verdict on this head.", ...patterns.map(({ sentence }) => sentence)];
    byId("head-name").textContent = title;
    for (const other of document.querySelectorAll(".chosen-head")) other.textContent = title.toLowerCase();
    byId("head-length").textContent = choice.length === null ? "" : `at ${choice.length.toLocaleString("en")} tokens`;
    byId("head-path").textContent = abbe.about.layers[choice.layer] ?? "";
    byId("head-kind").textContent = judged?.kind ?? "";
    byId("head-kind").hidden = !judged;
    byId("head-patterns").replaceChildren(...patterns.map(({ name }) => element("span", { class: "kind" }, name)));
    byId("head-sentence").textContent = sentences.join(" ");
    byId("head-rule").textContent = judged?.rule ?? "";
    byId("head-pattern-rules").replaceChildren(
      ...patterns.map(({ name, rule }) => element("p", {}, element("b", {}, name), `: ${rule}`)));
    byId("head-numbers").replaceChildren(...(judged ? facts(judged.numbers).childNodes : []));
    byId("head-details").hidden = !judged;
  }

  function alternativesTable() {
    const table = byId("alternatives-table");
    if (!table) return;
    const names = Object.keys(abbe.about.columns).filter((name) => name !== "layer" && name !== "head");
    const rows = alternatives();
    const cellText = (row, name) => {
      if (name === "normalizer" && row[name] === abbe.about.baseline) return "baseline";
      const [low, high] = [row[`${name}_low`] ?? null, row[`${name}_high`] ?? null];
      return show(row[name], 3) + (low === null || high === null ? "" : ` (${show(low, 3)} to ${show(high, 3)})`);
    };
    table.replaceChildren(
      element("thead", {}, element("tr", {},
        ...names.map((name) => element("th", { scope: "col" }, abbe.about.columns[name])))),
      element("tbody", {}, ...rows.map((row) => element("tr", {},
        ...names.map((name) => element("td", {}, cellText(row, name)))))));
    byId("no-alternatives").hidden = rows.length > 0;
  }

  // Buttons anywhere on the page that name a head.
  function follow({ target }) {
    const button = target.closest("button.place");
    if (!button) return;
    choose({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
    byId("head").scrollIntoView();
    byId("head-name").focus({ preventScroll: true });
  }

  function step(by) {
    const at = abbe.places.findIndex(({ layer, head }) => layer === choice.layer && head === choice.head);
    choose(abbe.places[(at + by + abbe.places.length) % abbe.places.length]);
  }

  function all() {
    verdict();
    alternativesTable();
    fill();
  }

  abbe.parts.push(() => {
    document.addEventListener("click", follow);
    byId("head-before").addEventListener("click", () => step(-1));
    byId("head-after").addEventListener("click", () => step(1));
    onChoice(["layer", "head", "length"], all);
    all();
  });
})();

// The address holds the choices: #head=1.2&measure=separability&length=512&N=20&T=0.5. Such a link restores it;
// unknown parts are ignored, and the name of a section, such as #growth, is not a choice.
(() => {
  const abbe = window.abbe;
  const { choice, choose, onChoice } = abbe;
  const words = (name) => abbe.about.measures.find((measure) => measure.name === name);

  function read() {
    const given = new URLSearchParams(window.location.hash.slice(1));
    const changes = {};
    const [, layer, head] = (given.get("head") ?? "").match(/^(\d{1,9})\.(\d{1,9})$/)?.map(Number) ?? [];
    if (abbe.places.some((place) => place.layer === layer && place.head === head)) Object.assign(changes, { layer, head });
    const family = given.get("measure") ?? words(choice.measure).family;
    const warm = given.has("T") ? Number(given.get("T")) : null;
    if (given.has("measure") || given.has("T")) {
      const measure = abbe.measureAt(family, warm);
      if (measure) changes.measure = measure;
    }
    const rows = abbe.rowsOfHeads(changes.measure ?? choice.measure);
    for (const [name, column, key] of [["length", "length", "length"], ["N", "n", "size"]]) {
      const number = given.has(name) ? Number(given.get(name)) : NaN;
      if (abbe.table.present(column, rows).includes(number)) changes[key] = number;
    }
    return changes;
  }

  function write() {
    const { family, temperature } = words(choice.measure);
    const rows = abbe.rowsOfHeads(choice.measure);
    const parts = new URLSearchParams({ head: `${choice.layer}.${choice.head}`, measure: family });
    if (choice.length !== null && abbe.table.present("length", rows).length) parts.set("length", choice.length);
    if (abbe.table.present("n", rows).length) parts.set("N", choice.size);
    if (abbe.temperatures(family).length > 1) parts.set("T", temperature);
    window.history.replaceState(null, "", `#${parts}`);
  }

  abbe.address = { read };
  abbe.parts.push(() => {
    onChoice(["layer", "head", "measure", "length", "size"], write);
    window.addEventListener("hashchange", () => choose(read()));
    // A link to a head scrolls there; a reloaded page stays where the reader was.
    const [visit] = performance.getEntriesByType("navigation");
    if (/[#&]head=/.test(window.location.hash) && visit?.type === "navigate") {
      document.getElementById("head").scrollIntoView({ behavior: "instant" });
    }
  });
})();
