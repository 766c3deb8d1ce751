"use strict";
// The tokens of the chosen head: the window as text, one query, what it selects, and the ball around it.
// The text is inserted as text, never as markup; <bdi> isolates the writing direction of each token.
(() => {
  const abbe = window.abbe;
  const { element, show, choice, choose, onChoice, offer } = abbe;
  const byId = (id) => document.getElementById(id);
  const CORNERS = 72;
  const UNITS = 1000;
  let index = new Map();

  const key = (layer, head, query) => `${layer} ${head} ${query}`;

  function indexed({ rows }) {
    return new Map(rows.layer.map((layer, at) => [key(layer, rows.head[at], rows.query[at]), at]));
  }

  // Of the chosen head, query and size: the selected keys and the ball; null if there is none.
  function selection() {
    const at = index.get(key(choice.layer, choice.head, choice.query));
    if (at === undefined) return null;
    const { rows, balls } = abbe.sample;
    const columns = balls[String(choice.ball)];
    const ball = columns.scale[at] === null ? null
      : Object.fromEntries(Object.keys(columns).map((name) => [name, columns[name][at]]));
    const some = Math.min(choice.ball, rows.keys[at].length);
    return { keys: rows.keys[at].slice(0, some), weights: rows.weights[at].slice(0, some), ball };
  }

  // Lines break in the text, but not in a table.
  const inText = (token) => token.replaceAll(/\r?\n/g, "↵\n").replaceAll("\t", "⇥\t");
  const inLine = (token) => (token === "" ? "∅" : token.replaceAll(/\r?\n/g, "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣"));

  function apart(chosen, rank) {
    if (!chosen.ball) return null;
    return chosen.ball.inside[rank] === "1";
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
      element("td", { class: "number" }, chosen.ball ? show((chosen.ball.distances[rank] * chosen.ball.scale) / UNITS, 3) : "–"),
      element("td", {}, chosen.ball ? (apart(chosen, rank) ? "yes" : "no") : "–")));
    byId("token-list").replaceChildren(...rows);
  }

  function sentence(chosen) {
    if (!chosen) return "This head has no rows for this query.";
    if (!chosen.ball) return `This query sees too few tokens for a selected set of ${choice.ball}.`;
    const inside = [...chosen.ball.inside].filter((sign) => sign === "1").length;
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
    const length = (distance) => (distance * ball.scale) / UNITS;
    const selected = ball.distances.map((distance, rank) => point(distance, ball.angles[rank], largest, {
      kind: ball.inside[rank] === "1" ? "selected, inside" : "selected, outside",
      token: name(chosen.keys[rank]), weight: chosen.weights[rank], distance: length(distance),
    }));
    const others = ball.other_distances.map((distance, at) => point(distance, ball.other_angles[at], largest, {
      kind: distance <= farthest ? "unselected, nearer than a selected one" : "unselected",
      token: name(ball.other_keys[at]), weight: null, distance: length(distance),
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
