"""Whether a weight file is of a model, by names and shapes: asked before an engine that cannot undo an update begins."""

from collections.abc import Mapping
from pathlib import Path

from banyan.errors import InvalidInput
from services.chassis.weights import file


def check(manifest_path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises InvalidInput unless a weight file holds the model's tensors and no others, but for a learned head's.

    Tied names count as one.
    """
    manifest = file.read(manifest_path)
    found = {t.name: t.shape for t in manifest.tensors if not t.name.startswith(file.HEAD)}
    names = {name: {name} for name in found}
    for alias, name in manifest.aliases.items():
        names[name].add(alias)
    held = {n: found[name] for name, all_names in names.items() for n in all_names}
    missing = sorted(set(shapes) - set(held))
    extra = sorted(name for name, all_names in names.items() if not all_names & set(shapes))
    if shapes and (missing or extra):
        what = (
            f"lacks {missing[0]!r}" if missing else f"holds {extra[0]!r}, which the model has not"
        )
        raise InvalidInput(f"weights {manifest_path} {what}; are they of another model?")
    for name, shape in shapes.items():
        if held[name] != shape:
            raise InvalidInput(
                f"tensor {name} of {manifest_path} has shape {held[name]} instead of {shape}; are they of another model?"
            )
