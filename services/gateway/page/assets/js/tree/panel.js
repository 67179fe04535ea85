// The panel beside a tree: of the chosen segment, or of the whole tree.

import { get, left } from "../api.js";
import { h, icon, link, put, say } from "../dom.js";
import { count, fixed, moment, number, signed, took } from "../format.js";
import { runPath, treesOfStep } from "../paths.js";
import { failed, loading } from "../states.js";
import { plain, sentence } from "../text.js";
import { reasonOf, shapeOf } from "./card.js";
import { tokenHeat } from "./heat.js";
import { textOf, valueOf } from "./model.js";

const NAMES = { prompt: "Prompt", policy: "Sampled by the policy", call: "Tool call", answer: "Tool's answer", forced: "Given, not sampled" };

/** A panel that shows one thing at a time; what it fetched for the last one is dropped. */
export class Panel {
  constructor(run, close) {
    this.run = run;
    this.element = h("aside", { class: "panel", "aria-label": "Details", tabindex: "-1" });
    this.close = close;
    this.controller = new AbortController();
  }

  #begin() {
    this.controller.abort();
    this.controller = new AbortController();
    return this.controller.signal;
  }

  end() {
    this.controller.abort();
  }

  /** Show the tree itself: its prompt, its facts, the commands. */
  showTree(document) {
    this.#begin();
    const facts = [
      ["State", [state(document.state), document.reason && ` ${plain(document.reason)}`]],
      ["Row", plain(document.row).slice(0, 16)],
      ["Tree policy", plain(document.policy)],
      ["Purpose", [plain(document.purpose), document.label && ` ${plain(document.label)}`]],
      ["Mean reward", fixed(document.reward_mean, 3)],
      ["Scorers", plain((document.scorers ?? []).join(", ")) || "none"],
      ["Opened", moment(document.opened)],
      ["Closed", moment(document.closed)],
    ];
    put(
      this.element,
      h("h2", {}, "This tree"),
      h("p", { class: "muted" }, "Choose a segment to see its text, scores and lineage."),
      definitions(facts),
      document.advantage_note && h("p", { class: "muted" }, sentence(document.advantage_note)),
      section("Prompt", (document.messages ?? []).map((message) => h("div", { class: "message" }, h("h4", {}, plain(message.role)), h("p", { class: "prose", dir: "auto" }, plain(message.content))))),
      trace(document.trace_id),
      commands({ tree: `banyan trees show ${document.tree_id}`, picture: `banyan trees draw ${document.tree_id} -o tree.svg` }),
    );
  }

  /** Show a node: what is known of it at once, and the rest of its segment when it is there. */
  async showNode(document, node) {
    const signal = this.#begin();
    const { data } = node;
    const rest = h("div", {}, loading("the segment", 4));
    put(
      this.element,
      h("div", { class: "panel-head" }, h("h2", {}, NAMES[shapeOf(node)]), h("button", { type: "button", class: "quiet", "aria-label": "Close the details", on: { click: this.close } }, icon("close"))),
      data.why && h("p", { class: "why" }, icon(reasonOf(data).mark), sentence(data.why)),
      numbers(node),
      rest,
    );
    if (!data.segment) {
      put(rest, section("Text", [h("p", { class: "prose", dir: "auto" }, plain(textOf(node)))]));
      return;
    }
    try {
      const segment = await get(`/api/trees/${document.tree_id}/segments/${data.segment}`, signal);
      put(rest, ...parts(segment, node, this.run, signal));
    } catch (error) {
      if (!left(error)) put(rest, section("Text", [h("p", { class: "prose", dir: "auto" }, plain(textOf(node)))]), failed(error, () => this.showNode(document, node)));
    }
  }
}

function state(text) {
  return h("span", { class: `state-word ${String(text).toLowerCase()}` }, plain(text));
}

function numbers(node) {
  const { data } = node;
  const cells = [
    ["Value", valueOf(node) === null ? null : fixed(valueOf(node), 3)],
    ["Advantage", data.advantage === null ? null : signed(data.advantage, 3)],
    ["Entropy", data.entropy === null ? null : fixed(data.entropy, 3)],
    ["Log-prob", data.logprob === null ? null : fixed(data.logprob, 3)],
    ["Tokens", count(data.tokens)],
    ["Paths", count(data.paths)],
  ].filter(([, value]) => value !== null);
  return h("dl", { class: "figures" }, cells.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value.replace("-", "−")))));
}

