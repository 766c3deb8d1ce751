"use strict";
// The page of a training run.

// The data of a training run: values by measure, step and head; and the chosen measure, head and step.
// The step null is the last one: a reloading page follows the run until the reader chooses a step.
(() => {
  const abbe = window.abbe;
  const { choice, choose } = abbe;

  async function load() {
    const [about, heads, model] = await Promise.all(
      [abbe.unpackedJson("about-data"), abbe.unpacked("table-data"), abbe.unpacked("model-data")]);
    Object.assign(abbe, { about, places: about.places, heads: new abbe.Table(heads), model: new abbe.Table(model) });
  }

  const last = () => abbe.about.steps.length - 1;
  const column = (table, name) => table.columns[name]?.values ?? null;
  const words = () => abbe.about.measures.find(({ name }) => name === choice.measure);
  const headIndex = () => abbe.places.findIndex(({ layer, head }) => layer === choice.layer && head === choice.head);
  const stepIndex = () => (choice.step === null ? last() : nearest(choice.step));

  // The value, limit or control of the chosen measure for a head at a step, by their places.
  function reader(part) {
    const values = column(abbe.heads, part === "value" ? choice.measure : `${choice.measure} ${part}`);
    return values && ((step, head) => values[step * abbe.places.length + head]);
  }

  // The place of the nearest kept step.
  function nearest(step) {
    const { steps } = abbe.about;
    return steps.reduce((best, other, at) => (Math.abs(other - step) < Math.abs(steps[best] - step) ? at : best), 0);
  }

  const chooseStep = (at) => choose({ step: at >= last() ? null : abbe.about.steps[Math.max(0, at)] });
  const chooseHead = (at) => abbe.places[at] && choose({ ...abbe.places[at] });

  // An alert leads to its head, its step and the measure that shows it.
  function chooseAlert(alert) {
    const changes = { step: nearest(alert.step) === last() ? null : abbe.about.steps[nearest(alert.step)], alert: alert.place };
    if (alert.layer !== null) Object.assign(changes, { layer: alert.layer, head: alert.head });
    if (abbe.about.measures.some(({ name }) => name === alert.measure)) changes.measure = alert.measure;
    choose(changes);
  }

  const watch = { load, last, column, words, headIndex, stepIndex, reader, nearest, chooseStep, chooseHead, chooseAlert };
  Object.assign(abbe, { watch });
})();

