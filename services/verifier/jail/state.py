"""States of sessions as bytes: the same for the same runs, and refused if others made them.

A dump of pydantic-monty 1.4 is CBOR. A state differs from it in two parts. `tracker`, which holds
the limits of the session and the time that it ran, is left out; the limits of the next run are put
in before it is loaded. Of `sources`, the code of all runs in an order that differs from dump to
dump, code that defines functions stays, sorted; tracebacks need it.

Monty says of dumps that loading a forged one has no guarantees, so a state is sealed with a key.
"""

import hashlib
import hmac
import re
import struct

from banyan.errors import InvalidInput

_HEADER = struct.Struct("<4s16sI")  # magic, seal, bytes before the part that was left out
_MAGIC = b"BMS1"
# A program's text cannot hold these bytes, as none of them is UTF-8. Its byte strings can; a dump
# with more than one such place is refused, so that no program says where a part is.
_TRACKER = re.compile(rb"gtracker\xa4flimits\xa7")
_AFTER_TRACKER = re.compile(rb"x\x18recursion_limit_override[\xf6\x00-\x1b]lpurple_count")
_SOURCES = re.compile(rb"gsources(?=[\xa0-\xb9])")
_AFTER_SOURCES = re.compile(rb"goptions\xa2x\x1aassert_message_annotations")
_DEFINES = re.compile(rb"def|lambda|class")


class Unkept(ValueError):
    """A state that cannot be kept, with the reason."""


def pack(dump: bytes, key: bytes) -> bytes:
    """Return the state of a dump. Raises Unkept."""
    begin, end = _part(dump, _SOURCES, _AFTER_SOURCES)
    start, after = _part(dump, _TRACKER, _AFTER_TRACKER)
    head = dump[:begin] + b"gsources" + _sources(dump, begin + 8, end) + dump[end:start]
    body = head + dump[after:]
    return _HEADER.pack(_MAGIC, _seal(body, len(head), key), len(head)) + body


def unpack(state: bytes, key: bytes, limits: bytes) -> bytes:
    """Return the dump of a state with these limits, which `limits_of` returned.

    Raises InvalidInput if the state was made with another key, or was changed.
    """
    body = state[_HEADER.size :]
    if len(state) >= _HEADER.size:
        magic, seal, start = _HEADER.unpack_from(state)
        if magic == _MAGIC and hmac.compare_digest(seal, _seal(body, start, key)):
            return body[:start] + limits + body[start:]
    raise InvalidInput(
        f"{len(state)} bytes are no state of these sessions: give back the bytes that they"
        " returned, to sessions with the same key"
    )


def limits_of(dump: bytes) -> bytes:
    """Return the part of a dump that holds limits and times. Raises Unkept."""
    start, end = _part(dump, _TRACKER, _AFTER_TRACKER)
    return dump[start:end]


def _part(dump: bytes, begin: re.Pattern[bytes], after: re.Pattern[bytes]) -> tuple[int, int]:
    """Return where a part begins and ends."""
    begins, ends = list(begin.finditer(dump)), list(after.finditer(dump))
    if len(begins) != 1 or len(ends) != 1:
        raise Unkept(f"the state holds {len(begins)} times the bytes {begin.pattern!r}, not once")
    return begins[0].start(), ends[0].start()


def _sources(dump: bytes, at: int, end: int) -> bytes:
    """Return the sorted map of names to code that defines functions."""
    at += {0xB8: 2, 0xB9: 3}.get(dump[at], 1)
    entries = []
    while at < end:
        code = _text_end(dump, at)
        after = _text_end(dump, code)
        if _DEFINES.search(dump, code, after):
            entries.append(dump[at:after])
        at = after
    count = len(entries)
    head = bytes([0xA0 + count]) if count < 24 else b"\xb9" + struct.pack(">H", count)
    return head + b"".join(sorted(entries))


def _text_end(dump: bytes, at: int) -> int:
    """Return where a text of CBOR ends."""
    head = dump[at]
    if head < 0x78:
        return at + 1 + head - 0x60
    size = 1 << head - 0x78
    return at + 1 + size + int.from_bytes(dump[at + 1 : at + 1 + size], "big")


def _seal(body: bytes, start: int, key: bytes) -> bytes:
    whole = start.to_bytes(4, "little") + body
    return hashlib.blake2b(whole, key=key, digest_size=16, person=_MAGIC).digest()
