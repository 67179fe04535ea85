// The system: its processes, queues, members and dead letters, looked at every second.

import { act, get, left } from "../api.js";
import { confirm } from "../dialog.js";
import { h, put, say } from "../dom.js";
import { bytes, count, moment, plural } from "../format.js";
import { runPath } from "../paths.js";
import { title } from "../router.js";
import { empty, failed, loading } from "../states.js";
import { poll } from "../stream.js";
import { plain, sentence } from "../text.js";
import { HEAD, memberRow } from "./members.js";
import { stateWord, table } from "./parts.js";

const LOOK_MS = 1000;
const MEMBERS_MS = 5000;
const MOST_RUNS = 5;
// States that the supervisor gives to processes on purpose; dead, ended, waiting and given up are not.
const WELL = new Set(["new", "ready", "starting", "stopped"]);

export function mount(root, params, query, signal) {
  title("System");
  new View(root, signal).start();
}

// The supervisor starts a killed process again within a fraction of a second, so what was killed
// stands out for a while after it is back.
const REMEMBERED_MS = 60000;

/** Return whether a process is not as it should be. */
export function isDown(process) {
  return !WELL.has(process.state);
}

class View {
  constructor(root, signal) {
    this.signal = signal;
    this.restarts = new Map();
    this.alarm = h("div", { class: "alarm", role: "alert", hidden: true });
    this.missing = h("p", { class: "cause", role: "status", hidden: true });
    this.processes = h("div", {}, loading("processes", 5));
    this.queues = h("div", {}, loading("queues", 3));
    this.store = h("div", {});
    this.members = h("div", {});
    this.letters = h("div", {});
    this.shown = {};
    const box = (name, host) => h("section", { class: "box" }, h("h2", {}, name), host);
    root.append(h("div", { class: "head" }, h("h1", {}, "System")), this.alarm, this.missing, box("Processes", this.processes), box("Members", this.members), box("Queues", this.queues), box("Dead letters", this.letters), box("Store", this.store));
  }

