"""Whole trees as documents: read, viewed, and credited by the recipe's estimator."""

from collections.abc import Mapping, Sequence

from banyan.credit.estimate import ScoredTree
from banyan.errors import BanyanError
from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.node_advantages import advantages_of, compared, group_ids
from banyan.wire.scored_tree import scored_tree
from services.gateway.page.documents import segments, trees
from services.gateway.page.documents.token_texts import TokenTexts
from services.gateway.page.heavy import Heavy
from services.gateway.page.http.errors import HttpError, encoded
from services.gateway.page.reads import Reads

_WORDS = 500  # characters of an estimator's error
_MOST_SEGMENTS = 50_000  # of a group whose advantages are computed for a page
_LARGE = (
    f"the group has over {_MOST_SEGMENTS} segments: `banyan trees show` computes its advantages"
)
Advantages = tuple[Mapping[int, float], str | None]


class TreeReads:
    """Documents of whole trees and of their segments, kept until the tree changes."""

    def __init__(self, reads: Reads, heavy: Heavy) -> None:
        self._reads, self._heavy = reads, heavy

    async def summary(self, tree_id: bytes) -> ts.TreeSummary:
        """Return a tree in one line, by its id or a unique beginning. Raise NotFound."""
        if len(tree_id) < 32:
            tree_id = (await self._reads.tree(tree_id)).spec.tree_id
        return await self._reads.summary(tree_id)

    async def document(self, summary: ts.TreeSummary) -> bytes:
        """Return a tree's document as JSON."""
        # Its advantages follow from the whole group, which may still change.
        group = await self._group(summary)
        key = ("tree", summary.tree_id.hex(), *map(trees.revision, group))
        return await self._heavy.kept(key, lambda: self._make(summary, group))

    async def segment(self, summary: ts.TreeSummary, segment_id: bytes) -> bytes:
        """Return the document of a segment as JSON. Raise NotFound."""
        tree = await self._tree(summary)
        texts = await self._reads.texts(summary.run_id)
        known = any(s.id.startswith(segment_id) for s in tree.segments)
        consumers = await self._reads.consumers(segment_id) if known else []
        return await self._heavy.run(
            lambda: encoded(segments.segment(tree, segment_id, consumers, texts))
        )

    async def _tree(self, summary: ts.TreeSummary) -> tree_pb2.Tree:
        """Return a whole tree, from memory while it does not change: clicks follow each other."""
        key = ("message", summary.tree_id.hex(), trees.revision(summary))
        return await self._heavy.kept(key, lambda: self._reads.tree(summary.tree_id))

    async def _group(self, summary: ts.TreeSummary) -> list[ts.TreeSummary]:
        if summary.state not in trees.OVER:
            return [summary]
        filters = ts.TreeFilter(run_id=summary.run_id, group_id=summary.group_id, limit=1000)
        return await self._reads.summaries(filters)

    async def _make(self, summary: ts.TreeSummary, group: Sequence[ts.TreeSummary]) -> bytes:
        tree = await self._tree(summary)
        recipe_json, members, note = "", [tree], _note(summary, group)
        if summary.state in trees.OVER and note is not _LARGE:
            recipe_json = (await self._reads.run(summary.run_id)).run.recipe_json
            others = [s.tree_id for s in group if s.tree_id != summary.tree_id and s.segments]
            members += await self._reads.trees(others)
        texts = await self._reads.texts(summary.run_id)
        revision = trees.revision(summary)
        return await self._heavy.run(
            lambda: _document(tree, members, recipe_json, note=note, texts=texts, revision=revision)
        )


def _note(summary: ts.TreeSummary, group: Sequence[ts.TreeSummary]) -> str | None:
    """Return why a tree's advantages are missing or provisional; None if they are final."""
    if summary.state not in trees.OVER:
        return "the tree still grows or waits for scores: its advantages follow once it is closed"
    if sum(other.segments for other in group) > _MOST_SEGMENTS:
        return _LARGE
    growing = sum(other.state not in trees.OVER for other in group)
    if growing:
        return f"provisional: {growing} trees of its group still grow or wait for scores"
    return None


def _document(
    tree: tree_pb2.Tree,
    members: list[tree_pb2.Tree],
    recipe_json: str,
    *,
    note: str | None,
    texts: TokenTexts | None,
    revision: str,
) -> bytes:
    """Return a tree's document; heavy for a tree of many leaves, or of a large group."""
    try:
        members = compared(tree, members)
        mine = next(i for i, member in enumerate(members) if member is tree)
        scored = [scored_tree(member) for member in members]
        advantages, note = _advantages(tree.spec.group_id, scored, mine, recipe_json, note)
        return encoded(
            trees.whole(
                tree,
                scored[mine],
                group_ids(tree.spec),
                advantages=advantages,
                advantage_note=note,
                texts=texts,
                revision=revision,
            )
        )
    except BanyanError as error:
        name = tree.spec.tree_id.hex()
        raise HttpError(500, error.reason, f"tree {name} cannot be shown: {error}") from None


def _advantages(
    group_id: str, scored: Sequence[ScoredTree], mine: int, recipe_json: str, note: str | None
) -> Advantages:
    if not recipe_json:
        return {}, note
    try:
        recipe = Recipe.model_validate_json(recipe_json, strict=False)
        return advantages_of(group_id, scored, mine, recipe), note
    except Exception as error:  # foreign estimators raise anything; the tree is still useful
        words = str(error).splitlines() or [""]
        return {}, f"no advantages: {type(error).__name__}: {words[0][:_WORDS]}"
