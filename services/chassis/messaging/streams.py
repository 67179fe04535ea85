"""Creation of the log's streams, and which refusals of the broker are permanent."""

from dataclasses import dataclass

from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError

from banyan.errors import InvalidInput
from services.chassis.messaging import subjects

# Error codes of the broker.
_DIFFERS = 10058  # the stream exists with other limits
_NO_SPACE = 10047  # its limit exceeds the space that the broker may promise
# Permanent until the broker is changed: number of streams, memory, a configuration that it does not
# accept, subjects of another stream.
_PERMANENT = frozenset({_NO_SPACE, 10026, 10027, 10028, 10052, 10065, 10113, 10122})


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream.

    born: creation time; another time is another stream, whatever its sequences.
    bytes: size of the messages that it holds.
    """

    born: str
    bytes: int


async def make(js: JetStreamContext, config: StreamConfig) -> None:
    """Create a stream, or update the limits of an existing one.

    Raise InvalidInput where no retry will help.
    """
    try:
        await js.add_stream(config)
    except APIError as error:
        if error.err_code in _PERMANENT:
            raise InvalidInput(_explanation(config, error)) from None
        if error.err_code != _DIFFERS:
            raise
        await js.update_stream(config)


def _explanation(config: StreamConfig, error: APIError) -> str:
    refusal = (
        f"stream {config.name} cannot be made: {error.description} (NATS error {error.err_code})"
    )
    if error.err_code != _NO_SPACE:
        return (
            f"{refusal}; look at the streams of this NATS server,"
            " or give Banyan an account of its own"
        )
    return (
        f"{refusal}. The limits of all streams count in full from the start, so max_file_store in"
        f" the NATS server's configuration must be {subjects.RESERVED >> 20} MiB or more, with no"
        " other streams beside ours"
    )


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Messages that a consumer of a stream has before it.

    waiting: messages that it was not given yet
    unacknowledged: messages that it was given and has not finished
    """

    stream: str
    consumer: str
    waiting: int
    unacknowledged: int
