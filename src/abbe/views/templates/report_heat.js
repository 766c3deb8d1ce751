"use strict";
// All weights of the chosen head on the window: queries down, keys across, one byte per cell. The pointer or the arrows
// name the tokens of a cell; a click chooses the nearest query of the text beside it.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice } = abbe;
  const byId = (id) => document.getElementById(id);
  const [STEPS, POWERS] = [254, 4]; // of the bytes: from 10^-4 to 1 in equal factors
  const COLOURS = 3; // powers of ten that the colours span: what is fainter than 0.001 is all alike
  const [NAMED, LETTERS] = [6, 60]; // of a stretch that are named
  const weight = (code) => (code === 0 ? 0 : 10 ** (POWERS * ((code - 1) / STEPS - 1)));
  const state = { row: null, column: null };

  function codes() {
    const { layer, head, weights } = abbe.sample.heat;
    const at = layer.findIndex((other, place) => other === choice.layer && head[place] === choice.head);
    return at < 0 ? null : Uint8Array.from(atob(weights[at]), (sign) => sign.charCodeAt(0));
  }

  const columns = () => abbe.sample.heat.edges.length - 1;

  function draw() {
    const { queries } = abbe.sample.heat;
    const found = codes();
    const canvas = byId("heat-map");
    byId("heat").hidden = found === null;
    if (!found) return;
    [canvas.width, canvas.height] = [columns(), queries.length];
    const ramp = abbe.RAMPS[document.documentElement.dataset.theme] ?? abbe.RAMPS.light;
    const share = (code) => Math.max(0, 1 + Math.log10(weight(code)) / COLOURS);
    const paint = Array.from({ length: STEPS + 2 }, (_, code) => (code === 0 ? [0, 0, 0, 0] : [...abbe.mixed(ramp, share(code)), 255]));
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    found.forEach((code, cell) => image.data.set(paint[code], 4 * cell));
    context.putImageData(image, 0, 0);
    mark();
  }

  // The row of the query that the text shows, or the nearest one.
  function mark() {
    const { queries } = abbe.sample.heat;
    const far = queries.map((query) => Math.abs(query - choice.query));
    frame(byId("heat-query"), far.indexOf(Math.min(...far)), 0, columns());
    byId("heat-cell").hidden = state.row === null;
    if (state.row !== null) frame(byId("heat-cell"), state.row, state.column, 1);
    byId("heat-told").replaceChildren(...told());
  }

  function frame(part, row, column, wide) {
    const share = (part, whole) => `${(100 * part) / whole}%`;
    const rows = abbe.sample.heat.queries.length;
    Object.assign(part.style, { top: share(row, rows), height: share(1, rows), left: share(column, columns()), width: share(wide, columns()) });
  }

  const inLine = (text) => text.replaceAll(/\s+/g, "␣");
  function tokens(from, to) {
    const { tokens: all } = abbe.sample;
    const named = all.slice(from, Math.min(to, from + NAMED)).map(inLine).join("");
    const shown = [...named].slice(0, LETTERS).join("") + (to - from > NAMED || [...named].length > LETTERS ? "…" : "");
    return [`${to - from > 1 ? `tokens ${from} to ${to - 1}` : `token ${from}`} “`, element("bdi", {}, shown), "”"];
  }

  function told() {
    const found = codes();
    if (state.row === null || !found) return ["Point at a cell, or use the arrow keys, to read its tokens and weight."];
    const { queries, edges } = abbe.sample.heat;
    const [query, code] = [queries[state.row], found[state.row * columns() + state.column]];
    const [first, end] = [edges[state.column], edges[state.column + 1]];
    const later = abbe.about.causal && first > query;
    const last = abbe.about.causal && !later ? Math.min(end, query + 1) : end; // a causal query sees a part of its own stretch
    const faint = later ? "comes later, no weight" : "weight below 0.0001";
    const what = code === 0 ? faint : `weight ${show(weight(code), 2)}`;
    return ["Query ", ...tokens(query, query + 1), " → ", ...tokens(first, last), `: ${what}`];
  }

  function at(row, column) {
    const rows = abbe.sample.heat.queries.length;
    state.row = Math.min(Math.max(row, 0), rows - 1);
    state.column = Math.min(Math.max(column, 0), columns() - 1);
    mark();
  }

  function pointed({ offsetX, offsetY, target }) {
    at(Math.floor((offsetY / target.clientHeight) * target.height), Math.floor((offsetX / target.clientWidth) * target.width));
  }

  function pick() {
    const { queries } = abbe.sample;
    const wanted = abbe.sample.heat.queries[state.row];
    choose({ query: queries.reduce((best, query) => (Math.abs(query - wanted) < Math.abs(best - wanted) ? query : best)) });
  }

  function move(event) {
    if (event.key === "Enter" && state.row !== null) return pick();
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if ((!down && !right) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    if (state.row === null) at(abbe.sample.heat.queries.length - 1, 0);
    else at(state.row + down, state.column + right);
  }

  abbe.parts.push(() => {
    if (!abbe.sample?.heat?.queries.length || !abbe.sample.queries.length) return;
    const canvas = byId("heat-map");
    canvas.addEventListener("pointermove", pointed);
    canvas.addEventListener("click", (event) => {
      pointed(event);
      pick();
    });
    canvas.addEventListener("keydown", move);
    onChoice(["layer", "head"], draw);
    onChoice(["query"], mark);
    document.addEventListener("theme", draw);
    draw();
  });
})();
