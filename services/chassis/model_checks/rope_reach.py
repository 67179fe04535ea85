"""The longest path up to which a token's rotation depends on its position alone.

longrope and dynamic rotations change for all tokens of a pass when its longest path exceeds a bound
(transformers, modeling_rope_utils.py). Cached keys, branches computed together and trained trees
would then differ.
"""

from collections.abc import Mapping
from typing import Any


def reach(config: Any) -> int:
    """Return the length of that path in tokens; 0 if rotations never change."""
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    by_layer_type = [rope for rope in parameters.values() if isinstance(rope, Mapping)]
    ropes = by_layer_type or [parameters]
    bounds = [_bound(rope, getattr(text, "max_position_embeddings", None)) for rope in ropes]
    return min((bound for bound in bounds if bound > 0), default=0)


def _bound(rope: Mapping[str, Any], longest: Any) -> int:
    """Return the bound of one kind of rotation; 0 without any."""
    kind = str(rope.get("rope_type", "default"))
    if kind == "longrope":
        bound = rope.get("original_max_position_embeddings", longest)
    elif "dynamic" in kind:
        bound = longest
    else:
        return 0
    return bound if isinstance(bound, int) else 0
