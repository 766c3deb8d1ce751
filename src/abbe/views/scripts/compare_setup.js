"use strict";
// What sorting needs: a list of parts that start with the page, and a way to make elements.
(() => {
  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  }

  window.abbe = { ...window.abbe, element, parts: [] };
})();
