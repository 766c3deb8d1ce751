"use strict";
// The address holds the choices: #head=1.2&measure=separability&length=512&N=20&T=0.5. Such a link restores it;
// unknown parts are ignored, and the name of a section, such as #growth, is not a choice.
(() => {
  const abbe = window.abbe;
  const { choice, choose, onChoice } = abbe;
  const words = (name) => abbe.about.measures.find((measure) => measure.name === name);

  function read() {
    const given = new URLSearchParams(window.location.hash.slice(1));
    const changes = {};
    const [, layer, head] = (given.get("head") ?? "").match(/^(\d{1,9})\.(\d{1,9})$/)?.map(Number) ?? [];
    if (abbe.places.some((place) => place.layer === layer && place.head === head)) Object.assign(changes, { layer, head });
    const family = given.get("measure") ?? words(choice.measure).family;
    const warm = given.has("T") ? Number(given.get("T")) : null;
    if (given.has("measure") || given.has("T")) {
      const measure = abbe.measureAt(family, warm);
      if (measure) changes.measure = measure;
    }
    const rows = abbe.rowsOfHeads(changes.measure ?? choice.measure);
    for (const [name, column, key] of [["length", "length", "length"], ["N", "n", "size"]]) {
      const number = given.has(name) ? Number(given.get(name)) : NaN;
      if (abbe.table.present(column, rows).includes(number)) changes[key] = number;
    }
    return changes;
  }

  function write() {
    const { family, temperature } = words(choice.measure);
    const rows = abbe.rowsOfHeads(choice.measure);
    const parts = new URLSearchParams({ head: `${choice.layer}.${choice.head}`, measure: family });
    if (choice.length !== null && abbe.table.present("length", rows).length) parts.set("length", choice.length);
    if (abbe.table.present("n", rows).length) parts.set("N", choice.size);
    if (abbe.temperatures(family).length > 1) parts.set("T", temperature);
    window.history.replaceState(null, "", `#${parts}`);
  }

  abbe.address = { read };
  abbe.parts.push(() => {
    onChoice(["layer", "head", "measure", "length", "size"], write);
    window.addEventListener("hashchange", () => choose(read()));
    // A link to a head scrolls there; a reloaded page stays where the reader was.
    const [visit] = performance.getEntriesByType("navigation");
    if (/[#&]head=/.test(window.location.hash) && visit?.type === "navigate") {
      document.getElementById("head").scrollIntoView({ behavior: "instant" });
    }
  });
})();