// Charts over steps, drawn as SVG by hand: a few hundred lines of a few hundred points appear at once.
(() => {
  const abbe = window.abbe;
  const SPACE = { left: 54, right: 10, top: 24, bottom: 34 };
  const LOGARITHMIC_FROM = 50; // a ratio of largest to smallest

  function part(tag, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Round numbers in a range, 1, 2 or 5 times a power of ten apart.
  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const apart = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= 0.75 * rough) ?? rough;
    const places = [];
    for (let tick = Math.ceil(low / apart); tick * apart <= high * (1 + 1e-9); tick += 1) places.push(Number((tick * apart).toPrecision(10)));
    return places;
  }

  function powers(low, high) {
    const [first, end] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((end - first + 1) / 6));
    const places = [];
    for (let power = first; power <= end; power += every) places.push(Number(`1e${power}`));
    return places.length > 1 ? places : ticks(low, high, 4);
  }

  // From all values to the ends of an axis; logarithmic if they are positive and far apart, unless it must be linear.
  function domainOf(lists, linear = false) {
    let [low, high] = [Infinity, -Infinity];
    for (const values of lists) {
      for (const value of values ?? []) {
        if (!Number.isFinite(value)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (low > high) return null;
    const logarithmic = !linear && low > 0 && high / low > LOGARITHMIC_FROM;
    if (logarithmic) return { low: low / 1.15, high: high * 1.15, logarithmic };
    const zero = low >= 0 && low < 0.6 * high ? 0 : low - 0.05 * (high - low || Math.abs(low) || 1);
    return { low: zero, high: high + 0.05 * (high - zero || 1), logarithmic };
  }

  // Axes in a box: where steps and values lie, and the group in which lines are drawn.
  function frame(box, title, domain, height) {
    const { steps } = abbe.about;
    const width = Math.max(220, box.clientWidth);
    const [first, end] = steps.length > 1 ? [steps[0], steps.at(-1)] : [steps[0] - 1, steps[0] + 1];
    const place = domain.logarithmic ? Math.log10 : (value) => value;
    const [bottom, top] = [place(domain.low), place(domain.high)];
    const x = (step) => SPACE.left + ((step - first) / (end - first)) * (width - SPACE.left - SPACE.right);
    const inside = height - SPACE.top - SPACE.bottom;
    const y = (value) => SPACE.top + inside * (1 - (place(value) - bottom) / (top - bottom));
    const svg = part("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${title} over steps` });
    svg.append(part("text", { x: 2, y: 12, class: "title" }, `${title}${domain.logarithmic ? ", logarithmic" : ""}`));
    for (const value of domain.logarithmic ? powers(domain.low, domain.high) : ticks(domain.low, domain.high, Math.max(4, inside / 45))) {
      svg.append(
        part("line", { class: "grid", x1: SPACE.left, x2: width - SPACE.right, y1: y(value), y2: y(value) }),
        part("text", { x: SPACE.left - 6, y: y(value) + 4, "text-anchor": "end" }, abbe.show(value, 3)));
    }
    const base = height - SPACE.bottom;
    for (const step of ticks(first, end, width / 110).filter((tick) => Number.isInteger(tick) && x(tick) > SPACE.left + 14)) {
      svg.append(part("text", { x: Math.min(x(step), width - 16), y: base + 28, "text-anchor": "middle" }, step.toLocaleString("en")));
    }
    svg.append(
      part("text", { x: SPACE.left - 6, y: base + 28, "text-anchor": "end" }, "step"),
      part("line", { class: "grid", x1: SPACE.left, x2: width - SPACE.right, y1: base, y2: base }));
    box.replaceChildren(svg);
    return { svg, x, y, base, top: SPACE.top, width, stepAt: (pixel) => first + ((pixel - SPACE.left) / (width - SPACE.left - SPACE.right)) * (end - first) };
  }

  // A path with gaps at missing values. A single step is a short dash.
  function path({ x, y }, value) {
    const { steps } = abbe.about;
    let line = "";
    let pen = "M";
    for (let at = 0; at < steps.length; at += 1) {
      const height = value(at);
      if (!Number.isFinite(height) || !Number.isFinite(y(height))) {
        pen = "M";
        continue;
      }
      line += `${pen}${x(steps[at]).toFixed(1)} ${y(height).toFixed(1)}`;
      if (steps.length === 1) line += "m-12 0h24";
      pen = "L";
    }
    return line;
  }

  // The area between two series, where both have values.
  function band({ x, y }, low, high) {
    const { steps } = abbe.about;
    const there = steps.map((_, at) => at).filter((at) => Number.isFinite(y(low(at) ?? NaN)) && Number.isFinite(y(high(at) ?? NaN)));
    if (there.length < 2) return "";
    const points = (value, places) => places.map((at) => `${x(steps[at]).toFixed(1)} ${y(value(at)).toFixed(1)}`).join("L");
    return `M${points(high, there)}L${points(low, [...there].reverse())}Z`;
  }

  function cursor({ svg, x, base, top }, step) {
    const line = svg.querySelector(".cursor") ?? svg.appendChild(part("line", { class: "cursor" }));
    for (const [name, value] of Object.entries({ x1: x(step), x2: x(step), y1: top, y2: base })) line.setAttribute(name, value);
  }

  Object.assign(abbe, { draw: { part, domainOf, frame, path, band, cursor } });
})();

// The curves: all heads of the chosen measure, their mean, the limit, the chosen head, alerts; loss and learning rate.
(() => {
  const abbe = window.abbe;
  const { choice, element, onChoice, show, watch } = abbe;
  const { part, domainOf, frame, path, band, cursor } = abbe.draw;
  const byId = (id) => document.getElementById(id);
  const MANY = 40; // heads whose lines must be paler
  const NEAR = 14; // pixels from a line that still choose it
  const drawn = { curves: null, loss: null, rate: null };

  function curves() {
    const { steps } = abbe.about;
    const value = watch.reader("value");
    const [limit, control] = ["limit", "control"].map(watch.reader);
    const model = (name) => watch.column(abbe.model, `${choice.measure} ${name}`);
    const [mean, low, high] = ["mean", "low", "high"].map(model);
    const thinned = steps.length < abbe.about.read;
    const { label, unit } = watch.words();
    const box = byId("curves");
    const domain = domainOf([...["", " limit"].map((name) => watch.column(abbe.heads, choice.measure + name)), ...(thinned ? [low, high] : [])]);
    drawn.curves = null;
    box.replaceChildren();
    if (!domain) {
      box.append(element("p", {}, "This measure has no value at any step."));
      byId("series").replaceChildren();
      return;
    }
    const at = frame(box, unit && !label.includes(unit) ? `${label} (${unit})` : label, domain, box.clientWidth < 600 ? 280 : 360);
    if (thinned) at.svg.append(part("path", { class: "band", d: band(at, (step) => low[step], (step) => high[step]) }));
    const heads = part("g", { class: abbe.places.length > MANY ? "heads many" : "heads" });
    abbe.places.forEach((_, head) => heads.append(part("path", { d: path(at, (step) => value(step, head)) })));
    at.svg.append(heads);
    const bounds = [control && part("path", { class: "control" }), limit && part("path", { class: "limit" })].filter(Boolean);
    at.svg.append(...bounds, part("path", { class: "mean", d: path(at, (step) => mean[step]) }));
    at.svg.append(part("path", { class: "chosen" }), part("circle", { class: "dot", r: 4.5 }));
    drawn.curves = at;
    key(limit, control, thinned);
    chosen();
    alertMarks();
  }

  function key(limit, control, thinned) {
    const words = watch.words();
    const look = (style, text) => element("span", { style: `--look: ${style}` }, text);
    byId("series").replaceChildren(...[
      look("1px solid var(--accent)", `each of ${abbe.places.length} heads`),
      look("3px solid var(--accent)", "mean over heads"),
      look("3px solid var(--claim)", "the chosen head"),
      limit && look("2px dashed var(--ink)", `limit of the chosen head: ${words.limit}`),
      control && look("2px dotted var(--soft)", `control of the chosen head: ${words.control}`),
      thinned && look("9px solid color-mix(in srgb, var(--accent) 18%, transparent)", "least to largest, all steps"),
      abbe.about.alerts.length ? element("span", { class: "mark" }, "alerts: filled in the chosen head, open in others") : null,
    ].filter(Boolean));
  }

  function chosen() {
    const at = drawn.curves;
    if (!at) return;
    const value = watch.reader("value");
    const head = watch.headIndex();
    for (const [name, read] of [["chosen", value], ["limit", watch.reader("limit")], ["control", watch.reader("control")]]) {
      if (read) at.svg.querySelector(`.${name}`).setAttribute("d", path(at, (step) => read(step, head)));
    }
    const [step, height] = [watch.stepIndex(), value(watch.stepIndex(), head)];
    const dot = at.svg.querySelector(".dot");
    dot.style.display = Number.isFinite(height) && Number.isFinite(at.y(height)) ? "" : "none";
    if (dot.style.display === "") {
      dot.setAttribute("cx", at.x(abbe.about.steps[step]));
      dot.setAttribute("cy", at.y(height));
    }
  }

  // One mark per step with alerts, on the time line; a click shows the first of them, then the next.
  function alertMarks() {
    const at = drawn.curves;
    if (!at) return;
    at.svg.querySelector(".alerts-of-steps")?.remove();
    const marks = part("g", { class: "alerts-of-steps" });
    const bySteps = new Map();
    abbe.about.alerts.forEach((alert) => bySteps.set(alert.step, [...(bySteps.get(alert.step) ?? []), alert]));
    for (const [step, alerts] of bySteps) {
      const x = at.x(step);
      const here = alerts.some(({ layer, head }) => layer === null || (layer === choice.layer && head === choice.head));
      const named = alerts.slice(0, 6).map(({ event, where, numbers }) => `${event} in ${where}${numbers ? `: ${numbers}` : ""}`);
      if (alerts.length > 6) named.push(`and ${alerts.length - 6} more`);
      if (here) marks.append(part("line", { class: "alert-line", x1: x, x2: x, y1: at.top, y2: at.base }));
      const mark = part("path", { class: here ? "alert" : "alert other", "data-step": step, d: `M${x} ${at.base + 2}l6 11h-12z` },
        part("title", {}, `step ${step.toLocaleString("en")}: ${named.join("; ")}`));
      mark.addEventListener("click", (event) => {
        event.stopPropagation();
        const before = alerts.findIndex(({ place }) => place === choice.alert);
        watch.chooseAlert(alerts[(before + 1) % alerts.length]);
      });
      marks.append(mark);
    }
    at.svg.append(marks);
  }

  function small(id, title, names, missing) {
    const values = names.map((name) => watch.column(abbe.model, name));
    const domain = domainOf(values, id === "rate"); // schedules are read on a linear axis
    const box = byId(id);
    drawn[id] = null;
    box.replaceChildren();
    if (!domain) return box.append(element("p", {}, missing));
    const at = frame(box, title, domain, 150);
    if (names.length > 1) at.svg.append(part("path", { class: "band", d: band(at, (step) => values[1][step], (step) => values[2][step]) }));
    at.svg.append(part("path", { class: "mean", style: "stroke-width: 2", d: path(at, (step) => values[0][step]) }));
    drawn[id] = at;
  }

  function all() {
    curves();
    small("loss", "loss", ["loss", "loss low", "loss high"], "No loss was given to the monitor: monitor.step(loss).");
    small("rate", "learning rate", ["learning_rate"], "No learning rate was given to the monitor: monitor.step(loss, lr).");
    cursors();
  }

  function cursors() {
    Object.values(drawn).forEach((at) => at && cursor(at, abbe.about.steps[watch.stepIndex()]));
  }

  // A click chooses the step below it, and the head whose line is near.
  function click(event) {
    const at = drawn.curves;
    if (!at) return;
    const box = at.svg.getBoundingClientRect();
    const scale = at.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const step = watch.nearest(at.stepAt(x));
    const value = watch.reader("value");
    const away = abbe.places.map((_, head) => Math.abs(at.y(value(step, head) ?? NaN) - y));
    const head = away.reduce((best, far, place) => (Number.isFinite(far) && (best < 0 || far < away[best]) ? place : best), -1);
    watch.chooseStep(step);
    if (head >= 0 && away[head] < NEAR) watch.chooseHead(head);
  }

  // The sentence about the chosen head at the chosen step.
  function tell() {
    const { label, unit } = watch.words();
    const [step, head] = [watch.stepIndex(), watch.headIndex()];
    const stated = ["limit", "control"].map((name) => [name, watch.reader(name)?.(step, head)]).filter(([, value]) => Number.isFinite(value));
    const mean = watch.column(abbe.model, `${choice.measure} mean`)?.[step];
    const beside = [...stated.map(([name, value]) => `${name} ${show(value)}`), Number.isFinite(mean) ? `mean over heads ${show(mean)}` : ""].filter(Boolean);
    const value = watch.reader("value")(step, head);
    const measured = Number.isFinite(value) ? `${show(value)}${["nats", "tokens", "logits"].includes(unit) ? ` ${unit}` : ""}` : "no value";
    const loss = watch.column(abbe.model, "loss")[step];
    byId("now").textContent = `Layer ${choice.layer}, head ${choice.head}: ${label} ${measured}${beside.length ? ` (${beside.join(", ")})` : ""}. Loss at this step: ${show(loss)}.`;
    const { meaning, limit, control } = watch.words();
    const more = [limit && ` Limit: ${limit}.`, control && ` Control: ${control}.`].filter(Boolean).join("");
    byId("meaning").textContent = meaning ? `${meaning[0].toUpperCase()}${meaning.slice(1)}.${more}` : more;
  }

  abbe.parts.push(() => {
    all();
    tell();
    byId("curves").addEventListener("click", click);
    onChoice(["measure"], () => { curves(); cursors(); });
    onChoice(["layer", "head", "step"], chosen);
    onChoice(["layer", "head"], alertMarks);
    onChoice(["step"], cursors);
    onChoice(["layer", "head", "step", "measure"], tell);
    let waiting = 0;
    window.addEventListener("resize", () => {
      window.clearTimeout(waiting);
      waiting = window.setTimeout(all, 150);
    });
  });
})();

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

// The list of alerts: a click leads to the head, the step and the measure of one.
(() => {
  const abbe = window.abbe;
  const { choice, onChoice, watch } = abbe;

  abbe.parts.push(() => {
    const buttons = [...document.querySelectorAll("button[data-alert]")];
    const mark = () => buttons.forEach((button) => {
      const alert = abbe.about.alerts[Number(button.dataset.alert)];
      const here = watch.nearest(alert.step) === watch.stepIndex() && (alert.layer === null || (alert.layer === choice.layer && alert.head === choice.head));
      button.setAttribute("aria-pressed", String(here && (choice.alert === alert.place || choice.alert === undefined)));
    });
    buttons.forEach((button) => button.addEventListener("click", () => {
      watch.chooseAlert(abbe.about.alerts[Number(button.dataset.alert)]);
      document.getElementById("heads").scrollIntoView();
    }));
    onChoice(["layer", "head", "step", "alert"], mark);
    mark();
  });
})();

// The address holds the choices: #head=1.2&measure=entropy&step=350. Such a link restores them; unknown
// parts are ignored. Without a step the page shows the last one, also after it was rewritten.
(() => {
  const abbe = window.abbe;
  const { choice, choose, onChoice, watch } = abbe;

  function read() {
    const given = new URLSearchParams(window.location.hash.slice(1));
    const changes = {};
    const [, layer, head] = (given.get("head") ?? "").match(/^(\d{1,9})\.(\d{1,9})$/)?.map(Number) ?? [];
    if (abbe.places.some((place) => place.layer === layer && place.head === head)) Object.assign(changes, { layer, head });
    if (abbe.about.measures.some(({ name }) => name === given.get("measure"))) changes.measure = given.get("measure");
    if (/^\d{1,15}$/.test(given.get("step") ?? "")) {
      const at = watch.nearest(Number(given.get("step")));
      changes.step = at === watch.last() ? null : abbe.about.steps[at];
    }
    return changes;
  }

  function write() {
    const parts = new URLSearchParams({ head: `${choice.layer}.${choice.head}`, measure: choice.measure });
    if (choice.step !== null) parts.set("step", choice.step);
    window.history.replaceState(null, "", `#${parts}`);
  }

  // The page opens with the last step, and with the head of the last alert, if any.
  function first() {
    const alert = abbe.about.alerts.findLast(({ layer }) => layer !== null);
    const { layer, head } = alert ?? abbe.places[0];
    const named = abbe.about.measures.map(({ name }) => name);
    const measure = named.includes(alert?.measure) ? alert.measure : named.includes("entropy") ? "entropy" : named[0];
    Object.assign(choice, { layer, head, measure, step: null }, read());
  }

  abbe.address = { first };
  abbe.parts.push(() => {
    onChoice(["layer", "head", "measure", "step"], write);
    window.addEventListener("hashchange", () => choose(read()));
  });
})();

// When the data is unpacked, every part starts. A page that follows a run reloads, but not while its reader
// is using it.
(async () => {
  const abbe = window.abbe;
  const QUIET = 4000; // milliseconds without a touch, a key or a move of the slider

  function follow(seconds) {
    let touched = 0;
    ["pointerdown", "keydown", "input", "wheel"].forEach((name) => document.addEventListener(name, () => (touched = Date.now()), { passive: true }));
    window.setInterval(() => {
      if (!document.hidden && Date.now() - touched > QUIET) window.location.reload();
    }, seconds * 1000);
  }

  try {
    await abbe.watch.load();
    abbe.address.first();
    abbe.parts.forEach((start) => start());
    document.documentElement.dataset.ready = "";
    if (abbe.about.reload) follow(abbe.about.reload);
  } catch (error) {
    const notice = document.getElementById("trouble");
    notice.textContent = `This browser could not show the interactive parts (${error.message}); the text below is complete.`;
    notice.hidden = false;
    throw error;
  }
})();
