// Dialogs: the browser's own, which keep the focus inside and close on Escape.

import { h, icon } from "./dom.js";

/** Show a dialog; return what its button was for, or null. */
function ask(build, label) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const dialog = h("dialog", { class: "dialog", "aria-label": label });
    dialog.append(...build((answer) => dialog.close(answer)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      before?.focus?.();
      resolve(dialog.returnValue || null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Ask for the token; return it, or null. */
export async function askToken(why) {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const answer = await ask(
    (close) => [
      h(
        "form",
        { on: { submit: (event) => (event.preventDefault(), close("ok")) } },
        h("h2", {}, "Token"),
        h("p", {}, why),
        h("label", { for: "token" }, "Token"),
        field,
        h("p", { class: "muted" }, "It is the content of the file “secret” in the state folder. This tab keeps it until it is closed."),
        buttons(close, h("button", { type: "submit", class: "primary" }, "Use the token")),
      ),
    ],
    "Token",
  );
  return answer === "ok" ? field.value.trim() : null;
}

/** Ask whether to do something; return whether the answer was yes. */
export async function confirm(title, text, yes, danger = false) {
  const answer = await ask(
    (close) => [
      h("h2", {}, title),
      h("p", {}, text),
      buttons(close, h("button", { type: "button", class: danger ? "danger" : "primary", on: { click: () => close("yes") } }, yes)),
    ],
    title,
  );
  return answer === "yes";
}

/** Show a table of keys. */
export function showKeys(rows) {
  return ask(
    (close) => [
      h("h2", {}, "Keys"),
      h("table", { class: "keys" }, h("tbody", {}, rows.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, keys.map((key) => h("kbd", {}, key))), h("td", {}, what))))),
      h("div", { class: "buttons" }, h("button", { type: "button", on: { click: () => close("") } }, icon("close"), "Close")),
    ],
    "Keys",
  );
}

function buttons(close, action) {
  return h("div", { class: "buttons" }, h("button", { type: "button", on: { click: () => close("") } }, "Leave it"), action);
}
