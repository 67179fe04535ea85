"""A check, by names and shapes, that a weight file is of a model.

It precedes updates of engines that cannot undo one.
"""

from collections.abc import Mapping
from pathlib import Path

from banyan.errors import InvalidInput
from services.chassis.weights import file


def check(manifest_path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InvalidInput unless a weight file has exactly the model's tensors.

    A learned head's tensors are ignored. Tied names count as one.
    """
    manifest = file.read(manifest_path)
    stored = {t.name: t.shape for t in manifest.tensors if not t.name.startswith(file.HEAD)}
    tied = {name: {name} for name in stored}
    for alias, name in manifest.aliases.items():
        tied[name].add(alias)
    found_shapes = {alias: stored[name] for name, aliases in tied.items() for alias in aliases}
    missing = sorted(set(shapes) - set(found_shapes))
    extra = sorted(name for name, aliases in tied.items() if not aliases & set(shapes))
    if shapes and (missing or extra):
        if missing:
            fault = f"lacks {missing[0]!r}"
        else:
            fault = f"holds {extra[0]!r}, which the model has not"
        raise InvalidInput(f"weights {manifest_path} {fault}; are they of another model?")
    for name, shape in shapes.items():
        if found_shapes[name] != shape:
            raise InvalidInput(
                f"tensor {name} of {manifest_path} has shape {found_shapes[name]} instead of"
                f" {shape}; are they of another model?"
            )
