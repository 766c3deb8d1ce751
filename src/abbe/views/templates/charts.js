"use strict";
// Every element with data-chart gets its chart, in the theme of the page and as wide as there is room.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const NARROW = 600;
  const PRINTED = 640;
  const AROUND = 84; // axis, labels and padding of a panel
  const drawn = new Map();

  function fitted(given, room) {
    const narrow = room < NARROW;
    const columns = narrow ? 1 : 2;
    const width = Math.max(140, Math.min(380, Math.floor(room / columns) - AROUND));
    const spec = JSON.parse(JSON.stringify(given));
    (function visit(part) {
      if (Array.isArray(part.concat)) {
        part.columns = Math.min(part.columns ?? columns, columns);
        part.concat.forEach(visit);
      }
      if (part.width !== undefined) part.width = width;
      if (narrow) (part.layer ?? []).forEach(narrowLegends);
    })(spec);
    if (narrow) spec.config.legend.columns = 1;
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
    const entry = { key };
    drawn.set(element, entry);
    const holder = document.createElement("div");
    const result = await window.vegaEmbed(holder, { ...fitted(chart[theme], room), datasets: chart.datasets }, {
      mode: "vega-lite",
      renderer: "svg",
      ast: true, // no eval: the policy of the page forbids it
      defaultStyle: false,
      forceActionsMenu: true,
      actions: actions && { export: true, source: false, compiled: false, editor: false },
      i18n: { CLICK_TO_VIEW_ACTIONS: "Save this chart", PNG_ACTION: "Save as PNG", SVG_ACTION: "Save as SVG" },
      downloadFileName: `figure-${name}`,
      tooltip: { theme },
    });
    if (drawn.get(element) !== entry) return result.finalize(); // a newer one is under way
    entry.result = result;
    element.replaceChildren(holder);
    element.dataset.drawn = theme;
  }

  const onScreen = [...document.querySelectorAll("[data-chart]:not(.print)")];
  const onPaper = [...document.querySelectorAll("[data-chart].print")];

  function drawAll() {
    const theme = document.documentElement.dataset.theme;
    return Promise.all(onScreen.filter((element) => element.clientWidth).map(
      (element) => draw(element, theme, element.clientWidth, true)));
  }

  let waiting = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(drawAll, 150);
  });
  document.addEventListener("theme", drawAll);
  drawAll().then(() => Promise.all(onPaper.map((element) => draw(element, "light", PRINTED, false))));
})();
