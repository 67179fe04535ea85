"""What joined nodes may say and hear on NATS (PROTOCOL 8). Everything that is not listed is refused by the broker.

Their account imports what any node of any run needs; a node's own permissions narrow that to its run.
"""

from dataclasses import dataclass
from typing import Any

from services.chassis.messaging import subjects

# what a rollout node produces: one subject, one producer (PROTOCOL 4)
PRODUCED = ("segment", "leaf", "grown")


_PULL = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.GROWTH}"
_INFO = f"$JS.API.CONSUMER.INFO.{subjects.GROWTH}"
_ACK = f"$JS.ACK.{subjects.GROWTH}"
_SERVICES = (
    f"{_PULL}.*",
    f"{_INFO}.*",
    f"{_ACK}.>",
    *(subjects.lineage("*", kind) for kind in PRODUCED),
)
_HEARD = subjects.train("*", "policy")


def exports() -> list[dict[str, str]]:
    """What the services' account shows to that of the nodes, as claims of its JWT. A pull is answered by many messages."""
    kinds = {f"{_PULL}.*": {"response_type": "Stream"}}
    services = [{"name": s, "subject": s, "type": "service", **kinds.get(s, {})} for s in _SERVICES]
    return [*services, {"name": _HEARD, "subject": _HEARD, "type": "stream"}]


def imports(account: str) -> list[dict[str, str]]:
    """The same as the nodes' account takes it from `account`, under the same subjects."""
    return [
        {"account": account, **{key: shown[key] for key in ("name", "subject", "type")}}
        for shown in exports()
    ]


@dataclass(frozen=True, slots=True)
class Scope:
    """One node in one run."""

    run_id: str
    growth_consumer: str
    inbox_prefix: str

    def permissions(self) -> dict[str, Any]:
        """The claims of the node's user JWT."""
        growth, policy = self.growth_consumer, subjects.train(self.run_id, "policy")
        # No direct reads: nothing exports them.
        publish = [subjects.lineage(self.run_id, kind) for kind in PRODUCED]
        publish += [
            f"{_PULL}.{growth}",
            f"{_INFO}.{growth}",
            f"{_ACK}.{growth}.>",
        ]
        return {
            "type": "user",
            "pub": {"allow": publish},
            # Policies are a trigger: a plain subscription hears them, and nothing is made in the broker for it. Without
            # `resp` nobody who asks the node anything opens another subject to it.
            "sub": {"allow": [f"{self.inbox_prefix}.>", policy]},
            "subs": -1,
            "data": -1,
            "payload": -1,
        }
