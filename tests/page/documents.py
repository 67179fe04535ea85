"""Documents of the HTTP API as the page gets them: plain, large, growing and hostile ones."""

import datetime
import math
import random
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\u202etxt.exe\u202c and \u2066isolated\u2069",
    "nul\x00 bell\x07 escape\x1b[31m",
    "W" * 400,
    "<a href='javascript:alert(3)'>x</a><svg/onload=alert(4)>",
    "\u200b\ufeffzero width, \ud83c\udf33 and a lone half",
)
ROW = f"{3:064x}"
STARTED = "2026-03-14T09:26:53+00:00"
TEXTS = (
    "9 + 5 = ",
    "14\n14 +",
    " 6 = 20",
    "First, add the two smaller numbers.",
    "Let x be the price of one pen.",
    "So the answer is 42.",
    "We know that 3x + 2 = 17, hence",
    "x = 5.\nCheck: 3 · 5 + 2 = 17.",
    "Try the other order instead:",
    "<answer>20</answer>",
)
WHYS = (
    "Forked where the entropy was 1.84 nat, above 1.2",
    "One of the 8 rollouts asked for",
    "Forked at the first token of a line",
)


def now() -> str:
    """Return the time of this moment, as the API writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def node(i: int, parent: int, kind: str, text: str, **more: Any) -> Document:
    """Return a node with its defaults."""
    return {
        "i": i,
        "parent": parent,
        "segment": f"{i:064x}",
        "start": 0,
        "stop": 1000,
        "kind": kind,
        "finish": "BOUNDARY",
        "text": text,
        "tokens": 12,
        "paths": 1,
        "value": None,
        "advantage": None,
        "entropy": None,
        "logprob": None,
        "policy_step": 7,
        "producer": "rollout-0",
        "text_of": "node",
        "leaf": None,
        "own_reward": None,
        "why": None,
    } | more


def leaf(reward: float | None, hostile: bool = False) -> Document:
    """Return a leaf with a score of two parts."""
    reason = HOSTILE[0] if hostile else "the last number is 20, as it should be"
    scored = reward is not None
    return {
        "reward": reward,
        "scores": [
            {
                "scorer": "number",
                "version": "1",
                "state": "SCORED" if scored else "UNSCORABLE",
                "value": reward,
                "parts": {"right": reward, "format": 1.0} if scored else {},
                "reason": reason if scored else "TIMEOUT: the sandbox took longer than 10 s",
                "seconds": 0.0034 if scored else 10.02,
            }
        ],
    }


def grown(leaves: int, seed: int = 0, *, hostile: bool = False, fan: int = 4) -> list[Document]:
    """Return the nodes of a tree with this number of leaves, tool calls among them."""
    draw = random.Random(seed)
    words = HOSTILE if hostile else TEXTS
    nodes = [node(0, -1, "CONTEXT", words[0] if hostile else "4 + 8 + 7", tokens=24)]
    open_ends = [0]
    while len(open_ends) < leaves:
        at = open_ends.pop(draw.randrange(min(len(open_ends), 12)))
        many = min(draw.randint(2, fan), leaves - len(open_ends))
        acting = not hostile and at and nodes[at]["kind"] == "POLICY" and draw.random() < 0.12
        if acting or hostile:
            nodes[at]["finish"] = "TOOL_CALL"
            nodes[at]["text"] = (
                words[1] if hostile else '<tool>{"name": "add", "arguments": [9, 5]}'
            )
            answer = node(len(nodes), at, "TOOL", words[2] if hostile else "14", policy_step=None)
            nodes.append(answer)
            at = answer["i"]
        for _ in range(max(many, 1)):
            text = draw.choice(words)
            child = node(len(nodes), at, "POLICY", text, entropy=draw.random() * 2)
            child |= {"logprob": -draw.random() * 2, "policy_step": 6 + draw.randrange(2)}
            if draw.random() < 0.3:
                child["why"] = HOSTILE[5] if hostile else draw.choice(WHYS)
            nodes.append(child)
            open_ends.append(child["i"])
    return credited(nodes, draw, hostile)


def credited(nodes: list[Document], draw: random.Random, hostile: bool = False) -> list[Document]:
    """Give leaves rewards, and all nodes paths, values and advantages."""
    children: dict[int, list[int]] = {}
    for one in nodes:
        children.setdefault(one["parent"], []).append(one["i"])
    below: dict[int, list[float]] = {}
    for one in reversed(nodes):
        i = one["i"]
        if i not in children:
            reward = (
                None if draw.random() < 0.03 else float(draw.random() < 0.2 + (i * 7 % 10) / 14)
            )
            one["leaf"], one["finish"] = leaf(reward, hostile), "STOP"
            if draw.random() < 0.05:
                one["finish"], one["why"] = "PRUNED", "Cut: below the best three of its step"
            below[i] = [] if reward is None else [reward]
            one["paths"] = 1
        else:
            below[i] = [reward for child in children[i] for reward in below[child]]
            one["paths"] = sum(nodes[child]["paths"] for child in children[i])
        one["value"] = sum(below[i]) / len(below[i]) if below[i] else None
    for one in nodes[1:]:
        up = nodes[one["parent"]]["value"]
        if one["kind"] != "TOOL" and None not in (up, one["value"]):
            one["advantage"] = one["value"] - up
    return nodes


def tree(tree_id: str, nodes: list[Document], **more: Any) -> Document:
    """Return a tree of these nodes."""
    rewards = [n["leaf"]["reward"] for n in nodes if n["leaf"] and n["leaf"]["reward"] is not None]
    return {
        "tree_id": tree_id,
        "run_id": "quickstart-982fd965",
        "group_id": "g-12",
        "index": 0,
        "group": [tree_id],
        "row": ROW,
        "label": None,
        "purpose": "TRAIN",
        "state": "CONSUMED",
        "reason": None,
        "opened": STARTED,
        "closed": STARTED,
        "policy": "iid",
        "advantage_note": None,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "messages": [
            {"role": "system", "content": "Add in two steps."},
            {"role": "user", "content": "4 + 8 + 7"},
        ],
        "scorers": ["number"],
        "nodes": nodes,
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "revision": 1,
    } | more


def segment(one: Document, tree_id: str) -> Document:
    """Return the segment of a node, with its tokens."""
    draw = random.Random(one["i"])
    text, tokens, at = one["text"], [], 0
    while at < len(text):
        width = draw.randint(1, 5)
        piece = text[at : at + width]
        logprob = None if one["kind"] in ("CONTEXT", "TOOL") else -draw.expovariate(0.8)
        entropy = None if logprob is None else draw.random() * 2
        tokens.append(
            {
                "id": draw.randrange(49152),
                "text": piece,
                "logprob": logprob,
                "sampled_logprob": logprob,
                "entropy": entropy,
            }
        )
        at += width
    acted = one["kind"] == "TOOL"
    return {
        "segment": one["segment"],
        "kind": one["kind"],
        "finish": one["finish"],
        "text": text,
        "policy_step": one["policy_step"],
        "producer": one["producer"],
        "tokens": tokens,
        "token_texts": None,
        "scores": [],
        "receipt": {"environment": "calculator", "outcome": "OK", "effect": "NONE"}
        if acted
        else None,
        "plan": None,
        "lineage": [{"batch": 11, "step": 8, "use": "trained on, 12 tokens"}],
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "commands": {
            "lineage": f"banyan lineage {one['segment']}",
            "tree": f"banyan trees show {tree_id}",
        },
    }


def run(run_id: str, state: str = "SUCCEEDED", **more: Any) -> Document:
    """Return a run."""
    return {
        "run_id": run_id,
        "name": run_id.rsplit("-", 1)[0],
        "state": state,
        "cause": None,
        "step": 40,
        "steps": 40,
        "created": STARTED,
        "ended": STARTED if state not in ("TRAINING", "STARTING") else None,
        "seconds": 151.8,
        "model": "SmolLM2-135M",
        "task": "arithmetic",
        "policy": "iid",
        "advantage": "grpo",
        "live": state in ("TRAINING", "STARTING"),
    } | more


def steps(count: int, seed: int = 0) -> Iterator[Document]:
    """Yield the metrics of steps: rewards that rise, with a dip at step 23."""
    draw = random.Random(seed)
    for n in range(1, count + 1):
        reward = 0.95 - 0.65 * math.exp(-n / 12) + draw.gauss(0, 0.04) - (0.4 if n == 23 else 0)
        yield {
            "step": n,
            "reward": min(1.0, max(0.0, reward)),
            "unique_tokens": 900 + draw.randrange(80),
            "path_tokens": 5400 + draw.randrange(400),
            "staleness_mean": draw.random(),
            "staleness_max": 1.0,
            "entropy": 1.6 * math.exp(-n / 30) + 0.2,
            "loss": draw.gauss(0, 0.02),
            "grad_norm": draw.random(),
            "score/number": min(1.0, max(0.0, reward)),
            **({"engine_occupancy": 0.5 + 0.4 * math.sin(n) ** 2} if n > 1 else {}),
            "mismatch_kl": None if n % 9 == 0 else draw.random() * 1e-3,
        }


def evaluations(last: int) -> list[Document]:
    """Return evaluations before, amid and after."""
    found = []
    for label, step, right in (
        ("before-greedy", 0, 0.46),
        ("step-20-greedy", 20, 0.81),
        ("after-greedy", None, 0.944),
    ):
        if (40 if step is None else step) <= last:
            low, high = right - 0.066, min(1.0, right + 0.045)
            found.append(
                {"label": label, "step": step, "accuracy": right, "mean_reward": right}
                | {"n": 215, "wilson_95": [low, high]}
            )
    return found


def summary(index: int, total: int) -> Document:
    """Return the tree at a place of a run's list, newest first."""
    purpose = "EVAL" if index % 10 == 9 else "TRAIN"
    state = "DROPPED" if index % 17 == 16 else "GROWING" if index < 2 else "CONSUMED"
    return {
        "tree_id": f"{index:016x}",
        "state": state,
        "reason": "STALE" if state == "DROPPED" else None,
        "purpose": purpose,
        "label": "before-greedy" if purpose == "EVAL" else None,
        "policy_step": (total - index) * 40 // total,
        "leaves": 8,
        "sampled_tokens": 96 + index % 50,
        "mean_reward": (index * 7 % 9) / 8,
        "opened": STARTED,
        "closed": None if state == "GROWING" else STARTED,
        "group_id": f"g-{index // 4}",
        "row": f"{index % 7:064x}",
    }


def trained_step(index: int, total: int) -> int | None:
    """Return the step that used the tree at a place of a list, which was then 0 to 2 steps old."""
    one = summary(index, total)
    return one["policy_step"] + 1 + index % 3 if one["state"] == "CONSUMED" else None


def processes(names: tuple[str, ...], killed: set[str], back: set[str]) -> list[Document]:
    """Return processes; those in `killed` have ended, those in `back` have been started again."""
    return [
        {
            "name": name,
            "service": name.split("-")[0],
            "run_id": "quickstart-982fd965",
            "pid": None if name in killed else 4000 + i,
            "state": "dead" if name in killed else "starting" if name in back else "ready",
            "since": STARTED,
            "restarts": int(name in killed or name in back),
            "health": "does not serve" if name in killed else "serves",
            "last_words": "killed by signal 9" if name in killed or name in back else None,
        }
        for i, name in enumerate(names)
    ]
