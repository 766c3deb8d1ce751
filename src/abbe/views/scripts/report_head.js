"use strict";
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
