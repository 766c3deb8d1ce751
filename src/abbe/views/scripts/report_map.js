"use strict";
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
