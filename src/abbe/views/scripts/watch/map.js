"use strict";
// The map of heads at the chosen step. Colours span the whole run, so that a move of the slider shows a change.
(() => {
  const abbe = window.abbe;
  const { choice, choose, element, offer, onChoice, show, watch } = abbe;
  const { build, keyOf, move, paint, scaleOf } = abbe.cells;
  const byId = (id) => document.getElementById(id);
  const [map, slider, measureSelect, headSelect] = ["map", "step", "map-measure", "head-select"].map(byId);
  let cells = new Map();
  let scale = null;

  function colour() {
    const [value, step] = [watch.reader("value"), watch.stepIndex()];
    const { label } = watch.words();
    abbe.places.forEach(({ layer, head }, at) => {
      const cell = cells.get(keyOf(layer, head));
      const here = value(step, at);
      const missing = !Number.isFinite(here);
      const spoken = `layer ${layer}, head ${head}: ${missing ? "no value" : `${label} ${show(here)}`}`;
      cell.classList.toggle("empty", missing);
      cell.setAttribute("aria-label", spoken);
      cell.title = spoken;
      cell.textContent = missing ? "" : show(here, 2);
      if (!missing) paint(cell, scale.share(here));
    });
  }

  function rescale() {
    scale = scaleOf(watch.column(abbe.heads, choice.measure));
    const { label, unit } = watch.words();
    const name = unit && !label.includes(unit) ? `${label} (${unit})` : label;
    byId("legend").replaceChildren(...(scale.empty ? ["No head has a value."] : [
      element("span", {}, show(scale.low)), element("span", { class: "bar", "aria-hidden": "true" }), element("span", {}, show(scale.high)),
      element("span", {}, `${name}; colours span the whole run${scale.logarithmic ? ", logarithmic" : ""}`),
    ]));
    measureSelect.value = choice.measure;
    colour();
  }

  function mark() {
    for (const [key, cell] of cells) {
      const chosen = key === keyOf(choice.layer, choice.head);
      cell.setAttribute("aria-selected", String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }
    headSelect.value = String(watch.headIndex());
    byId("head-before").disabled = watch.headIndex() === 0;
    byId("head-after").disabled = watch.headIndex() === abbe.places.length - 1;
  }

  function slide() {
    const [at, step] = [watch.stepIndex(), abbe.about.steps[watch.stepIndex()]];
    const words = `${step.toLocaleString("en")}${at === watch.last() ? " (the last)" : ""}`;
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", `step ${words}`);
    byId("step-words").textContent = words;
    byId("map-step").textContent = step.toLocaleString("en");
    byId("step-before").disabled = at === 0;
    byId("step-after").disabled = at === watch.last();
  }

  function listen() {
    map.addEventListener("click", ({ target }) => {
      const cell = target.closest("button.cell");
      if (cell) choose({ layer: Number(cell.dataset.layer), head: Number(cell.dataset.head) });
    });
    map.addEventListener("keydown", (event) => move(event, cells));
    slider.addEventListener("input", () => watch.chooseStep(Number(slider.value)));
    measureSelect.addEventListener("change", () => choose({ measure: measureSelect.value }));
    headSelect.addEventListener("change", () => watch.chooseHead(Number(headSelect.value)));
    [["before", -1], ["after", 1]].forEach(([name, by]) => {
      byId(`step-${name}`).addEventListener("click", () => watch.chooseStep(watch.stepIndex() + by));
      byId(`head-${name}`).addEventListener("click", () => watch.chooseHead(watch.headIndex() + by));
    });
    onChoice(["measure"], rescale);
    onChoice(["step"], () => { slide(); colour(); });
    onChoice(["layer", "head"], mark);
  }

  abbe.parts.push(() => {
    cells = build(map, abbe.places);
    offer(measureSelect, abbe.about.measures.map(({ name, label }) => [name, label]), choice.measure);
    offer(headSelect, abbe.places.map(({ layer, head }, at) => [at, `layer ${layer}, head ${head}`]), watch.headIndex());
    listen();
    rescale();
    mark();
    slide();
  });
})();
