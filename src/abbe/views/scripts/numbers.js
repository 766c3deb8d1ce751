"use strict";
// Numbers for people: the same text as in `abbe/words/numbers.py`; a test compares them.
(() => {
  function number(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return { Infinity: "∞", "-Infinity": "-∞" }[value] ?? String(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
    const rounded = Number(value.toPrecision(digits));
    const size = Math.abs(rounded);
    if (size >= 1e9 || (size > 0 && size < 1e-4)) return rounded.toExponential();
    if (size >= 1000 || Number.isInteger(value)) return (value || 0).toLocaleString("en", { maximumFractionDigits: 0 }); // no -0
    return String(rounded);
  }

  window.abbe = { ...window.abbe, number };
})();
