// What can be done to a run. Each asks before, and needs the token.

import { act, left } from "../api.js";
import { confirm } from "../dialog.js";
import { h, put, say } from "../dom.js";
import { go } from "../router.js";
import { plain, sentence } from "../text.js";

const RESUMABLE = new Set(["PAUSED", "FAILED"]);

/** Return the buttons that fit a run's state. `line` says how an action went; `done` is called after one. */
export function actions(run, line, done) {
  const path = `/api/runs/${encodeURIComponent(run.run_id)}`;
  const name = plain(run.name || run.run_id);
  const button = (label, question, text, method, suffix, body, after, danger) => {
    const element = h("button", { type: "button", on: { click: press } }, label);
    async function press() {
      if (!(await confirm(question, text, label, danger))) return;
      element.disabled = true;
      put(line, `${label}…`);
      try {
        // A large run is removed in several requests, each of which says whether anything is left.
        for (let answer = null; answer?.done !== true; ) {
          answer = await act(method, path + suffix, body);
          if (answer.done === undefined) break;
        }
        put(line, `${label}: done.`);
        say(`${label}: done.`);
        after();
      } catch (error) {
        put(line, left(error) ? "" : sentence(error.message));
      }
      element.disabled = false;
    }
    return element;
  };
  const resume = button("Resume", `Resume ${name}?`, "It goes on at its last step.", "POST", "/resume", undefined, done, false);
  const pause = button("Pause", `Pause ${name}?`, "It stops after the step that it computes now, and can be resumed.", "POST", "/cancel", { pause: true }, done, false);
  const cancel = button("Cancel", `Cancel ${name}?`, "It ends for good. Its trees, metrics and last checkpoint stay.", "POST", "/cancel", { pause: false }, done, true);
  const remove = button("Remove", `Remove ${name}?`, "Its trees, metrics and checkpoints are deleted. This cannot be taken back.", "DELETE", "", undefined, () => go("/runs"), true);
  const shown = run.state === "PAUSED" ? [resume, cancel] : RESUMABLE.has(run.state) ? [resume, remove] : run.live ? [pause, cancel] : [remove];
  return h("div", { class: "actions" }, line, shown);
}
