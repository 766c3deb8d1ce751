"use strict";
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
