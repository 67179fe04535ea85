"""Repairs of leaves in tokens: scorers speak of characters, plans of tokens. Pure functions."""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable

from banyan.plugins import Repaired
from banyan.segment import IntTokens
from banyan.tree import Leaf, Tree
from services.rollout.engines.port import Tokenizer
from services.rollout.growth.scores import LeafScore, TextRepair


def of_scores(
    scores: Iterable[LeafScore], wanted: Container[Leaf], tree: Tree, tokenizer: Tokenizer
) -> dict[Leaf, Repaired]:
    """Return the repairs of `wanted` leaves, each from the first scorer by name that knows one."""
    repairs: dict[Leaf, Repaired] = {}
    for score in sorted(scores, key=lambda score: (score.scorer, score.version)):
        leaf = score.leaf
        if leaf in wanted and leaf not in repairs and score.repair is not None:
            repaired = in_tokens(tree, tokenizer, leaf, score.repair)
            if repaired is not None:
                repairs[leaf] = repaired
    return repairs


def in_tokens(tree: Tree, tokenizer: Tokenizer, leaf: Leaf, repair: TextRepair) -> Repaired | None:
    """Return a repair in tokens.

    As many whole tokens are kept as lie within the characters that are right; the rest of these
    characters is put in again. The result is None where the completion is shorter than the repair
    says, or where nothing is put in.
    """
    assert tree.root is not None
    prompt_tokens = len(tree.root)
    tokens_T = tree.prefix_tokens(leaf.segment, leaf.end)[prompt_tokens:]
    text = tokenizer.decode(tokens_T)
    if repair.keep > len(text):
        return None
    kept = _kept(tokens_T, text, repair.keep, tokenizer)
    rest = text[len(tokenizer.decode(tokens_T[:kept])) : repair.keep]
    forced = tuple(tokenizer.encode(rest + repair.text).tolist())
    if not forced:
        return None
    place = _place(tree, leaf, prompt_tokens + kept)
    return Repaired(place, forced, step=repair.step, steps=repair.steps)


def _kept(tokens_T: IntTokens, text: str, keep: int, tokenizer: Tokenizer) -> int:
    """Return the fewest tokens that decode to as many of the first `keep` characters of `text` as
    whole tokens can."""

    def length(count: int) -> int:
        return len(tokenizer.decode(tokens_T[:count]))

    counts = range(len(tokens_T) + 1)
    kept = bisect_right(counts, keep, key=length) - 1
    # A prefix that ends within a character of several tokens is no prefix of the text.
    while kept and not text.startswith(tokenizer.decode(tokens_T[:kept])):
        kept -= 1
    return bisect_left(counts, length(kept), hi=kept, key=length)


def _place(tree: Tree, leaf: Leaf, tokens: int) -> Leaf:
    """Return the place after the first `tokens` tokens of a path."""
    for segment, end in tree.pieces(leaf.segment, leaf.end):
        if tokens <= end:
            return Leaf(segment.id, tokens)
        tokens -= end
    raise AssertionError(f"a path to {leaf.segment.hex()[:12]} is shorter than what is kept of it")
