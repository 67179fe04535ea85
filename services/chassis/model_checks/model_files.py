"""A fast check that a model folder is complete, by its files' headers and sizes."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from banyan.errors import InvalidInput

_INDEX = "model.safetensors.index.json"
_PLAIN = "*.bin"
_MAX_HEADER_BYTES = 100 << 20
# Each of these sets is a tokenizer.
_TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
)
_OTHERS = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_REMEDY = "download or copy the model again"


def check(folder: Path, tokenizer: bool) -> None:
    """Raise InvalidInput that names a broken file, its fault and the remedy."""
    if not (folder / "config.json").is_file():
        raise InvalidInput(
            f"model folder {folder} has no config.json; give a Hugging Face model folder"
        )
    if not isinstance(_json(folder / "config.json").get("model_type"), str):
        raise InvalidInput(
            f"{folder / 'config.json'} names no model_type;"
            " give the config.json that came with the model"
        )
    for name in _OTHERS:
        if (folder / name).exists():
            _json(folder / name)
    for weights in _weights(folder):
        _check_weights(weights)
    if tokenizer:
        _check_tokenizer(folder)


def _weights(folder: Path) -> list[Path]:
    """Return the files that hold the weights."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if (folder / _INDEX).is_file():
        return _shards(folder)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob(_PLAIN))
    if not files:
        raise InvalidInput(
            f"model folder {folder} has no weights (*.safetensors); was it downloaded whole?"
        )
    return files


def _shards(folder: Path) -> list[Path]:
    named = _json(folder / _INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise InvalidInput(f"{folder / _INDEX} has no weight_map; {_REMEDY}")
    shards = [folder / name for name in sorted({str(name) for name in named.values()})]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidInput(
            f"model folder {folder} lacks {missing[0]}{more}, which {_INDEX} names; {_REMEDY}"
        )
    return shards


def _check_weights(path: Path) -> None:
    try:
        size = path.stat().st_size
        if path.suffix != ".safetensors":
            fault = "is empty" if not size else ""
        else:
            with path.open("rb") as file:
                fault = _fault_of(file, size)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    if fault:
        raise InvalidInput(f"{path} {fault}; {_REMEDY}")


def _fault_of(file: BinaryIO, size: int) -> str:
    """Return the fault of a safetensors file; empty if there is none.

    Its first 8 bytes are the length of its JSON header, which has the end of each tensor.
    """
    start = file.read(9)
    length = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
    if not 2 <= length <= _MAX_HEADER_BYTES or start[8:] != b"{":
        return f"is no safetensors file ({size} bytes)"
    if 8 + length > size:
        return f"is cut off: it has {size} bytes, and its header alone would take {8 + length}"
    try:
        header = json.loads(start[8:] + file.read(length - 1))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        data_bytes = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "has a header that cannot be read"
    if not tensors:
        return "holds no tensor"
    end = 8 + length + data_bytes
    if end == size:
        return ""
    return f"is {'cut off' if size < end else 'too long'}: it has {size} bytes instead of {end}"


def _check_tokenizer(folder: Path) -> None:
    for names in _TOKENIZERS:
        if all((folder / name).is_file() for name in names):
            break
    else:
        raise InvalidInput(
            f"model folder {folder} has no tokenizer (tokenizer.json); copy the model's tokenizer"
            " files into it, as tokenizer.save_pretrained writes them"
        )
    for name in names:
        path = folder / name
        if not path.stat().st_size:
            raise InvalidInput(f"{path} is empty; {_REMEDY}")
    if names == ("tokenizer.json",):
        model = _json(folder / names[0]).get("model")
        if not isinstance(model, dict):
            raise InvalidInput(f"{folder / names[0]} is no tokenizer: it has no model; {_REMEDY}")
        _check_vocabulary(folder, model.get("vocab"))


def _check_vocabulary(folder: Path, vocabulary: object) -> None:
    """Raise InvalidInput if the model lacks an embedding for a token of its tokenizer.

    Tokens that were added later are not checked: models without them work if they never occur.
    """
    size = text_config(folder).get("vocab_size")
    ids: Iterable[object] = ()
    if isinstance(vocabulary, dict):
        ids = vocabulary.values()
    elif isinstance(vocabulary, list):
        ids = range(len(vocabulary))
    highest = max((number for number in ids if isinstance(number, int)), default=-1)
    if isinstance(size, int) and highest >= size:
        raise InvalidInput(
            f"model folder {folder}: its tokenizer's ids go up to {highest}, and the model has"
            f" {size} (vocab_size of config.json); copy the tokenizer's files that came with the"
            " model into it"
        )


def text_config(folder: Path) -> dict[str, Any]:
    """Return the text settings of a model's config.json; the text section of a multimodal one wins.

    Raise InvalidInput for an unreadable file.
    """
    config = _json(folder / "config.json")
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise InvalidInput(f"{path} is not JSON: {str(error).splitlines()[0]}; {_REMEDY}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} must hold a JSON object, not {type(data).__name__}; {_REMEDY}")
    return data


def say_float32(folder: Path) -> None:
    """Have transformers load float32 weights as they are.

    Rounded to the precision of the base model, small changes would be lost.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["dtype"] = "float32"
    if "torch_dtype" in config:
        config["torch_dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2) + "\n")
