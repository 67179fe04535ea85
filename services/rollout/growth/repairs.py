"""Where in a tree a scorer's repair belongs, and in which tokens: scorers speak of characters, plans of tokens. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence

from banyan.plugins import Repaired
from banyan.segment import IntTokens
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire
from services.rollout.engines.port import Tokenizer


def of_scores(
    scores: Sequence[tree_pb2.ScoredLeaf], wanted: Container[Leaf], tree: Tree, tokenizer: Tokenizer
) -> dict[Leaf, Repaired]:
    """The repairs of `wanted` leaves, of the first scorer by name that knows one."""
    found: dict[Leaf, Repaired] = {}
    for scored in sorted(scores, key=lambda s: (s.scorer, s.scorer_version)):
        leaf = leaf_from_wire(scored.leaf)
        if leaf in wanted and leaf not in found and scored.score.HasField("repair"):
            one = placed(tree, tokenizer, leaf, scored.score.repair)
            found |= {} if one is None else {leaf: one}
    return found


def placed(
    tree: Tree, tokenizer: Tokenizer, leaf: Leaf, repair: tree_pb2.Repair
) -> Repaired | None:
    """A repair in tokens; None where the completion is not as long as it says, or nothing is put in.

    As many whole tokens are kept as lie in the characters that are right; what is left of these is put in again.
    """
    assert tree.root is not None
    tokens_T = tree.prefix_tokens(leaf.segment, leaf.end)[len(tree.root) :]
    text = tokenizer.decode(tokens_T)
    if repair.keep > len(text):
        return None
    kept = _kept(tokens_T, text, repair.keep, tokenizer)
    said = text[len(tokenizer.decode(tokens_T[:kept])) : repair.keep] + repair.text
    forced = tuple(tokenizer.encode(said).tolist())
    return (
        Repaired(_place(tree, leaf, len(tree.root) + kept), forced, repair.step, repair.steps)
        if forced
        else None
    )


def _kept(tokens_T: IntTokens, text: str, keep: int, tokenizer: Tokenizer) -> int:
    """The fewest tokens that say as much of the text's first `keep` characters as whole tokens can."""

    def said(count: int) -> int:
        return len(tokenizer.decode(tokens_T[:count]))

    counts = range(len(tokens_T) + 1)
    kept = bisect_right(counts, keep, key=said) - 1
    while kept and not text.startswith(
        tokenizer.decode(tokens_T[:kept])
    ):  # ends within a character of several tokens
        kept -= 1
    return bisect_left(counts, said(kept), hi=kept, key=said)


def _place(tree: Tree, leaf: Leaf, tokens: int) -> Leaf:
    """The place behind so many tokens of a path."""
    for segment, end in tree.pieces(leaf.segment, leaf.end):
        if tokens <= end:
            return Leaf(segment.id, tokens)
        tokens -= end
    raise AssertionError(f"a path to {leaf.segment.hex()[:12]} is shorter than what is kept of it")
