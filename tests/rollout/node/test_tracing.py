"""Counts of the tokens of segments: what the engine has not seen is none of its work."""

from types import SimpleNamespace
from typing import Any

import pytest

from banyan.segment import Kind, Segment
from banyan.tree import Tree
from services.chassis.process import telemetry
from services.rollout.node.tracing import Spans
from tests.treestore.forge import Forge


def test_tokens_are_counted_by_what_the_engine_did(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = dict[str, int]()

    def count(name: str, n: int) -> None:
        counts[name] = counts.get(name, 0) + n

    monkeypatch.setattr(telemetry, "count", count)
    started = list[dict[str, Any]]()

    def start(*_: object, **named: Any) -> Any:
        started.append(named)
        return SimpleNamespace(end=lambda: None, say=lambda **contents: None)

    monkeypatch.setattr(telemetry, "start", start)
    forge = Forge()
    root = forge.root(forge.spec())
    said = forge.child(root)
    answer: Any = SimpleNamespace(
        parent=said.id, kind=Kind.TOOL, fork=len(said), cached_tokens=0, id=b"a", ordinal=0, text=""
    )
    spec = forge.spec()
    tree = Tree(spec.tree_id, [root, said])
    grower: Any = SimpleNamespace(tree=tree, key=lambda branch: branch)
    owner: Any = SimpleNamespace(
        grower=grower, traceparent="", spec=SimpleNamespace(tree_id=b"t" * 32)
    )

    class Sized(SimpleNamespace):
        def __len__(self) -> int:
            return 3

    segments: list[Segment | Any] = [root, said, Sized(**vars(answer), policy_step=0)]
    Spans().ended(owner, segments)
    assert counts == {
        "banyan.tokens.sampled": len(said),
        "banyan.tokens.cached": said.cached_tokens,
        "banyan.tokens.prefilled": len(root) - said.cached_tokens,
    }
    inputs = [span.get("gen_ai.usage.input_tokens") for span in started]
    assert inputs == [0, len(root), None], "a tool's answer has no usage"
    actions = [span.get("banyan_action") for span in started]
    assert actions == [None, None, said.id.hex()], "as `verifier.act` names it"
