"use strict";
// The map: a cell for every head, coloured by what the reader chooses. One cell is in the order of tabs; arrows move.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice, offer } = abbe;
  // One hue from the paper's colour to its opposite: order is seen as lightness, whatever colours a reader sees.
  const RAMPS = {
    light: ["#edf3f8", "#b9d4e8", "#74aed4", "#2f7cb5", "#0b3f78"],
    dark: ["#1c2733", "#23496a", "#2f78ab", "#6bb3e0", "#d5ecfb"],
  };
  const INKS = { dark: "#10161d", light: "#ffffff" };
  const LOGARITHMIC_FROM = 20; // a ratio of largest to smallest
  const byId = (id) => document.getElementById(id);
  const [map, measureSelect, warmSelect, lengthSelect, sizeSelect, whatSelect] =
    ["map", "map-measure", "map-temperature", "map-length", "map-size", "map-what"].map(byId);
  const words = () => abbe.about.measures.find(({ name }) => name === choice.measure);
  const keyOf = (layer, head) => `${layer} ${head}`;

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

  function scaleOf(byPlace) {
    const finite = [...byPlace.values()].filter((value) => Number.isFinite(value));
    const low = Math.min(...finite);
    const high = Math.max(...finite);
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

  // Both themes at once: the style sheet picks, so that paper is light whatever the screen is.
  function paint(cell, share) {
    for (const [theme, ramp] of Object.entries(RAMPS)) {
      const colour = mixed(ramp, share);
      cell.style.setProperty(`--${theme}`, `rgb(${colour.join(" ")})`);
      cell.style.setProperty(`--on-${theme}`, luminance(colour) > 0.18 ? INKS.dark : INKS.light);
    }
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
  function build() {
    const places = abbe.places;
    const layers = [...new Set(places.map(({ layer }) => layer))].sort((a, b) => a - b);
    const width = Math.max(...places.map(({ head }) => head)) + 1;
    const known = new Set(places.map(({ layer, head }) => keyOf(layer, head)));
    cells = new Map();
    const heads = Array.from({ length: width }, (_, head) => head);
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
  }

  function cellOf(layer, head) {
    const place = { "data-layer": layer, "data-head": head };
    const cell = element("button", { role: "gridcell", type: "button", class: "cell", tabindex: "-1", ...place });
    cells.set(keyOf(layer, head), cell);
    return cell;
  }

  function colour() {
    const byPlace = values();
    const scale = scaleOf(byPlace);
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

  function move(event) {
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

  // Heads of one kind stand out, the others step back; pressed again, all are equal.
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
    map.addEventListener("keydown", move);
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

  Object.assign(abbe, { RAMPS, mixed, rowsOfHeads, temperatures, measureAt });

  abbe.parts.push(() => {
    first();
    build();
    offerMeasures();
    offerRest();
    kinds();
    listen();
    colour();
    mark();
  });
})();
