"use strict";
// One window of the report: its tokens, what the chosen head selects, and the heat map of its weights.

// The tokens of the chosen head: the window as text, one query, what it selects, and the ball around it.
// The text is inserted as text, never as markup; <bdi> isolates the writing direction of each token.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice, offer } = abbe;
  const byId = (id) => document.getElementById(id);
  const CORNERS = 72;
  let index = new Map();

  const key = (layer, head, query) => `${layer} ${head} ${query}`;

  function indexed({ rows }) {
    return new Map(rows.map((row) => [key(row.layer, row.head, row.query), row]));
  }

  // Of the chosen head, query and size: the selected keys and the ball; null if there is none.
  function selection() {
    const row = index.get(key(choice.layer, choice.head, choice.query));
    if (row === undefined) return null;
    const ball = row.balls.find(({ size }) => size === choice.ball) ?? null;
    return { keys: row.keys.slice(0, choice.ball), weights: row.weights.slice(0, choice.ball), ball };
  }

  // Lines break in the text, but not in a table.
  const inText = (token) => token.replaceAll(/\r?\n/g, "↵\n").replaceAll("\t", "⇥\t");
  const inLine = (token) => (token === "" ? "∅" : token.replaceAll(/\r?\n/g, "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣"));

  function apart(chosen, rank) {
    if (!chosen.ball) return null;
    return chosen.ball.inside[rank];
  }

  const judged = (inside) => (inside === null ? "no ball" : inside ? "separable" : "not separable");

  // Blanks before a word stay outside of its mark, so that a line can break there.
  function tokenParts(text, at, chosen) {
    const [, blanks, word] = text.match(/^( *)([^]*)$/);
    return word === "" ? [tokenElement(text, at, chosen)] : [blanks, tokenElement(word, at, chosen)];
  }

  function tokenElement(text, at, chosen) {
    const query = abbe.sample.queries.includes(at);
    const rank = chosen ? chosen.keys.indexOf(at) : -1;
    const token = element(query ? "button" : "span", { class: "token", "data-token": at, type: query ? "button" : null },
      element("bdi", {}, inText(text)));
    const facts = [`token ${at}`];
    if (query) {
      token.classList.add("query");
      token.setAttribute("aria-pressed", String(at === choice.query));
      facts.push(at === choice.query ? "the query" : "choose as query");
    }
    if (rank >= 0) {
      const inside = apart(chosen, rank);
      token.classList.add("selected");
      if (inside !== null) token.classList.add(inside ? "inside" : "outside");
      const share = chosen.weights[rank] / (chosen.weights[0] || 1);
      token.style.setProperty("--strength", `${Math.round(4 + 46 * Math.sqrt(share))}%`);
      facts.push(`weight ${show(chosen.weights[rank])}, place ${rank + 1} of ${chosen.keys.length}, ${judged(inside)}`);
    }
    if (query) token.setAttribute("aria-label", `${text.trim() || "blank"}: ${facts.join(", ")}`);
    token.title = facts.join(", ");
    return token;
  }

  function listed(chosen) {
    const rows = (chosen?.keys ?? []).map((at, rank) => element("tr", {},
      element("td", { class: "number" }, String(rank + 1)),
      element("td", { class: "text" }, element("bdi", {}, inLine(abbe.sample.tokens[at]))),
      element("td", { class: "number" }, String(at)),
      element("td", { class: "number" }, show(chosen.weights[rank], 3)),
      element("td", { class: "number" }, chosen.ball ? show(chosen.ball.distances[rank], 3) : "–"),
      element("td", {}, chosen.ball ? (apart(chosen, rank) ? "yes" : "no") : "–")));
    byId("token-list").replaceChildren(...rows);
  }

  function sentence(chosen) {
    if (!chosen) return "This head has no rows for this query.";
    if (!chosen.ball) return `This query sees too few tokens for a selected set of ${choice.ball}.`;
    const inside = chosen.ball.inside.filter(Boolean).length;
    const { intruders } = chosen.ball;
    const others = { 0: "no unselected one lies", 1: "1 unselected one lies" }[intruders]
      ?? `${intruders.toLocaleString("en")} unselected ones lie`;
    return `${inside} of ${chosen.ball.inside.length} selected tokens lie in the ball; ${others} no farther out than the farthest selected.`;
  }

  function point(distance, angle, largest, rest) {
    const radians = (angle * Math.PI) / 180;
    return { x: (distance / largest) * Math.cos(radians), y: (distance / largest) * Math.sin(radians), ...rest };
  }

  function picture(chosen) {
    if (!chosen?.ball) return { points: [], circle: [] };
    const { ball } = chosen;
    const largest = Math.max(ball.radius, ...ball.distances, ...ball.other_distances) || 1;
    const farthest = Math.max(...ball.distances);
    const name = (at) => inLine(abbe.sample.tokens[at]);
    const selected = ball.distances.map((distance, rank) => point(distance, ball.angles[rank], largest, {
      kind: ball.inside[rank] ? "selected, inside" : "selected, outside",
      token: name(chosen.keys[rank]), weight: chosen.weights[rank], distance,
    }));
    const others = ball.other_distances.map((distance, at) => point(distance, ball.other_angles[at], largest, {
      kind: distance <= farthest ? "unselected, nearer than a selected one" : "unselected",
      token: name(ball.other_keys[at]), weight: null, distance,
    }));
    const circle = Array.from({ length: CORNERS },
      (_, order) => point(ball.radius, (order * 360) / CORNERS, largest, { order }));
    return { points: [...others, ...selected], circle };
  }

  function refresh() {
    const chosen = selection();
    const focused = document.activeElement?.dataset?.token;
    byId("token-text").replaceChildren(...abbe.sample.tokens.flatMap((text, at) => tokenParts(text, at, chosen)));
    if (focused !== undefined) byId("token-text").querySelector(`[data-token="${focused}"]`)?.focus({ preventScroll: true });
    byId("token-words").textContent = sentence(chosen);
    byId("query-select").value = String(choice.query);
    byId("ball-select").value = String(choice.ball);
    listed(chosen);
    abbe.charts.fill("ball", picture(chosen));
  }

  function step(by) {
    const { queries } = abbe.sample;
    choose({ query: queries[(queries.indexOf(choice.query) + by + queries.length) % queries.length] });
  }

  function listen() {
    byId("query-select").addEventListener("change", ({ target }) => choose({ query: Number(target.value) }));
    byId("ball-select").addEventListener("change", ({ target }) => choose({ ball: Number(target.value) }));
    byId("query-before").addEventListener("click", () => step(-1));
    byId("query-after").addEventListener("click", () => step(1));
    byId("token-text").addEventListener("click", ({ target }) => {
      const token = target.closest("button.query");
      if (token) choose({ query: Number(token.dataset.token) });
    });
    onChoice(["layer", "head", "query", "ball"], refresh);
  }

  const shortened = (text) => (text.length > 24 ? `${[...text].slice(0, 23).join("")}…` : text);

  abbe.parts.push(() => {
    const { sample } = abbe;
    if (!sample || !sample.queries.length) return;
    index = indexed(sample);
    Object.assign(choice, { query: sample.queries.at(-1), ball: sample.sizes.at(-1) });
    const named = sample.queries.map((at) => [at, `token ${at}: ${shortened(inLine(sample.tokens[at]))}`]);
    offer(byId("query-select"), named, choice.query);
    offer(byId("ball-select"), sample.sizes.map((size) => [size, String(size)]), choice.ball);
    listen();
    refresh();
  });
})();

