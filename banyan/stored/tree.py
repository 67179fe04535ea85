"""A stored tree: its segments, leaves and credit, as text and as a picture."""

import datetime
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from banyan.errors import BanyanError, InvalidInput, NotFound
from banyan.plugins import Estimator
from banyan.recipe import Recipe
from banyan.render import tree_picture, tree_svg, tree_text
from banyan.stored.plain import name_of, when
from banyan.stored.segment import Leaf, Score, Segment
from banyan.text.printable import printable
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from banyan.wire.node_advantages import group_ids, node_advantages, view_of
from banyan.wire.segments import leaves_from_wire, rewards_from_wire
from banyan.wire.weights import weights_of

if TYPE_CHECKING:
    from banyan.stored.store import Store

_WIDTH = 100_000  # a text for a file or a notebook is not folded


@dataclass(frozen=True, slots=True)
class NodeCredit:
    """Credit of a node: a maximal run of tokens between forks and ends.

    node: index of the node in depth-first order
    segment, start, stop: its tokens, start to stop (excluded) of a segment
    text: text of the segment
    paths: scored leaves at or below the node
    value: mean reward of these leaves
    advantage: mean advantage of the paths through the node
    """

    node: int
    segment: str
    start: int
    stop: int
    text: str
    paths: int
    value: float
    advantage: float


