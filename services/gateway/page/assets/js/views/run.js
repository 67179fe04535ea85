// One run: its curves as they grow, what doctor says, its newest trees, members and configuration.

import { get, left } from "../api.js";
import { h, link, put } from "../dom.js";
import { count, duration, fixed, moment, percent, plural } from "../format.js";
import { runPath } from "../paths.js";
import { title } from "../router.js";
import { Metrics } from "../series.js";
import { empty, failed, fill } from "../states.js";
import { follow } from "../stream.js";
import { asYaml, plain, sentence } from "../text.js";
import { actions } from "./actions.js";
import { Curves } from "./curves.js";
import { HEAD, memberRow } from "./members.js";
import { stateWord, table, treeRow } from "./parts.js";

const DOCTOR_EVERY = 10;
const TREES_EVERY_MS = 5000;

export function mount(root, params, query, signal) {
  title(params.run);
  const view = new View(root, params.run, query, signal);
  view.start();
}

class View {
  constructor(root, run, query, signal) {
    Object.assign(this, { root, run, signal });
    this.api = `/api/runs/${encodeURIComponent(run)}`;
    this.metrics = new Metrics();
    this.toDoctor = query.get("at") === "doctor";
    this.marked = query.has("step") ? [Number(query.get("step"))] : [];
    this.head = h("div", { class: "head" });
    this.outcome = h("span", { class: "outcome", role: "status" });
    this.progress = h("div", { class: "progress" });
    this.figures = h("dl", { class: "figures box" });
    this.doctor = h("div", {});
    this.trees = h("div", {});
    this.members = h("div", {});
    this.recipe = h("pre", {});
    this.curves = new Curves(this.run, this.metrics, signal);
    root.append(h("div", { class: "head" }, h("h1", {}, plain(run))));
  }

  async start() {
    const { root, signal } = this;
    const host = h("div", { class: "stack" });
    put(root, host);
    await fill(
      host,
      "the run",
      () => Promise.all([get(this.api, signal), this.metrics.read(this.run, signal)]),
      ([document]) => {
        this.#show(document);
        return [this.head, this.progress, this.figures, this.curves.element, this.#doctorBox(), this.#treesBox(), this.#membersBox(), this.#recipeBox(document)];
      },
      signal,
    );
    if (!this.document || signal.aborted) return;
    this.curves.draw(this.marked);
    this.#doctor();
    this.#trees();
    if (this.document.run.live) follow(() => `${this.api}/events?after=${this.metrics.last}`, { news: (news) => this.#news(news), over: () => this.#over() }, signal);
  }

  #show(document) {
    this.document = document;
    const { run, progress, left_s: seconds } = document;
    const what = [run.model, run.task, run.policy, run.advantage].filter(Boolean).map(plain).join(" · ");
    const text = JSON.stringify([run.state, run.cause, run.live]);
    if (text !== this.headText) {
      this.headText = text;
      put(
        this.head,
        h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/runs" }, "Runs")), h("h1", {}, plain(run.name || run.run_id)), h("p", { class: "muted wrap" }, stateWord(run.state), ` ${plain(run.run_id)} · ${what}`), run.cause && h("p", { class: run.state === "FAILED" ? "cause" : "muted wrap" }, sentence(run.cause))),
        actions(run, this.outcome, () => this.#reload()),
      );
    }
    const step = progress.step ?? run.step ?? 0;
    const words = run.steps ? `Step ${count(step)} of ${count(run.steps)}` : `Step ${count(step)}`;
    const rest = run.live && seconds !== null ? `, about ${duration(seconds)} left` : "";
    const under = run.live && progress.evaluations?.find((one) => one.done < one.rows);
    const evaluated = under ? `, ${count(under.done)} of ${count(under.rows)} held-out rows evaluated` : "";
    put(this.progress, run.steps && h("progress", { max: run.steps, value: step, "aria-label": "Steps" }), h("p", {}, words, h("span", { class: "muted" }, `${evaluated}${rest}, ${run.live ? "running" : "took"} ${duration(run.seconds)}, started ${moment(run.created)}`)));
    this.#numbers(document);
    this.#membersTable(document.members);
  }

  #numbers({ run, progress, saved_share: share, members }) {
    const [, rewards] = this.metrics.series("reward");
    const { last, kind, graded, name: heldOut, value: measured, step: measuredAt } = this.metrics.heldOut();
    const dated = measuredAt !== null && measuredAt !== this.metrics.last ? `of step ${count(measuredAt)}` : "";
    const bounds = last?.wilson_95 && !graded ? `${percent(last.wilson_95[0])} to ${percent(last.wilson_95[1])}` : "";
    const partly = last?.done < last?.rows ? `${count(last.done)} of ${count(last.rows)} rows so far` : "";
    const cells = [
      ["Reward", fixed(rewards.at(-1) ?? progress.mean_reward, 3), rewards.length ? "last step" : "mean of leaves"],
      [heldOut, graded ? fixed(measured, 3) : percent(measured), [dated, bounds, kind, partly].filter(Boolean).join(", ") || "not measured yet"],
      ["Tokens saved", percent(share), `${count(progress.saved_tokens)} of prompts and answers, ${count(progress.sampled_tokens)} sampled`],
      ["Groups trained on", count(progress.groups?.consumed), `${count(progress.groups?.open)} open, ${count(progress.groups?.dropped)} dropped`],
      ["Engine occupancy", percent(this.metrics.series("engine_occupancy")[1].at(-1)), "of the engines' slots decoded, last step"],
      run.live ? ["Members", count(members.filter((member) => member.present).length), `of ${plural(members.length, "node")}`] : ["Members", count(members.length), members.length === 1 ? "node took part" : "nodes took part"],
    ];
    put(this.figures, cells.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", { class: "muted small" }, note))));
  }

  async #news(news) {
    if (this.metrics.missing(news.steps ?? [])) {
      try {
        await this.metrics.read(this.run, this.signal);
      } catch (error) {
        if (left(error)) return;
      }
    }
    const evaluated = news.progress.evaluations?.filter((one) => one.n).length ?? 0;
    this.metrics.add(news);
    if (evaluated !== this.evaluated) {
      this.evaluated = evaluated;
      this.#evaluations();
    }
    this.#show(news);
    this.curves.draw(this.marked);
    if (Math.floor(this.metrics.last / DOCTOR_EVERY) !== this.doctored) this.#doctor();
    if (performance.now() - (this.treesAt ?? 0) > TREES_EVERY_MS) this.#trees();
  }

  async #evaluations() {
    try {
      await this.metrics.read(this.run, this.signal);
      this.curves.draw(this.marked);
    } catch {
      this.evaluated = undefined; // asked again with the next news
    }
  }

  #over() {
    this.#reload();
  }

