"""A measured model of what each attention method costs for a sequence, and the choice. Pure.

Seconds of one layer's forward and backward pass are linear in the work of a method: products of a
query and a key, padded or exact; calls of a kernel; and batches of units. Factors are of two
AVX-512 cores in bfloat16, per head of width 64, under the settings of
banyan/runtime/torch_environment.py. Only their ratios decide (ADR 029).
"""

from collections.abc import Mapping
from enum import StrEnum

from services.learner.attention.matmuls import Matmuls, long_pairs
from services.learner.packing.packing import PackedSequence

DENSE_TOKENS = 512  # most tokens of a block whose float32 scores are cheap to hold for all blocks


class AttentionMethod(StrEnum):
    """Methods to compute the attention of a sequence."""

    PADDED = "padded"
    """All blocks in one product, padded to the longest, with a mask."""
    NODES = "nodes"
    """Long nodes one by one, without a mask; short ones in units."""
    BLOCKS = "blocks"
    """Block by block, with a mask."""
    BLOCK_MASK = "block-mask"
    """FlexAttention, on CUDA."""


# Nanoseconds per head.
PADDED_TOKEN = 860.0
PADDED_PAIR = 4.9
NODES_CALL = 615_000.0
NODES_BATCH = 55_000.0
NODES_TOKEN = 880.0
LONG_PAIR = 5.5
UNIT_PAIR = 10.3
BLOCKS_CALL = 173_000.0
BLOCKS_TOKEN = 570.0
BLOCKS_PAIR = 5.6


def longest_block(sequence: PackedSequence) -> int:
    """Return the tokens of the longest block."""
    return max((stop - start for start, stop in sequence.blocks), default=0)


def padded_pairs(sequence: PackedSequence) -> int:
    """Return the products of all blocks padded to the longest, and of the trunk with itself."""
    longest = longest_block(sequence)
    of_blocks = len(sequence.blocks) * longest * (sequence.trunk + longest)
    return of_blocks + sequence.trunk**2


def block_pairs(sequence: PackedSequence) -> int:
    """Return the products of each block with itself and the trunk, masked or not."""
    sizes = [stop - start for start, stop in sequence.blocks]
    return sum(size * (sequence.trunk + size) for size in sizes) + sequence.trunk**2


def costs(sequence: PackedSequence, matmuls: Matmuls | None) -> Mapping[AttentionMethod, float]:
    """Return the cost of each method on a CPU; without `matmuls`, not node by node."""
    tokens = len(sequence.token_U)
    block_calls = len(sequence.blocks) + bool(sequence.trunk)
    by_method = {
        AttentionMethod.PADDED: PADDED_TOKEN * tokens + PADDED_PAIR * padded_pairs(sequence),
        AttentionMethod.BLOCKS: BLOCKS_CALL * block_calls
        + BLOCKS_TOKEN * tokens
        + BLOCKS_PAIR * block_pairs(sequence),
    }
    if matmuls is not None:
        by_method[AttentionMethod.NODES] = _nodes_cost(tokens, matmuls)
    return by_method


def _nodes_cost(tokens: int, matmuls: Matmuls) -> float:
    calls = len(matmuls.own) + len(matmuls.below)
    batches = sum(stack.batches for stack in matmuls.stacks)
    unit_pairs = sum(stack.pairs for stack in matmuls.stacks)
    pair_cost = LONG_PAIR * long_pairs(matmuls) + UNIT_PAIR * unit_pairs
    return NODES_CALL * calls + NODES_BATCH * batches + NODES_TOKEN * tokens + pair_cost


def choose(sequence: PackedSequence, matmuls: Matmuls | None) -> AttentionMethod:
    """Return the cheapest method for a sequence.

    A layer with a window or a cap needs scores or a mask: it passes no `matmuls`.
    """
    by_method = dict(costs(sequence, matmuls))
    if sequence.trunk + longest_block(sequence) > DENSE_TOKENS:
        del by_method[AttentionMethod.PADDED]
    return min(by_method, key=lambda method: by_method[method])
