"""Answers of environments in a simulation: computed here, and proven to nobody."""

from collections.abc import Mapping

from banyan import registry
from banyan.environments.observed import observed
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.recipe import Environment
from banyan.segment import Kind
from banyan.tree import Tree
from services.rollout.engines.turns import Turns
from services.rollout.growth.segments import ToolAnswer
from services.rollout.growth.step import Call


class SimulatedEnvironment:
    """The environment of a simulated tree.

    part: the recipe's environment.
    marks: settings of it that the simulation's script needs.

    Raises InvalidInput for one that runs code, which only a verifier does.
    """

    def __init__(self, part: Environment, marks: Mapping[str, str]) -> None:
        self._settings = {**part.settings, **marks}
        self._environment = registry.environment(part.name, self._settings, part.hosting)
        if not hasattr(self._environment, "step"):
            raise InvalidInput(
                f"environment {part.name} runs code, for which a simulation has no jail;"
                " simulate with --set 'environment={name: calculator}', whose calls are answered"
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
        observation = observed(self._environment, self._settings, call.action, state, said)
        return ToolAnswer(Receipt(observation, b"", call.text), said.text)
