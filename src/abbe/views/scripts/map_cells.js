"use strict";
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
