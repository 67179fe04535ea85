"""How long a path may be for its tokens to have rotations of their own: which depend on nothing but their positions.

longrope and dynamic rotations change for all tokens of a pass when its longest path passes a bound (transformers,
modeling_rope_utils.py): keys that are cached, rows that are computed together and trees that are trained would differ.
"""

from collections.abc import Mapping
from typing import Any


def reach(config: Any) -> int:
    """Tokens of the longest such path; 0 where rotations never change."""
    text = config.get_text_config()
    named = getattr(text, "rope_parameters", None) or {}
    ropes = [rope for rope in named.values() if isinstance(rope, Mapping)] or [
        named
    ]  # by layer type, or one for all
    bounds = [_bound(rope, getattr(text, "max_position_embeddings", None)) for rope in ropes]
    return min((bound for bound in bounds if bound > 0), default=0)


def _bound(rope: Mapping[str, Any], longest: Any) -> int:
    kind = str(rope.get("rope_type", "default"))
    bound = rope.get("original_max_position_embeddings", longest) if kind == "longrope" else longest
    return bound if (kind == "longrope" or "dynamic" in kind) and isinstance(bound, int) else 0
