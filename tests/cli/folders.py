"""Model folders that look complete; no test loads them."""

import json
import struct
from pathlib import Path


def safetensors() -> bytes:
    """Write a weights file with one tensor of four bytes."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 4


def whole_model(folder: Path) -> str:
    """Make the folder `m` in `folder`."""
    model = folder / "m"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(safetensors())
    (model / "tokenizer.json").write_text('{"model": {}}')
    return str(model)
