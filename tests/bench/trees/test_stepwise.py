"""Independent samples in steps: the paths of `iid`, and states in which paths meet."""

import numpy as np

from banyan.segment import Finish, Kind, Segment
from banyan.tree import Tree
from bench.trees import stepwise


def _policy(parent: Segment, ordinal: int, text: str, finish: Finish) -> Segment:
    tokens = np.arange(len(text), dtype=np.int32)
    logprobs = np.zeros(len(text), np.float32)
    return Segment(
        b"t", parent.id, len(parent), ordinal, Kind.POLICY, tokens, logprobs, policy=b"p",
        finish=finish, text=text,
    )  # fmt: skip


def test_paths_meet_in_the_number_of_an_operation_and_the_digit_before_it() -> None:
    root = Segment(b"t", b"", 0, 0, Kind.PROMPT, np.arange(4, dtype=np.int32))
    texts = [("7a+4=1", "1b-9=2"), ("7a+4=3", "3b-9=4"), ("7a+5=1", "1b-8=3")]
    tree, states = Tree(b"t", [root]), []
    for ordinal, (first, second) in enumerate(texts):
        above = _policy(root, ordinal, first, Finish.LENGTH)
        below = _policy(above, 0, second, Finish.STOP)
        tree.add(above)
        tree.add(below)
        facts = stepwise.states(tree)
        states.append([facts.of_segment(segment.id, "state") for segment in (above, below)])
    assert states == [["0 ", "1 1"], ["0 ", "1 3"], ["0 ", "1 1"]]
