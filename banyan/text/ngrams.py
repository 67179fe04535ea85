"""Embeddings of prompts without a model: hashed character n-grams, of unit length.

Each run of 1 to 4 characters of the lower-cased text counts 1, with a sign and an index from its
CRC-32. So texts that share words, numbers or operators lie close together; their meaning is not
seen. A task whose difficulty does not show in its words needs an embedding of its own.
"""

import zlib

import numpy as np
import numpy.typing as npt

DIMENSIONS = 256
_LENGTHS = (1, 2, 3, 4)
_LONGEST = 2000  # characters of a prompt that are used
F32 = npt.NDArray[np.float32]


def embed(text: str) -> F32:
    """Return the embedding of a text."""
    cut = " ".join(text.lower().split())[:_LONGEST]
    data = [cut[i : i + n].encode() for n in _LENGTHS for i in range(len(cut) - n + 1)]
    codes = np.fromiter(map(zlib.crc32, data), np.uint32, len(data))
    counts = np.zeros(DIMENSIONS, np.float64)
    np.add.at(counts, codes % DIMENSIONS, np.where(codes >> 31, 1.0, -1.0))
    length = np.sqrt((counts * counts).sum())
    return (counts / length if length else counts).astype(np.float32)
