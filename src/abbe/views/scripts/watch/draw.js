"use strict";
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
