"""Network and secrets: a recipe asks for them, a verifier's operator allows them."""

import os
from collections.abc import Collection, Sequence

from banyan.errors import InvalidInput


def check_network(label: str, *, asked: bool, allowed: bool) -> None:
    """Raise InvalidInput if a recipe asks for the network and the operator forbids it.

    label: kind and name of what asks, for messages
    """
    if asked and not allowed:
        raise InvalidInput(
            f"{label} asks for the network, which this verifier allows to none; its "
            "operator can set BANYAN_SANDBOX_NETWORK=1"
        )


def secrets(label: str, names: Sequence[str], allowed: Collection[str]) -> dict[str, str]:
    """Return the secrets that a recipe names, by name.

    label: kind and name of what gets them, for messages

    Raise InvalidInput for one that is not allowed or not there.
    """
    for name in names:
        if name not in allowed:
            raise InvalidInput(
                f"{label} names the secret {name}, which this verifier does not give; "
                f"its operator can set BANYAN_SCORER_SECRETS={name}"
            )
        if not os.environ.get(name):
            raise InvalidInput(
                f"{label} names the secret {name}: set that variable where the verifier runs"
            )
    return {name: os.environ[name] for name in names}
