"use strict";
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
