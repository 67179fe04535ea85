"""What a joined node may say and hear on NATS (PROTOCOL 8). Everything that is not listed is refused by the broker."""

from dataclasses import dataclass
from typing import Any

from services.chassis import subjects

PRODUCED = ("segment", "leaf", "grown")  # what a rollout node produces: one subject, one producer (PROTOCOL 4)


@dataclass(frozen=True, slots=True)
class Scope:
    """One node in one run."""

    run_id: str
    growth_consumer: str
    inbox_prefix: str

    def permissions(self) -> dict[str, Any]:
        """The claims of the node's user JWT."""
        growth, policy = self.growth_consumer, subjects.train(self.run_id, "policy")
        # No direct reads: the broker publishes what it reads to any reply subject, with its own rights (ADR 028).
        publish = [subjects.lineage(self.run_id, kind) for kind in PRODUCED]
        publish += [
            f"$JS.API.CONSUMER.MSG.NEXT.{subjects.GROWTH}.{growth}",
            f"$JS.API.CONSUMER.INFO.{subjects.GROWTH}.{growth}",
            f"$JS.ACK.{subjects.GROWTH}.{growth}.>",
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
