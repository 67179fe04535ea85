"""Conversion between receipts and their messages."""

from banyan.environments.observation import Effect, Observation, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.plugins.filter import EARNINGS
from banyan.reward import share
from banyan.v1 import tree_pb2
from banyan.wire.weights import weights_of


def to_wire(receipt: Receipt) -> tree_pb2.Receipt:
    """Return the message of a receipt."""
    seen = receipt.observation
    return tree_pb2.Receipt(
        observation=tree_pb2.Observation(
            environment=seen.environment,
            version=seen.version,
            settings=seen.settings,
            action=seen.action,
            answer=seen.answer,
            shown=seen.shown,
            outcome=tree_pb2.ToolOutcome.ValueType(seen.outcome),
            reward=seen.reward,
            done=seen.done,
            anchor=seen.anchor,
            state_before=seen.before,
            state_after=seen.after,
            effect=tree_pb2.ToolEffect.ValueType(seen.effect),
        ),
        mac=receipt.mac,
        call=receipt.call,
    )


def from_wire(message: tree_pb2.Receipt) -> Receipt:
    """Return the receipt of a message. Raises InvalidInput if a field is unusable."""
    seen = message.observation
    try:
        outcome, effect = ToolOutcome(seen.outcome), Effect(seen.effect)
    except ValueError as error:
        raise InvalidInput(f"receipt of action {seen.action.hex()[:12]}: {error}") from None
    observation = Observation(
        environment=seen.environment,
        version=seen.version,
        settings=seen.settings,
        action=seen.action,
        answer=seen.answer,
        shown=seen.shown,
        outcome=outcome,
        reward=seen.reward,
        done=seen.done,
        anchor=seen.anchor,
        before=seen.state_before,
        after=seen.state_after,
        effect=effect,
    )
    return Receipt(observation, message.mac, message.call)


def earned(tree: tree_pb2.Tree) -> dict[bytes, float]:
    """Return the reward of each answer of a stored tree, as a part of its paths' rewards.

    Empty where no scorer of the tree adds such rewards up.
    """
    scorers, weights = tree.spec.scorers, weights_of(tree.spec)
    part = sum(share(name, scorers, weights) for name in EARNINGS)
    return {
        segment.id: part * segment.receipt.observation.reward
        for segment in tree.segments
        if part and segment.HasField("receipt")
    }