// All weights of the chosen head on the window: queries down, keys across, one byte per cell. The pointer or the arrows
// name the tokens of a cell; a click chooses the nearest query of the text beside it. Dragging, the buttons or the keys
// + - 0 show a part of the map, larger.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice } = abbe;
  const byId = (id) => document.getElementById(id);
  const [STEPS, POWERS] = [254, 4]; // of the bytes: from 10^-4 to 1 in equal factors
  const COLOURS = 3; // powers of ten that the colours span: what is fainter than 0.001 is all alike
  const [NAMED, LETTERS] = [6, 60]; // of a stretch that are named
  const [FEWEST, CLOSER] = [4, 2]; // cells along a side at the closest; by what a step of the zoom magnifies
  const weight = (code) => (code === 0 ? 0 : 10 ** (POWERS * ((code - 1) / STEPS - 1)));
  const state = { row: null, column: null, from: null }; // the pointed cell, and the one where a drag began
  const view = { row: 0, column: 0, rows: 0, columns: 0 }; // the part that is shown
  const within = (value, least, most) => Math.min(Math.max(value, least), most);

  const rows = () => abbe.sample.heat.queries.length;
  const columns = () => abbe.sample.heat.edges.length - 1;

  function codes() {
    const found = abbe.sample.heat.heads.find(([layer, head]) => layer === choice.layer && head === choice.head);
    return found ? Uint8Array.from(atob(found[2]), (sign) => sign.charCodeAt(0)) : null;
  }

  function draw() {
    const cells = codes();
    const canvas = byId("heat-map");
    byId("heat").hidden = cells === null;
    if (!cells) return;
    [canvas.width, canvas.height] = [view.columns, view.rows];
    const ramp = abbe.RAMPS[document.documentElement.dataset.theme] ?? abbe.RAMPS.light;
    const share = (code) => Math.max(0, 1 + Math.log10(weight(code)) / COLOURS);
    const paint = Array.from({ length: STEPS + 2 }, (_, code) => (code === 0 ? [0, 0, 0, 0] : [...abbe.mixed(ramp, share(code)), 255]));
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    for (let row = 0; row < view.rows; row += 1) {
      for (let column = 0; column < view.columns; column += 1) {
        const code = cells[(view.row + row) * columns() + view.column + column];
        image.data.set(paint[code], 4 * (row * view.columns + column));
      }
    }
    context.putImageData(image, 0, 0);
    mark();
  }

  // The row of the query that the text shows, or the nearest one; the pointed cell; and what they are in words.
  function mark() {
    const { queries, edges } = abbe.sample.heat;
    const far = queries.map((query) => Math.abs(query - choice.query));
    frame(byId("heat-query"), far.indexOf(Math.min(...far)), view.column, 1, view.columns);
    frame(byId("heat-cell"), state.row, state.column, 1, 1);
    const [top, left, height, width] = dragged();
    frame(byId("heat-drag"), top, left, height, width);
    byId("heat-words").replaceChildren(...words());
    const whole = view.rows === rows() && view.columns === columns();
    byId("heat-out").disabled = byId("heat-whole").disabled = whole;
    byId("heat-in").disabled = view.rows <= FEWEST && view.columns <= FEWEST;
    byId("heat-range").textContent = whole ? "" : `Queries ${queries[view.row]} to ${queries[view.row + view.rows - 1]}, `
      + `keys ${edges[view.column]} to ${edges[view.column + view.columns] - 1}.`;
  }

  // A frame around some cells; hidden if there are none, or none in view.
  function frame(part, row, column, height, width) {
    const [down, right] = [row - view.row, column - view.column];
    part.hidden = row === null || down < 0 || right < 0 || down >= view.rows || right >= view.columns;
    const share = (cells, all) => `${(100 * cells) / all}%`;
    Object.assign(part.style, {
      top: share(down, view.rows), height: share(height, view.rows), left: share(right, view.columns), width: share(width, view.columns),
    });
  }

  const inLine = (text) => text.replaceAll(/\s+/g, "␣");
  function tokens(from, to) {
    const { tokens: all } = abbe.sample;
    const named = all.slice(from, Math.min(to, from + NAMED)).map(inLine).join("");
    const shown = [...named].slice(0, LETTERS).join("") + (to - from > NAMED || [...named].length > LETTERS ? "…" : "");
    return [`${to - from > 1 ? `tokens ${from} to ${to - 1}` : `token ${from}`} “`, element("bdi", {}, shown), "”"];
  }

  function words() {
    const cells = codes();
    if (state.row === null || !cells) return ["Point at a cell, or use the arrow keys, to read its tokens and weight. Drag, or press + and −, to zoom."];
    const { queries, edges } = abbe.sample.heat;
    const [query, code] = [queries[state.row], cells[state.row * columns() + state.column]];
    const [first, end] = [edges[state.column], edges[state.column + 1]];
    const later = abbe.about.causal && first > query;
    const last = abbe.about.causal && !later ? Math.min(end, query + 1) : end; // a causal query sees a part of its own stretch
    const faint = later ? "comes later, no weight" : "weight below 0.0001";
    const what = code === 0 ? faint : `weight ${show(weight(code), 2)}`;
    return ["Query ", ...tokens(query, query + 1), " → ", ...tokens(first, last), `: ${what}`];
  }

  // Shows this part of the map, moved and cut to lie within it.
  function look(row, column, high, wide) {
    view.rows = within(high, Math.min(FEWEST, rows()), rows());
    view.columns = within(wide, Math.min(FEWEST, columns()), columns());
    view.row = within(row, 0, rows() - view.rows);
    view.column = within(column, 0, columns() - view.columns);
    draw();
  }

  // Around the pointed cell if any, else around the middle of the view.
  function zoom(by) {
    const [high, wide] = [Math.round(view.rows / by), Math.round(view.columns / by)];
    const row = state.row ?? view.row + Math.floor(view.rows / 2);
    const column = state.column ?? view.column + Math.floor(view.columns / 2);
    look(row - Math.floor(high / 2), column - Math.floor(wide / 2), high, wide);
  }

  const whole = () => look(0, 0, rows(), columns());

  // Choose a cell; the view follows it.
  function at(row, column) {
    state.row = within(row, 0, rows() - 1);
    state.column = within(column, 0, columns() - 1);
    const [top, left] = [within(view.row, state.row - view.rows + 1, state.row), within(view.column, state.column - view.columns + 1, state.column)];
    if (top !== view.row || left !== view.column) look(top, left, view.rows, view.columns);
    else mark();
  }

  function pointed({ offsetX, offsetY, target }) {
    const down = within(Math.floor((offsetY / target.clientHeight) * view.rows), 0, view.rows - 1);
    const right = within(Math.floor((offsetX / target.clientWidth) * view.columns), 0, view.columns - 1);
    at(view.row + down, view.column + right);
  }

  // The cells between the beginning of a drag and the pointer.
  function dragged() {
    if (!state.from || state.row === null) return [null, null, 0, 0];
    const [row, column] = state.from;
    const [high, wide] = [Math.abs(state.row - row) + 1, Math.abs(state.column - column) + 1];
    return high === 1 && wide === 1 ? [null, null, 0, 0] : [Math.min(row, state.row), Math.min(column, state.column), high, wide];
  }

  function pick() {
    const { queries } = abbe.sample;
    const wanted = abbe.sample.heat.queries[state.row];
    choose({ query: queries.reduce((best, query) => (Math.abs(query - wanted) < Math.abs(best - wanted) ? query : best)) });
  }

  function pressed(event) {
    if (event.button !== 0 || event.pointerType === "touch") return; // a finger scrolls the page
    pointed(event);
    state.from = [state.row, state.column];
    event.target.setPointerCapture(event.pointerId);
  }

  function released() {
    const [top, left, high, wide] = dragged();
    state.from = null;
    if (top === null) return mark();
    const side = Math.max(high, wide); // cells stay square
    look(top, left, side, side);
  }

  function clicked(event) {
    pointed(event);
    pick();
  }

  function move(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const act = { "+": () => zoom(CLOSER), "=": () => zoom(CLOSER), "-": () => zoom(1 / CLOSER), 0: whole }[event.key];
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (event.key === "Enter" && state.row !== null) return pick();
    if (!act && !down && !right) return;
    event.preventDefault();
    if (act) act();
    else if (state.row === null) at(view.row + view.rows - 1, view.column);
    else at(state.row + down, state.column + right);
  }

  abbe.parts.push(() => {
    if (!abbe.sample?.heat?.queries.length || !abbe.sample.queries.length) return;
    const canvas = byId("heat-map");
    let zoomed = false; // by the drag that ends in this click
    canvas.addEventListener("pointerdown", pressed);
    canvas.addEventListener("pointermove", pointed);
    canvas.addEventListener("pointerup", () => {
      zoomed = dragged()[0] !== null;
      released();
    });
    canvas.addEventListener("pointercancel", () => {
      state.from = null;
      mark();
    });
    canvas.addEventListener("click", (event) => {
      if (!zoomed) clicked(event);
      zoomed = false;
    });
    canvas.addEventListener("keydown", move);
    byId("heat-in").addEventListener("click", () => zoom(CLOSER));
    byId("heat-out").addEventListener("click", () => zoom(1 / CLOSER));
    byId("heat-whole").addEventListener("click", whole);
    onChoice(["layer", "head"], draw);
    onChoice(["query"], mark);
    document.addEventListener("theme", draw);
    whole();
  });
})();
