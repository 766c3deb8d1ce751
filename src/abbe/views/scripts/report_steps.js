"use strict";
// Commands can be copied; on a phone the meaning of a key number is folded, so that the answer fits two screens.
(() => {
  const abbe = window.abbe;
  const SHOWN = 2000; // milliseconds

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      window.getSelection().selectAllChildren(code); // not allowed to copy: the reader can
      button.textContent = "selected";
    }
    window.setTimeout(() => (button.textContent = "copy"), SHOWN);
  }

  abbe.parts.push(() => {
    document.addEventListener("click", ({ target }) => target.closest("button.copy") && copy(target.closest("button.copy")));
    const narrow = window.matchMedia("(max-width: 40rem)");
    const fold = () => document.querySelectorAll("details.meaning").forEach((part) => (part.open = !narrow.matches));
    narrow.addEventListener("change", fold);
    fold();
  });
})();
