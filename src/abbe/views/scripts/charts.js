"use strict";
// Every element with data-chart gets its chart, in the theme of the page and as wide as its place allows.
// If the charts hold all data of a page, they are in the element "charts"; other pages call abbe.charts.start.
(() => {
  const NARROW = 600;
  const PRINTED = 640;
  const AROUND = 84; // axis, labels and padding of a panel
  const [WIDEST, WIDEST_CHOSEN] = [380, 450]; // by default, and where the page chooses the columns
  const SAVE = "Save this chart";
  const drawn = new Map();
  const filled = {}; // by chart: the data that the reader has chosen
  let charts = {};

  function fitted(given, room, element) {
    const narrow = room < NARROW;
    const columns = narrow ? 1 : Number(element.dataset.columns ?? 2);
    const widest = element.dataset.columns ? WIDEST_CHOSEN : WIDEST;
    const width = Math.max(140, Math.min(widest, Math.floor(room / columns) - AROUND));
    const spec = JSON.parse(JSON.stringify(given));
    (function visit(part) {
      if (Array.isArray(part.concat)) {
        part.columns = element.dataset.columns ? columns : Math.min(part.columns ?? columns, columns);
        part.concat.forEach(visit);
      }
      if (part.width !== undefined) part.width = width;
      if (part.width !== undefined && element.dataset.square !== undefined) part.height = width;
      if (narrow) (part.layer ?? []).forEach(narrowLegends);
    })(spec);
    if (narrow && spec.config?.legend) spec.config.legend.columns = 1;
    spec.padding = 2;
    delete spec.title; // the page has it as a heading
    return spec;
  }

  function narrowLegends(layer) {
    for (const channel of Object.values(layer.encoding ?? {})) {
      if (channel.legend?.columns) channel.legend.columns = channel.legend.title ? 3 : 1;
    }
  }

  async function draw(element, theme, room, actions) {
    const name = element.dataset.chart;
    const chart = charts[name];
    const key = `${theme} ${room}`;
    if (!chart || drawn.get(element)?.key === key) return;
    drawn.get(element)?.result?.finalize();
    const entry = { key, data: filled[name] };
    drawn.set(element, entry);
    const holder = document.createElement("div");
    const datasets = { ...chart.datasets, ...copied(filled[name] ?? {}) };
    const result = await window.vegaEmbed(holder, { ...fitted(chart[theme], room, element), datasets }, {
      mode: "vega-lite",
      renderer: "svg",
      ast: true, // no eval: the policy of the page forbids it
      defaultStyle: false,
      forceActionsMenu: true,
      actions: actions && { export: true, source: false, compiled: false, editor: false },
      i18n: { CLICK_TO_VIEW_ACTIONS: SAVE, PNG_ACTION: "Save as PNG", SVG_ACTION: "Save as SVG" },
      downloadFileName: `figure-${name}`,
      tooltip: { theme },
    });
    if (drawn.get(element) !== entry) return result.finalize(); // a newer one is under way
    entry.result = result;
    holder.querySelector("summary")?.setAttribute("aria-label", SAVE); // it shows three dots only
    element.replaceChildren(holder);
    result.view.addEventListener("click", (event, item) => {
      const { layer, head } = item?.datum ?? {};
      if (Number.isInteger(layer) && Number.isInteger(head)) {
        document.dispatchEvent(new CustomEvent("head", { detail: { layer, head } }));
      }
    });
    await refill(element, entry);
    element.dataset.drawn = theme;
  }

  // Vega marks its rows, so every drawing needs a copy.
  function copied(datasets) {
    return Object.fromEntries(Object.entries(datasets).map(
      ([name, rows]) => [name, rows.map((row) => ({ ...row }))]));
  }

  async function refill(element, entry) {
    const data = filled[element.dataset.chart];
    if (!entry.result || entry.data === data) return;
    entry.data = data;
    for (const [name, rows] of Object.entries(copied(data))) entry.result.view.data(name, rows);
    await entry.result.view.runAsync();
  }

  const onScreen = [...document.querySelectorAll("[data-chart]:not(.print)")];
  const onPaper = [...document.querySelectorAll("[data-chart].print")];

  function drawAll() {
    const theme = document.documentElement.dataset.theme;
    return Promise.all(onScreen.filter((element) => element.clientWidth).map(
      (element) => draw(element, theme, element.clientWidth, true)));
  }

  async function start(given) {
    charts = given;
    let waiting = 0;
    window.addEventListener("resize", () => {
      window.clearTimeout(waiting);
      waiting = window.setTimeout(drawAll, 150);
    });
    document.addEventListener("theme", drawAll);
    await drawAll();
    await Promise.all(onPaper.map((element) => draw(element, "light", PRINTED, false)));
  }

  // New rows for the named datasets of a chart, wherever it is drawn.
  function fill(name, datasets) {
    filled[name] = datasets;
    const elements = [...onScreen, ...onPaper].filter((element) => element.dataset.chart === name);
    return Promise.all(elements.filter((element) => drawn.has(element)).map(
      (element) => refill(element, drawn.get(element))));
  }

  window.abbe = { ...window.abbe, charts: { start, fill } };
  const embedded = document.getElementById("charts");
  if (embedded) start(JSON.parse(embedded.textContent));
})();
