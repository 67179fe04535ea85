"""The rights of joined nodes on NATS (docs/protocol.md, Rights).

The broker refuses everything else.

Their account imports the subjects that any node of any run needs; a node's own permissions narrow
them to its run.
"""

from dataclasses import dataclass
from typing import Any

from services.chassis.messaging import subjects

# Events that a rollout node produces (docs/protocol.md, Subjects and producers).
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
_POLICIES = subjects.train("*", "policy")


def exports() -> list[dict[str, str]]:
    """Return the exports of the services' account to the nodes' account, as claims of its JWT.

    A pull is answered by many messages, hence its response type.
    """
    kinds = {f"{_PULL}.*": {"response_type": "Stream"}}
    services = [{"name": s, "subject": s, "type": "service", **kinds.get(s, {})} for s in _SERVICES]
    return [*services, {"name": _POLICIES, "subject": _POLICIES, "type": "stream"}]


def imports(account: str) -> list[dict[str, str]]:
    """Return the same subjects as imports of the nodes' account from `account`."""
    return [
        {"account": account, **{key: export[key] for key in ("name", "subject", "type")}}
        for export in exports()
    ]


@dataclass(frozen=True, slots=True)
class Scope:
    """The rights of one node in one run."""

    run_id: str
    growth_consumer: str
    inbox_prefix: str

    def permissions(self) -> dict[str, Any]:
        """Return the claims of the node's user JWT."""
        growth, policy = self.growth_consumer, subjects.train(self.run_id, "policy")
        # No direct reads: they are not exported.
        publish = [subjects.lineage(self.run_id, kind) for kind in PRODUCED]
        publish += [
            f"{_PULL}.{growth}",
            f"{_INFO}.{growth}",
            f"{_ACK}.{growth}.>",
        ]
        return {
            "type": "user",
            "pub": {"allow": publish},
            # Policies are a trigger: a plain subscription receives them and needs nothing in the
            # broker. Without `resp` a request to the node opens no other subject to it.
            "sub": {"allow": [f"{self.inbox_prefix}.>", policy]},
            "subs": -1,
            "data": -1,
            "payload": -1,
        }
