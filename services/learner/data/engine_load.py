"""Occupancy of the rollout nodes' engines, as a metric of a step."""

from collections.abc import Mapping

Loads = Mapping[str, tuple[int, int]]
"""Of each node: segments that its engine decoded, and slots that it had for them, both summed over
the steps of the model since the node started.
"""


class EngineLoad:
    """The loads of a run's engines at the last step, from which the next one's follow."""

    def __init__(self) -> None:
        self._before: Loads | None = None

    def since(self, loads: Loads) -> dict[str, float]:
        """Return the share of slots that decoded since the last call, as `engine_occupancy`.

        It is empty at the first call, and where no engine has reported a step since the last.
        """
        before, self._before = self._before, dict(loads)
        if before is None:
            return {}
        decoded = slots = 0
        for node, load in loads.items():
            old = before.get(node, (0, 0))
            # A node that was started again counts from 0.
            first = (0, 0) if load[1] < old[1] or load[0] < old[0] else old
            decoded, slots = decoded + load[0] - first[0], slots + load[1] - first[1]
        # A vLLM engine counts tokens when their segment ends, so a step may have those of another.
        return {"engine_occupancy": min(1.0, decoded / slots)} if slots > 0 else {}