class Tree:
    """A tree as it was when it was read. It reads its group and its recipe when they are needed.

    Its segments are in depth-first order, parents first, and its leaves from left to right.
    """

    def __init__(self, message: tree_pb2.Tree, store: "Store") -> None:
        self._message, self._store = message, store

    def __repr__(self) -> str:
        counts = f"{len(self._message.segments)} segments, {len(self._message.leaves)} leaves"
        return f"<Tree {self.tree_id[:16]} {self.state}, {counts}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.tree_id == other.tree_id

    def __hash__(self) -> int:
        return hash(self.tree_id)

    # -- facts --

    @property
    def tree_id(self) -> str:
        """Id in hex."""
        return self._message.spec.tree_id.hex()

    @property
    def run_id(self) -> str:
        """Run that it belongs to."""
        return self._message.spec.run_id

    @property
    def group_id(self) -> str:
        """Group of the trees that are compared with it."""
        return self._message.spec.group_id

    @property
    def index(self) -> int:
        """Position in its group, from 0."""
        return self._message.spec.index

    @property
    def state(self) -> str:
        """GROWING, SCORING, CLOSED, CONSUMED or DROPPED."""
        return name_of(tree_pb2.TreeState, self._message.state)

    @property
    def reason(self) -> str | None:
        """Reason of the drop; None if it was not dropped."""
        return self._message.reason or None

    @property
    def purpose(self) -> str:
        """TRAIN or EVAL."""
        return name_of(tree_pb2.TreePurpose, self._message.spec.purpose)

    @property
    def label(self) -> str | None:
        """Evaluation that it belongs to; None for training."""
        return self._message.spec.label or None

    @property
    def opened(self) -> datetime.datetime | None:
        """Time when it was opened, in UTC."""
        return when(self._message.opened_unix_ms)

    @property
    def closed(self) -> datetime.datetime | None:
        """Time when it was closed or dropped, in UTC; None before."""
        return when(self._message.closed_unix_ms)

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """Row of the task, as scorers get it."""
        row: dict[str, Any] = json.loads(self._message.spec.row_json or "{}")
        return row

    @cached_property
    def messages(self) -> tuple[Mapping[str, str], ...]:
        """Prompt as messages with role and content."""
        return tuple(json.loads(self._message.spec.messages_json or "[]"))

    @cached_property
    def generate(self) -> Mapping[str, Any]:
        """Tree policy that grew it: `name`, and its settings."""
        generate: dict[str, Any] = json.loads(self._message.spec.generate_json or "{}")
        return generate

    # -- content --

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Segments, parents first."""
        return tuple(map(Segment.of, self._message.segments))

    @cached_property
    def scores(self) -> tuple[Score, ...]:
        """Scores of the run's own scorers, of leaves and of places inside paths."""
        return tuple(map(Score.of, self._message.scores))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Leaves with rewards and scores."""
        spec = self._message.spec
        weights, scorers = weights_of(spec), len(spec.scorers)
        rewards = rewards_from_wire(self._message.scores, scorers, weights)
        scores: dict[tuple[str, int], list[Score]] = {}
        for score in self.scores:
            scores.setdefault((score.segment, score.end), []).append(score)
        return tuple(
            Leaf(
                segment=place.segment.hex(),
                end=place.end,
                reward=rewards.get(place),
                scores=tuple(scores.get((place.segment.hex(), place.end), ())),
            )
            for place in leaves_from_wire(self._message)
        )

    def path(self, leaf: Leaf) -> tuple[Segment, ...]:
        """Return the segments from the prompt to a leaf. Raises NotFound for another tree's."""
        by_id = {segment.id: segment for segment in self.segments}
        path: list[Segment] = []
        at: str | None = leaf.segment
        while at:
            if at not in by_id:
                raise NotFound(f"segment {at[:16]} is not in tree {self.tree_id[:16]}")
            path.append(by_id[at])
            at = by_id[at].parent
        return tuple(reversed(path))

    @cached_property
    def view(self) -> TreeView:
        """Nodes of the tree, the unit of credit, as estimators see them."""
        return view_of(self._message)

    # -- credit --

    def advantages(self, estimator: str | Estimator = "", **settings: Any) -> list[NodeCredit]:
        """Return the credit of each node that a scored path passes, in depth-first order.

        The whole group of the tree is read, since an estimator compares its trees. Nothing is
        trained, and no KL is counted.

        estimator: registered name or module:attribute; empty for the run's own, with its settings;
            or an estimator, such as one of `methods.advantages` or of a notebook's cell
        settings: of an estimator that is named

        Raises InvalidInput if the estimator is unknown, or cannot credit this group.
        """
        values = self._values(estimator, settings)
        credited = []
        for node in self.view.nodes:
            if node.index in values:
                credited.append(
                    NodeCredit(
                        node=node.index,
                        segment=node.segment.id.hex(),
                        start=node.start,
                        stop=node.stop,
                        text=node.segment.text,
                        paths=node.paths,
                        value=node.value,
                        advantage=values[node.index],
                    )
                )
        return credited

    def _values(self, estimator: str | Estimator, settings: Mapping[str, Any]) -> dict[int, float]:
        recipe = self._recipe
        if not isinstance(estimator, str):
            if settings:
                raise InvalidInput(
                    f"settings {', '.join(settings)} belong to an estimator that is named; this one"
                    f" is made already: {estimator!r:.200}"
                )
            if isinstance(estimator, type) or not callable(getattr(estimator, "estimate", None)):
                raise InvalidInput(
                    f"{estimator!r:.200} is no estimator: name one, or pass an object with the"
                    " method `estimate(group)` (docs/plugins.md)"
                )
            return node_advantages(self._message, recipe, self._group, estimator)
        if settings and not estimator:
            raise InvalidInput(
                f"settings {', '.join(settings)} belong to an estimator; name it, as in"
                f" advantages(estimator={recipe.optimise.advantage!r}, …)"
            )
        if estimator:
            changed = {"advantage": estimator, "advantage_settings": dict(settings)}
            optimise = recipe.optimise.model_copy(update=changed)
            recipe = recipe.model_copy(update={"optimise": optimise})
        return node_advantages(self._message, recipe, self._group)

    @cached_property
    def _recipe(self) -> Recipe:
        return self._store.run(self.run_id).recipe

    @cached_property
    def _group(self) -> list[tree_pb2.Tree]:
        ids = group_ids(self._message.spec)
        if len(ids) == 1:
            return [self._message]
        return list(self._store.client.whole_trees(self.run_id, ids))

    # -- for people --

    def render(
        self,
        *,
        estimator: str | Estimator = "",
        longest: int | None = 60,
        colour: bool = False,
    ) -> str:
        """Return the tree as lines of text: each branch with reward and advantage.

        estimator: as for `advantages`; with one it raises InvalidInput where that does
        longest: last characters of a text that are shown; segments without a fork between them are
            one line then. None for whole texts and a line a segment.
        colour: with the escape sequences of a terminal
        """
        from rich.console import Console

        values, problem = self._values_or_problem(estimator)
        drawn = tree_text.render(self._message, values, longest=longest)
        file = io.StringIO()
        console = Console(
            file=file,
            width=_WIDTH,
            highlight=False,
            emoji=False,
            force_terminal=colour,
            force_jupyter=False,  # it would show the text instead of writing it
            color_system="standard" if colour else None,
        )
        console.print(drawn)
        if problem:
            console.print(f"no advantages: {problem}", markup=False)
        text = file.getvalue()
        return text if colour else printable(text)

    def svg(self, *, estimator: str | Estimator = "") -> str:
        """Return the tree as an SVG picture: a box a branch, coloured by its advantage.

        estimator: as for `advantages`; with one it raises InvalidInput where that does

        Raises InvalidInput for a tree of more than 256 leaves.
        """
        values, _ = self._values_or_problem(estimator)
        lines = tree_picture.lines(self.view, values)
        credit = f", credit by {_name(estimator)}" if estimator else ""
        return tree_svg.drawn(lines, f"Tree {self.tree_id[:16]} of {self.run_id}{credit}")

    def _repr_html_(self) -> str:
        """Return the picture for a notebook, or the text where the tree is too large for one."""
        try:
            return f'<div style="overflow-x: auto">{self.svg()}</div>'
        except InvalidInput:
            return f"<pre>{escape(self.render())}</pre>"

    def _values_or_problem(self, estimator: str | Estimator) -> tuple[dict[int, float], str]:
        """Return the advantages of an estimator; of the run's own or none, and the reason."""
        if estimator:
            return self._values(estimator, {}), ""
        try:
            return self._values("", {}), ""
        except BanyanError as error:
            return {}, str(error)


def _name(estimator: str | Estimator) -> str:
    return estimator if isinstance(estimator, str) else type(estimator).__name__