function parts(segment, node, run, signal) {
  const { data } = node;
  const own = data.leaf?.scores?.length ? data.leaf.scores : segment.scores;
  return [
    section("Text", textParts(segment, node, signal)),
    section("Scores", scores(own ?? [], data.leaf)),
    segment.receipt && section("Answer of the tool", [record(segment.receipt)]),
    segment.plan && section("Plan", [record(segment.plan)]),
    section("Lineage", lineage(segment, run)),
    trace(segment.trace_id),
    commands(segment.commands ?? {}),
  ].filter(Boolean);
}

// The node's part of its segment, coloured by token where the tokens have texts.
function textParts(segment, { data }, signal) {
  const own = (segment.tokens ?? []).slice(data.start, data.stop);
  const whole = own.length === (segment.tokens ?? []).length;
  const part = !whole && h("p", { class: "muted" }, `Tokens ${data.start} to ${data.stop} of the segment's ${segment.tokens.length}.`);
  if (own.length && own.every((token) => token.text !== null)) return [...tokenHeat(own, signal), part];
  return [h("p", { class: "prose", dir: "auto" }, plain(segment.text)), part, segment.token_texts && h("p", { class: "muted" }, sentence(segment.token_texts))];
}

function scores(list, leaf) {
  if (!list.length) return [h("p", { class: "muted" }, leaf ? "Not scored yet." : "Only leaves are scored; this segment ends no path.")];
  return list.map((score) =>
    h(
      "div",
      { class: "score" },
      h("div", { class: "score-head" }, h("strong", {}, plain(score.scorer)), h("span", { class: "muted" }, plain(score.version), score.again && " scored again", Number.isFinite(score.seconds) && ` in ${took(score.seconds)}`), h("span", { class: "figure" }, score.value === null ? plain(score.state).toLowerCase() : number(score.value))),
      score.reason && h("p", {}, plain(score.reason)),
      Object.keys(score.parts ?? {}).length > 0 && definitions(Object.entries(score.parts).map(([name, value]) => [plain(name), number(value)])),
    ),
  );
}

function lineage(segment, run) {
  const rows = (segment.lineage ?? []).map((use) =>
    use.step === null
      ? h("li", {}, `Batch ${plain(use.batch)}, not trained on yet`)
      : h("li", {}, "Batch ", link(treesOfStep(run, use.step), plain(use.batch)), ", step ", link(`${runPath(run)}?step=${use.step}`, String(use.step)), use.use && `: ${plain(use.use)}`),
  );
  const policy = segment.policy_step === null || segment.policy_step === undefined ? null : link(`${runPath(run)}/trees?policy_step=${segment.policy_step}`, `step ${segment.policy_step}`);
  return [
    h("p", {}, policy ? ["Policy of ", policy] : "Made by no policy", segment.producer ? `, produced by ${plain(segment.producer)}` : "", segment.finish ? `, finish ${plain(segment.finish)}` : ""),
    rows.length ? h("ul", { class: "plain" }, rows) : h("p", { class: "muted" }, "No batch has used it yet."),
    h("p", { class: "muted id" }, `segment ${plain(segment.segment)}`),
  ];
}

function record(fields) {
  return definitions(flat(fields).map(([name, value]) => [plain(name), plain(value !== null && typeof value === "object" ? JSON.stringify(value) : (value ?? "none"))]));
}

// Parts of a record in one list: {started: {plan: 1}} is "started, plan".
function flat(fields, before = "") {
  return Object.entries(fields).flatMap(([name, value]) => {
    const words = `${before}${name}`.replaceAll("_", " ");
    return value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${words}, `) : [[words, value]];
  });
}

function trace(id) {
  if (!id) return null;
  return section("Trace", [copyable(id)]);
}

function commands(list) {
  const rows = Object.entries(list);
  return rows.length ? section("In the terminal", rows.map(([, text]) => copyable(text))) : null;
}

function copyable(text) {
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Copy ${plain(text).slice(0, 60)}`, on: { click: copy } }, icon("copy"));
  const code = h("code", {}, plain(text));
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
    } catch {
      getSelection().selectAllChildren(code);
      say("Selected: press Ctrl and C to copy.");
    }
  }
  return h("div", { class: "copyable" }, code, button);
}

function section(name, children) {
  return h("section", {}, h("h3", {}, name), children);
}

/** Return a list of names and what they stand for. */
export function definitions(rows) {
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}


