// Rollout nodes: what each does, and which of them does not do what the others do.

import { h } from "../dom.js";
import { ago, count } from "../format.js";
import { plain } from "../text.js";
import { stateWord } from "./parts.js";

const STEPS_BEHIND = 5; // as the alert BanyanNodeStale has it
const IDLE_MS = 120000;

/**
 * Return what is wrong with a node in words; an empty text where it works as the others do.
 *
 * A node that has delivered nothing for long is idle only where others did meanwhile: all of them rest
 * while a run evaluates, waits for scores, or is over.
 */
export function trouble(member, members, run) {
  if (!run.live || !member.present) return "";
  const behind = member.policy_step === null ? 0 : run.step - member.policy_step;
  if (behind > STEPS_BEHIND) return `${count(behind)} policy steps behind`;
  const newest = Math.max(...members.map((other) => Date.parse(other.delivered ?? 0)));
  const own = member.delivered ? Date.parse(member.delivered) : null;
  if (own !== null && newest - own > IDLE_MS) return "idle while others deliver";
  return "";
}

/** Return the names of the columns, and the cells of a node; `first` are those between its state and host. */
export const HEAD = (...first) => ["Node", "State", ...first, "Host", "#Trees", "#Policy step", "Delivered", "Heard of"];

export function memberRow(member, members, run, ...first) {
  const { live } = run; // without a run that works, nobody misses a node
  const wrong = trouble(member, members, run);
  const state = wrong ? h("span", { class: "state-word again" }, wrong) : stateWord(member.present ? "PRESENT" : live ? "ABSENT" : "LEFT");
  return h(
    "tr",
    { class: member.present || !live ? (wrong ? "back" : "") : "bad" },
    h("th", { scope: "row", class: "wide" }, plain(member.node)),
    h("td", {}, state),
    first.map((cell) => h("td", {}, cell)),
    h("td", { class: "wide" }, plain(member.host)),
    h("td", { class: "num" }, count(member.trees)),
    h("td", { class: "num" }, count(member.policy_step)),
    h("td", {}, member.delivered ? ago(member.delivered) : "nothing yet"),
    h("td", {}, ago(member.seen)),
  );
}
