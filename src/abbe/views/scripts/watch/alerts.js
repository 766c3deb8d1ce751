"use strict";
// The list of alerts: a click leads to the head, the step and the measure of one.
(() => {
  const abbe = window.abbe;
  const { choice, onChoice, watch } = abbe;

  abbe.parts.push(() => {
    const buttons = [...document.querySelectorAll("button[data-alert]")];
    const mark = () => buttons.forEach((button) => {
      const alert = abbe.about.alerts[Number(button.dataset.alert)];
      const here = watch.nearest(alert.step) === watch.stepIndex() && (alert.layer === null || (alert.layer === choice.layer && alert.head === choice.head));
      button.setAttribute("aria-pressed", String(here && (choice.alert === alert.place || choice.alert === undefined)));
    });
    buttons.forEach((button) => button.addEventListener("click", () => {
      watch.chooseAlert(abbe.about.alerts[Number(button.dataset.alert)]);
      document.getElementById("heads").scrollIntoView();
    }));
    onChoice(["layer", "head", "step", "alert"], mark);
    mark();
  });
})();
