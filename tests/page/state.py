"""The state of the fake gateway: what it serves, and what was done to it."""

import re
import threading
from typing import Any

from tests.page import documents as docs

RUN = "quickstart-982fd965"
LIVE = "live-11223344"
HOSTILE = "hostile-99887766"
TREES = 100_000
METRICS = 25  # steps of an answer
NAMES = ("gateway", "treestore", "verifier-0", "learner", "rollout-0", "rollout-1")


class Gateway:
    """Documents at paths, faults that a test asks for, and a log of requests and actions."""

    def __init__(self) -> None:
        self.under_way: list[docs.Document] = []  # evaluations of the run that works
        self.steps: dict[str, int] = {RUN: 40, LIVE: 12, HOSTILE: 5, "second-55667788": 40}
        self.trees: dict[str, docs.Document] = {}
        self.killed: set[str] = set()
        self.back: set[str] = set()
        self.states: dict[str, str] = {}
        self.broken: dict[str, tuple[int, str, str]] = {}
        self.delay: dict[str, float] = {}
        self.actions: list[tuple[str, str, Any]] = []
        self.requests: list[str] = []
        self.streams = 0
        self.letters = 2
        self.empty = False
        self.more_members: list[docs.Document] = []  # as they differ from the first one
        self.graded: set[str] = set()  # runs whose rewards lie between right and wrong
        self.silent: set[str] = set()  # runs that have made no step for long
        self.sessions = 0
        self.locked = False  # as on an address that is not loopback
        self.changed = threading.Condition()
        self.ended = False
        for name, leaves in (("small", 12), ("large", 1000), ("other", 9), ("second", 14)):
            self.trees[name] = docs.tree(name, docs.grown(leaves, seed=len(name)))
        self.trees["wide"] = docs.tree("wide", docs.grown(400, fan=400))
        hostile = docs.grown(9, hostile=True)
        words = [{"role": docs.HOSTILE[0], "content": text} for text in docs.HOSTILE]
        self.trees["hostile"] = docs.tree(
            "hostile",
            hostile,
            run_id=HOSTILE,
            messages=words,
            row=docs.HOSTILE[5],
            label=docs.HOSTILE[1],
        )
        self.trees["growing"] = docs.tree("growing", docs.grown(4, seed=3), state="GROWING")

    def change(self) -> None:
        """Wake the streams."""
        with self.changed:
            self.changed.notify_all()

    def grow(self, leaves: int = 1, tree: str = "growing") -> None:
        """Add leaves to a tree: branches of nodes that are there."""
        old = self.trees[tree]
        nodes = [dict(one) for one in old["nodes"]]
        for k in range(leaves):
            inner = [one for one in nodes if one["leaf"] is None]
            parent = inner[(len(nodes) + k) % len(inner)]
            child = docs.node(
                len(nodes), parent["i"], "POLICY", f"new branch {len(nodes)}", value=0.5
            )
            child["leaf"] = docs.leaf(0.5)
            nodes.append(child)
        self.trees[tree] = old | {"nodes": nodes, "revision": old["revision"] + 1}
        self.change()

    def step(self, run: str = LIVE) -> None:
        """Finish a step of a run."""
        self.steps[run] += 1
        self.change()

    def run(self, name: str) -> docs.Document:
        """Return a run of this name."""
        if name == LIVE:
            return docs.run(name, self.states.get(name, "TRAINING"), step=self.steps[name])
        if name == HOSTILE:
            return docs.run(name, "FAILED", name=docs.HOSTILE[0], cause=docs.HOSTILE[1])
        return docs.run(name)

    def detail(self, name: str) -> docs.Document:
        """Return all that the page of a run begins with."""
        hostile = name == HOSTILE
        node = docs.HOSTILE[5] if hostile else "rollout-0"
        member = {"node": node, "host": "127.0.0.1", "joined": False, "trees": 61}
        member |= {
            "present": name == LIVE,
            "policy_step": self.steps[name],
            "delivered": docs.now(),
        }
        done = self.steps[name]
        groups = {"opened": 320, "open": 4, "closed": 2, "consumed": 314, "dropped": 0}
        return {
            "run": self.run(name),
            "progress": {
                "step": done,
                "batches": done,
                "groups": groups,
                "leaves": done * 64,
                "unscorable": 3,
                "mean_reward": 0.74,
                "sampled_tokens": done * 724,
                "saved_tokens": done * 4560,
                "unused_tokens": 120,
                "evaluations": self.under_way if name == LIVE else [],
                "set_aside": [],
            },
            "recipe": {
                "model": "SmolLM2-135M",
                "task": {
                    "name": "arithmetic",
                    "rows": 512,
                    "note": docs.HOSTILE[0] if hostile else None,
                },
                "generate": {"policy": "iid", "rollouts": 8},
                "optimise": {"advantage": "grpo", "learning_rate": 0.0003, "betas": [0.9, 0.95]},
                "budget": {"steps": 40},
            },
            "members": [
                member | {"seen": docs.STARTED},
                *(member | more | {"seen": docs.STARTED} for more in self.more_members),
            ],
            "left_s": 196.0 if name == LIVE else None,
            "saved_share": 0.86,
        }

    def page_of_trees(self, query: dict[str, str]) -> docs.Document:
        """Return a page of a run's 100,000 trees."""
        if query.get("row") == docs.ROW and query.get("purpose") == "all":
            return {
                "trees": [self.summarised(t) for t in ("small", "other", "second")],
                "next": None,
            }
        at, limit = int(query.get("after", 0)), int(query.get("limit", 50))
        found: list[docs.Document] = []
        while at < TREES and len(found) < limit:
            one = docs.summary(at, TREES)
            known = one | {"step": docs.trained_step(at, TREES)}
            at += 1
            wanted = query.get("purpose", "train").upper()
            if wanted not in ("ALL", one["purpose"]):
                continue
            names = ("state", "step", "policy_step", "row")
            if all(str(known[k]) == query[k] for k in names if query.get(k)):
                found.append(one)
        return {"trees": found, "next": str(at) if at < TREES else None}

    def summarised(self, name: str) -> docs.Document:
        """Return a stored tree in one line."""
        nodes = self.trees[name]["nodes"]
        step = {"small": 7, "other": 2, "second": 39}[name]
        return docs.summary(3, TREES) | {
            "tree_id": name,
            "row": docs.ROW,
            "policy_step": step,
            "leaves": sum(one["leaf"] is not None for one in nodes),
            "mean_reward": self.trees[name]["reward_mean"],
        }

    def doctor(self, name: str) -> docs.Document:
        """Return two findings, one of them with a link that no page may follow."""
        finding = {"rule": "dead-groups", "severity": "warning", "step": 23}
        return {
            "note": None,
            "findings": [
                finding
                | {
                    "sentence": docs.HOSTILE[0]
                    if name == HOSTILE
                    else "Reward fell from 0.86 to 0.41 at step 23.",
                    "remedy": "Look at the trees of that step; lower optimise.learning_rate.",
                    "link": "javascript:alert(9)"
                    if name == HOSTILE
                    else f"/runs/{name}/trees?step=23",
                }
            ],
            "facts": "The trees share 86 % of their tokens, 4,560 of 5,284 a step.",
        }

    def evaluations(self, name: str) -> list[docs.Document]:
        """Return the results of a run."""
        found = docs.evaluations(self.steps[name])
        return [one | {"mean_reward": 0.625} for one in found] if name in self.graded else found

    def health(self, name: str) -> docs.Document:
        """Return the pace and the most urgent finding; a run that is well has none."""
        found = self.doctor(name)["findings"] if name in (RUN, HOSTILE) else []
        return {
            "step_seconds": 7.25 if name == RUN else 83.0,
            "newest_step": docs.STARTED if name in self.silent else docs.now(),
            "finding": found[0] if found else None,
            "findings": 3 * len(found),
        }

    def read(self, path: str, query: dict[str, str]) -> docs.Document | None:
        """Return the document at a path; None without one."""
        parts = path.strip("/").split("/")[1:]
        match parts:
            case ["runs"]:
                names = [] if self.empty else [LIVE, RUN, "second-55667788", HOSTILE]
                return {"runs": [self.run(name) for name in names], "next": None}
            case ["runs", name] if name in self.steps:
                return self.detail(name)
            case ["runs", name, "metrics"] if name in self.steps:
                after = int(query.get("after", 0))
                found = [
                    one for one in docs.steps(self.steps[name], len(name)) if one["step"] > after
                ]
                more = len(found) > METRICS
                found = found[:METRICS]
                return {
                    "more": more,
                    "steps": found,
                    "evaluations": self.evaluations(name),
                }
            case ["runs", name, "doctor"] if name in self.steps:
                return self.doctor(name)
            case ["runs", name, "health"] if name in self.steps:
                return self.health(name)
            case ["runs", name, "trees"] if name in self.steps:
                return {"trees": [], "next": None} if self.empty else self.page_of_trees(query)
            case ["trees", name]:
                return self.trees.get(name) or (
                    docs.tree(name, docs.grown(8, int(name, 16)))
                    if re.fullmatch("[0-9a-f]{16}", name)
                    else None
                )
            case ["trees", name, "segments", wanted]:
                nodes = (self.read(f"/api/trees/{name}", {}) or {"nodes": []})["nodes"]
                return next(
                    (docs.segment(one, name) for one in nodes if one["segment"] == wanted), None
                )
            case ["system"]:
                queue = {
                    "stream": "lineage",
                    "consumer": "treestore",
                    "waiting": 12,
                    "unacknowledged": 3,
                }
                return {
                    "processes": docs.processes(NAMES, self.killed, self.back),
                    "queues": [queue],
                    "store": {"trees": TREES, "segments": 812_345, "bytes": 734_003_200},
                    "dead": self.letters,
                    "missing": [],
                }
            case ["dead"]:
                return {"letters": [self.letter(i) for i in range(self.letters)], "next": None}
        return None

    def letter(self, i: int) -> docs.Document:
        """Return a dead letter."""
        return {
            "id": f"letter-{i}",
            "stream": "lineage",
            "subject": "lineage.quickstart-982fd965.segment",
            "service": "treestore",
            "reason": docs.HOSTILE[i] if i < 2 else "PARENT_REFUSED",
            "when": docs.STARTED,
            "bytes": 1834,
            "replayed": False,
        }
