"""Tokenizers of runs: stored compressed, by digest, and built once in memory. No model is loaded
here.
"""

import zlib

import numpy as np
from sqlalchemy import Connection, select
from tokenizers import Tokenizer

from banyan.digest import blake
from banyan.environments.renderers import ModelWords, RendererSpec
from banyan.errors import InvalidInput
from services.chassis.renderers import stored
from services.chassis.renderers.stored import Bridge
from services.treestore.storage import schema
from services.treestore.storage.sql import insert_ignore

_MAX_CACHED = 4  # tokenizers in memory: some 100 MB for the largest
_MAX_BRIDGES = 16


def put(connection: Connection, data: bytes) -> bytes | None:
    """Store a tokenizer.json, and return its digest; None for no data. Raises InvalidInput for an
    unusable file.
    """
    if not data:
        return None
    digest = blake(data)
    _build(data)
    insert_ignore(connection, schema.tokenizers, [{"digest": digest, "data": zlib.compress(data)}])
    return digest


class Decoder:
    """A tokenizer that only decodes, without special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer itself."""
        return self._tokenizer

    def decode(self, tokens: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]") -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True))


def _build(data: bytes) -> Decoder:
    try:
        return Decoder(Tokenizer.from_str(data.decode()))
    except Exception as error:  # the library raises Exception itself
        raise InvalidInput(
            f"the model's tokenizer.json cannot be read: {str(error).splitlines()[0]}"
        ) from None


_cache: dict[bytes, Decoder] = {}


def decoder(connection: Connection, digest: bytes) -> Decoder:
    """Return the tokenizer with this digest, from memory if it was used before. Raises InvalidInput
    if it is missing.
    """
    if digest not in _cache:
        data = read(connection, digest)
        while len(_cache) >= _MAX_CACHED:
            _cache.pop(next(iter(_cache)))
        _cache[digest] = _build(data)
    return _cache[digest]


def read(connection: Connection, digest: bytes) -> bytes:
    """Return the tokenizer.json with this digest. Raises InvalidInput if it is missing."""
    data = connection.scalar(
        select(schema.tokenizers.c.data).where(schema.tokenizers.c.digest == digest)
    )
    if data is None:
        raise InvalidInput(
            f"tokenizer {digest.hex()[:12]} is not in the store, though a run names it"
        )
    return zlib.decompress(data)


_bridges: dict[tuple[bytes, str], Bridge] = {}


def bridge(connection: Connection, digest: bytes, spec: RendererSpec, words: ModelWords) -> Bridge:
    """Return what renders answers with a tokenizer, from memory if it was used before. Raises
    InvalidInput if it cannot be made here.
    """
    key = digest, stored.key_of(spec, words)
    if key not in _bridges:
        made = stored.bridge_of(spec, words, decoder(connection, digest).backend)
        while len(_bridges) >= _MAX_BRIDGES:
            _bridges.pop(next(iter(_bridges)))
        _bridges[key] = made
    return _bridges[key]
