"""Answers of environments in a simulation: computed here, and proven to nobody."""

from collections.abc import Mapping

from banyan import registry
from banyan.digest import blake
from banyan.environments.observation import Observation
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.recipe import Environment
from banyan.segment import Kind
from banyan.tree import Tree
from services.rollout.growth.segments import ToolAnswer, Turns
from services.rollout.growth.step import Call

_NOBODY = blake(b"simulated")


class SimulatedEnvironment:
    """The environment of a simulated tree.

    part: the recipe's environment.
    marks: settings of it that the simulation's script needs.

    Raises InvalidInput for one that runs code, which only a verifier does.
    """

    def __init__(self, part: Environment, marks: Mapping[str, str]) -> None:
        self._environment = registry.environment(part.name, {**part.settings, **marks})
        if not hasattr(self._environment, "step"):
            raise InvalidInput(
                f"environment {part.name} runs code, for which a simulation has no jail; leave"
                " environment out of it, or take calculator"
            )
        self.turns = Turns(part.turns, self._environment.end)
        self._states: dict[bytes, bytes] = {}

    def answer(self, tree: Tree, call: Call) -> ToolAnswer:
        """Return the answer to an action of a tree."""
        path = tree.lineage(call.action)
        before = next((s.parent for s in reversed(path) if s.kind is Kind.TOOL), b"")
        state = self._states[before] if before else self._environment.reset({}, 0)
        said = self._environment.step(state, call.text)
        self._states[call.action] = said.state
        text = blake(said.text.encode())
        observation = Observation(
            environment=self._environment.name,
            version=self._environment.version,
            settings=_NOBODY,
            action=call.action,
            answer=text,
            shown=text,
            outcome=said.outcome,
            reward=said.reward,
            done=said.done,
            anchor=said.anchor,
            before=blake(state),
            after=blake(said.state),
            effect=said.effect,
        )
        return ToolAnswer(Receipt(observation, b"", call.text), said.text)