  async #reload() {
    try {
      this.#show(await get(this.api, this.signal));
      this.#doctor();
      this.#trees();
    } catch (error) {
      if (!left(error)) put(this.progress, failed(error, () => this.#reload()));
    }
  }

  #doctorBox() {
    return h("section", { class: "box" }, h("h2", {}, "What doctor says"), this.doctor);
  }

  async #doctor() {
    this.doctored = Math.floor(this.metrics.last / DOCTOR_EVERY);
    const host = this.doctor.childElementCount ? h("div", {}) : this.doctor;
    const said = await fill(host, "doctor's findings", () => get(`${this.api}/doctor`, this.signal), ({ findings, facts, note }) => [findings.length ? h("ul", { class: "findings" }, findings.map((one) => this.#finding(one))) : h("p", {}, note ? "Nothing yet." : "No symptoms found."), [facts, note].filter(Boolean).map((text) => h("p", { class: "muted facts" }, sentence(text)))].filter(Boolean), this.signal);
    if (!said) return;
    if (host !== this.doctor) put(this.doctor, ...host.children);
    if (this.toDoctor) this.doctor.scrollIntoView({ block: "center" });
    this.toDoctor = false;
    this.marked = [...new Set([...this.marked, ...said.findings.map((one) => one.step).filter(Number.isFinite)])];
    this.curves.draw(this.marked);
  }

  #finding(one) {
    const step = Number.isFinite(one.step) && h("a", { href: this.curves.pathOf(one.step) }, `Trees of step ${one.step}`);
    return h("li", { class: /error|bad|high|critical/i.test(one.severity) ? "finding bad" : "finding" }, h("p", {}, h("strong", {}, sentence(one.sentence))), one.remedy && h("p", {}, sentence(one.remedy)), h("p", { class: "small" }, step, step && one.link && " · ", one.link && more(one)));
  }

  #treesBox() {
    return h("section", { class: "box" }, h("div", { class: "head" }, h("h2", {}, "Newest trees"), h("a", { href: `${runPath(this.run)}/trees` }, "All trees")), this.trees);
  }

  async #trees() {
    this.treesAt = performance.now();
    const host = this.trees.childElementCount ? h("div", {}) : this.trees;
    const page = await fill(
      host,
      "trees",
      () => this.#newest(),
      ({ trees }) => (trees.length ? table("Newest trees", ["Tree", "State", "#Policy step", "#Leaves", "#Reward", "Row", "Opened"], trees.map(treeRow)) : empty("No trees yet", "The first ones appear as soon as a rollout node has begun.")),
      this.signal,
    );
    const inside = document.activeElement && this.trees.contains(document.activeElement);
    if (page && host !== this.trees && !inside) put(this.trees, ...host.children);
  }

  // Those that are trained on: after the last evaluation the newest of all would be its trees alone.
  async #newest() {
    const trained = await get(`${this.api}/trees?limit=8`, this.signal);
    return trained.trees.length ? trained : get(`${this.api}/trees?limit=8&purpose=eval`, this.signal);
  }

  #membersBox() {
    return h("section", { class: "box" }, h("h2", {}, "Members"), this.members);
  }

  #membersTable(members) {
    const { run } = this.document;
    const rows = members.map((member) => memberRow(member, members, run, member.joined ? "joined" : "of this machine"));
    const text = JSON.stringify([run.live, run.step, members.map((member) => ({ ...member, seen: null }))]);
    if (text === this.membersText) return;
    this.membersText = text;
    put(this.members, rows.length ? table("Members", HEAD("From"), rows) : empty("No members", this.document.run.live ? "A rollout node reports here when it has loaded the model." : "The run is over, and its nodes have left."));
  }

  #recipeBox(document) {
    this.recipe.textContent = asYaml(document.recipe).trim();
    return h("details", { class: "box" }, h("summary", {}, "Configuration, as resolved"), this.recipe);
  }
}

// Pages of the documentation are named by their path in it; addresses of this page and of the web are links.
function more(finding) {
  const known = /^(\/|https?:\/\/)/.test(finding.link);
  return known ? link(finding.link, `More on ${plain(finding.rule)}`) : ["More on ", plain(finding.rule), ": ", h("code", {}, plain(finding.link))];
}
