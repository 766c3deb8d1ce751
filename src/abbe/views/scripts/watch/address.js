"use strict";
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