  start() {
    poll(() => this.#look(), LOOK_MS, this.signal);
    poll(() => this.#members(), MEMBERS_MS, this.signal);
  }

  async #look() {
    try {
      const system = await get("/api/system", this.signal);
      const back = system.processes.filter((process) => !isDown(process) && this.#cameBack(process));
      this.#changed("processes", [system.processes, back.length], () => this.#processes(system.processes, back));
      this.#changed("queues", system.queues, () => this.#queues(system.queues));
      this.#changed("store", system.store, () => this.#store(system.store));
      this.#changed("dead", system.dead, () => this.#dead(system.dead));
      this.missing.hidden = !system.missing?.length;
      this.missing.textContent = (system.missing ?? []).map(sentence).join(" ");
    } catch (error) {
      if (left(error)) return;
      this.shown = {};
      put(this.processes, failed(error, () => this.#look()));
    }
  }

  // What is the same is left alone: the focus, a selection, and the reader of a screen stay at rest.
  #changed(name, value, draw) {
    const text = JSON.stringify(value);
    if (this.shown[name] === text) return;
    this.shown[name] = text;
    draw();
  }

  // Whether a process ended a short time ago: by its count of restarts, and by the time it gives.
  #cameBack(process) {
    const known = this.restarts.get(process.name);
    const now = Date.now();
    const more = known && process.restarts > known.count;
    const at = more ? now : (known?.at ?? 0);
    this.restarts.set(process.name, { count: process.restarts, at });
    if (!process.restarts) return false;
    return process.state === "starting" || now - at < REMEMBERED_MS || Math.abs(now - Date.parse(process.since)) < REMEMBERED_MS;
  }

  #processes(processes, back) {
    const down = processes.filter(isDown);
    this.alarm.hidden = !down.length && !back.length;
    this.alarm.classList.toggle("mild", !down.length);
    const named = (process) => `${plain(process.name)}${process.last_words ? ` (${plain(process.last_words)})` : ""}`;
    const words = [
      down.length && `${down.length === 1 ? "A process is" : `${down.length} processes are`} down: ${down.map(named).join(", ")}.`,
      back.length && `Ended and started again: ${back.map((process) => `${named(process)}, now ${plain(process.state)}`).join("; ")}.`,
    ];
    const text = words.filter(Boolean).join(" ");
    if (this.alarm.textContent !== text) this.alarm.textContent = text;
    if (!processes.length) {
      put(this.processes, empty("No processes", "Nothing runs from this state folder. Start a run: ", h("code", {}, "banyan train quickstart")));
      return;
    }
    const sorted = [...down, ...back, ...processes.filter((process) => !isDown(process) && !back.includes(process))];
    put(this.processes, table("Processes", ["Process", "State", "Health", "Run", "#Process id", "#Restarts", "Since", "Last words"], sorted.map((process) => this.#process(process, back.includes(process)))));
  }

  #process(process, isBack) {
    const bad = isDown(process);
    return h(
      "tr",
      { class: bad ? "bad" : isBack ? "back" : "" },
      h("th", { scope: "row" }, plain(process.name)),
      h("td", {}, bad ? h("span", { class: "state-word down" }, `down: ${plain(process.state)}`) : isBack ? h("span", { class: "state-word again" }, `${plain(process.state)} again`) : stateWord(process.state)),
      h("td", {}, plain(process.health ?? "unknown")),
      h("td", {}, process.run_id ? h("a", { href: runPath(process.run_id) }, plain(process.run_id)) : "–"),
      h("td", { class: "num" }, process.pid === null ? "–" : String(process.pid)),
      h("td", { class: "num" }, count(process.restarts)),
      h("td", {}, moment(process.since)),
      h("td", { class: "wide" }, plain(process.last_words ?? "")),
    );
  }

  #queues(queues) {
    const rows = queues.map((queue) => h("tr", {}, h("th", { scope: "row" }, plain(queue.stream)), h("td", { class: "wide" }, plain(queue.consumer)), h("td", { class: "num" }, count(queue.waiting)), h("td", { class: "num" }, count(queue.unacknowledged))));
    put(this.queues, rows.length ? table("Queues", ["Stream", "Consumer", "#Waiting", "#Not acknowledged"], rows) : empty("No queues", "They are made by the first run."));
  }

  #store(store) {
    put(this.store, h("dl", { class: "figures counts" }, Object.entries(store ?? {}).sort(([a], [b]) => a.localeCompare(b)).map(([name, value]) => h("div", {}, h("dt", {}, plain(name).replaceAll("_", " ")), h("dd", {}, /bytes/.test(name) ? bytes(value) : typeof value === "number" ? count(value) : plain(value))))));
  }

  async #dead(many) {
    if (!many) {
      put(this.letters, h("p", { class: "muted" }, "None: every message was taken."));
      return;
    }
    try {
      const { letters, next } = await get("/api/dead?limit=50", this.signal);
      put(this.letters, h("p", { class: "muted" }, `${plural(many, "message")} could not be processed. Replay one when its cause is mended.`), table("Dead letters", ["Reason", "Subject", "Service", "When", "#Size", ""], letters.map((letter) => this.#letter(letter))), next && h("p", { class: "muted" }, `The newest ${letters.length} are shown; `, h("code", {}, "banyan dead ls"), " lists all."));
    } catch (error) {
      if (!left(error)) put(this.letters, failed(error, () => this.#dead(many)));
    }
  }

  #letter(letter) {
    const button = h("button", { type: "button", "aria-label": `Replay ${plain(letter.id)}`, on: { click: () => this.#replay(letter, button) } }, "Replay");
    return h("tr", {}, h("td", { class: "wide" }, plain(letter.reason)), h("td", { class: "wide" }, plain(letter.subject)), h("td", {}, plain(letter.service)), h("td", {}, moment(letter.when)), h("td", { class: "num" }, bytes(letter.bytes)), h("td", {}, letter.replayed ? h("span", { class: "muted" }, "replayed") : button));
  }

  async #replay(letter, button) {
    if (!(await confirm("Replay this message?", `${plain(letter.subject)}, refused by ${plain(letter.service)}: ${plain(letter.reason)}`, "Replay"))) return;
    button.disabled = true;
    try {
      await act("POST", `/api/dead/${encodeURIComponent(letter.id)}/replay`);
      say("Replayed.");
      await this.#dead(Number.parseInt(this.shown.dead, 10));
    } catch (error) {
      button.disabled = false;
      if (!left(error)) button.after(h("p", { class: "cause", role: "alert" }, sentence(error.message)));
    }
  }

  async #members() {
    try {
      const { runs } = await get("/api/runs?limit=20", this.signal);
      const live = runs.filter((run) => run.live).slice(0, MOST_RUNS);
      const all = await Promise.all(live.map((run) => get(`/api/runs/${encodeURIComponent(run.run_id)}`, this.signal)));
      const rows = all.flatMap(({ run, members }) => members.map((member) => memberRow(member, members, run, h("a", { href: runPath(run.run_id) }, plain(run.run_id)))));
      const text = JSON.stringify(all.map(({ run, members }) => [run.run_id, run.step, members.map((member) => ({ ...member, seen: null }))]));
      this.#changed("members", text, () => put(this.members, rows.length ? table("Members", HEAD("Run"), rows) : h("p", { class: "muted" }, "No run is going on, so no rollout node is a member of one.")));
    } catch (error) {
      if (!left(error)) this.#changed("members", error.message, () => put(this.members, failed(error, () => this.#members())));
    }
  }
}
