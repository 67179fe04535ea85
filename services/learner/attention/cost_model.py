"""Which way to attend costs least for a row: a model of what was measured, and the choice. Pure.

Seconds of one layer's forward and backward pass are linear in what a way does: products of a query and a key, padded or
exact; calls of a kernel; and parts of units. Factors are of two AVX-512 cores in bfloat16, per head of width 64, under the
settings of banyan/runtime/torch_environment.py. Only their ratios decide.
"""

from collections.abc import Mapping
from enum import StrEnum

from services.learner.attention.matmuls import Calls, long_pairs
from services.learner.packing.packing import PackedSequence

DENSE_TOKENS = 512  # up to this many tokens a block's scores are cheap to hold in float32 for all blocks at once


class Way(StrEnum):
    """How a row's attention is computed."""

    PADDED = "padded"
    """All blocks in one product, padded to the longest, with a mask."""
    NODES = "nodes"
    """Long nodes one by one, without a mask; short ones in units."""
    BLOCKS = "blocks"
    """Block by block, with a mask."""
    BLOCK_MASK = "block-mask"
    """FlexAttention, on CUDA."""


# Nanoseconds a head.
PADDED_TOKEN, PADDED_PAIR = 860.0, 4.9
NODES_CALL, NODES_PART, NODES_TOKEN, LONG_PAIR, UNIT_PAIR = 615_000.0, 55_000.0, 880.0, 5.5, 10.3
BLOCKS_CALL, BLOCKS_TOKEN, BLOCKS_PAIR = 173_000.0, 570.0, 5.6


def padded_pairs(row: PackedSequence) -> int:
    """Products of all blocks padded to the longest, and of the trunk with itself."""
    longest = max((stop - start for start, stop in row.blocks), default=0)
    return len(row.blocks) * longest * (row.trunk + longest) + row.trunk**2


def block_pairs(row: PackedSequence) -> int:
    """Products of each block with itself and the trunk, masked or not."""
    return (
        sum((stop - start) * (row.trunk + stop - start) for start, stop in row.blocks)
        + row.trunk**2
    )


def costs(row: PackedSequence, calls: Calls | None) -> Mapping[Way, float]:
    """What each way costs on a CPU; not node by node without its calls."""
    tokens = len(row.token_N)
    found = {
        Way.PADDED: PADDED_TOKEN * tokens + PADDED_PAIR * padded_pairs(row),
        Way.BLOCKS: (
            BLOCKS_CALL * (len(row.blocks) + bool(row.trunk))
            + BLOCKS_TOKEN * tokens
            + BLOCKS_PAIR * block_pairs(row)
        ),
    }
    return found if calls is None else found | {Way.NODES: _nodes(tokens, calls)}


def _nodes(tokens: int, calls: Calls) -> float:
    number, parts = len(calls.own) + len(calls.below), sum(stack.parts for stack in calls.stacks)
    pairs = LONG_PAIR * long_pairs(calls) + UNIT_PAIR * sum(stack.pairs for stack in calls.stacks)
    return NODES_CALL * number + NODES_PART * parts + NODES_TOKEN * tokens + pairs


def choose(row: PackedSequence, calls: Calls | None) -> Way:
    """The cheapest way that the row allows. A layer with a window or a cap needs scores or a mask: it gives no calls."""
    found = dict(costs(row, calls))
    longest = max((stop - start for start, stop in row.blocks), default=0)
    if row.trunk + longest > DENSE_TOKENS:
        del found[Way.PADDED]
    return min(found, key=lambda way: found[way])
