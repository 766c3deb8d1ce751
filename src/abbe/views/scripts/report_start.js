"use strict";
// When the data is unpacked, every part of the page starts, then the charts; the navigation follows the reader.
(async () => {
  const abbe = window.abbe;

  function follow() {
    const links = new Map([...document.querySelectorAll("nav a[href^='#']")].map((link) => [link.hash.slice(1), link]));
    const visible = new Set();
    const watch = new IntersectionObserver((entries) => {
      entries.forEach(({ target, isIntersecting }) => visible[isIntersecting ? "add" : "delete"](target.id));
      const first = [...links.keys()].find((id) => visible.has(id));
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(first)?.setAttribute("aria-current", "true");
    }, { rootMargin: "-64px 0px -55% 0px" });
    links.forEach((_, id) => document.getElementById(id) && watch.observe(document.getElementById(id)));
  }

  // Paper has no clicks: printing opens the rule behind the answer and the meanings of the numbers.
  function unfold() {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll(".answer details:not([open]), details.meaning:not([open])")];
      opened.forEach((part) => (part.open = true));
    });
    window.addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
  }

  // Every head of the table, in order.
  function places(table) {
    const places = new Map();
    for (let row = 0; row < table.rows; row += 1) {
      const [layer, head] = [table.get("layer", row), table.get("head", row)];
      if (layer !== null && head !== null) places.set(`${layer} ${head}`, { layer, head });
    }
    return [...places.values()].sort((a, b) => a.layer - b.layer || a.head - b.head);
  }

  try {
    await abbe.load();
    abbe.places = places(abbe.table);
    if (!abbe.places.length) throw new Error("the table has no heads");
    abbe.parts.forEach((start) => start());
    follow();
    unfold();
    document.documentElement.dataset.ready = "";
    await abbe.charts.start(abbe.specifications);
  } catch (error) {
    const notice = document.getElementById("trouble");
    notice.textContent = `This browser could not show the interactive parts (${error.message}); the text below is complete.`;
    notice.hidden = false;
    throw error;
  }
})();
