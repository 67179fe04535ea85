"""Tokenizers of runs: kept packed, by digest, and made once. `tokenizers` alone decodes; no model
is loaded here.
"""

import zlib

import numpy as np
from sqlalchemy import Connection, select
from tokenizers import Tokenizer

from banyan.digest import blake
from banyan.errors import InvalidInput
from services.treestore.storage import schema
from services.treestore.storage.sql import insert_ignore

_FEW = 4  # tokenizers in memory: some 100 MB for the largest


def put(connection: Connection, data: bytes) -> bytes | None:
    """Stores a tokenizer.json; its digest, None for none. Raises InvalidInput for what is no
    tokenizer.
    """
    if not data:
        return None
    digest = blake(data)
    _made(data)
    insert_ignore(connection, schema.tokenizers, [{"digest": digest, "data": zlib.compress(data)}])
    return digest


class Decoder:
    """The words of tokens, without special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, tokens: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]") -> str:
        """Text of the tokens."""
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True))


def _made(data: bytes) -> Decoder:
    try:
        return Decoder(Tokenizer.from_str(data.decode()))
    except Exception as error:  # the library raises Exception itself
        raise InvalidInput(
            f"the model's tokenizer.json cannot be read: {str(error).splitlines()[0]}"
        ) from None


_known: dict[bytes, Decoder] = {}


def decoder(connection: Connection, digest: bytes) -> Decoder:
    """The tokenizer with this digest, from memory where it was asked for before."""
    if digest not in _known:
        data = connection.scalar(
            select(schema.tokenizers.c.data).where(schema.tokenizers.c.digest == digest)
        )
        if data is None:
            raise InvalidInput(
                f"tokenizer {digest.hex()[:12]} is not in the store, though a run names it"
            )
        while len(_known) >= _FEW:
            _known.pop(next(iter(_known)))
        _known[digest] = _made(zlib.decompress(data))
    return _known[digest]
