"""Making a stream of the log: which of the broker's refusals pass, which never will, and what to do about those."""

from dataclasses import dataclass

from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError

from banyan.errors import InvalidInput
from services.chassis.messaging import subjects

# Error codes of the broker: a stream is there with other limits; its files would have no room; and what else stays so until
# somebody changes the broker (number of streams, memory, a configuration that it does not take, subjects of another stream).
_DIFFERS, _NO_ROOM = 10058, 10047
_NEVER = frozenset({_NO_ROOM, 10026, 10027, 10028, 10052, 10065, 10113, 10122})


@dataclass(frozen=True, slots=True)
class StreamState:
    """born: when the stream was made; another time is another stream, whatever its sequences say. bytes: that it holds."""

    born: str
    bytes: int


async def make(js: JetStreamContext, config: StreamConfig) -> None:
    """Creates a stream, or gives one that is there the limits of today. Raises InvalidInput where no try will help."""
    try:
        await js.add_stream(config)
    except APIError as error:
        if error.err_code in _NEVER:
            raise InvalidInput(_why(config, error)) from None
        if error.err_code != _DIFFERS:
            raise
        await js.update_stream(config)


def _why(config: StreamConfig, error: APIError) -> str:
    said = f"stream {config.name} cannot be made: {error.description} (NATS error {error.err_code})"
    if error.err_code != _NO_ROOM:
        return (
            f"{said}; look at the streams of this NATS server, or give Banyan an account of its own"
        )
    return (
        f"{said}. The limits of all streams count in full from the start, so max_file_store in the NATS server's"
        f" configuration must be {subjects.RESERVED >> 20} MiB or more, with no other streams beside ours"
    )
