"use strict";
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
