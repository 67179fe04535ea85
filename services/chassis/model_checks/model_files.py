"""Whether a model folder is whole, by its files' heads and sizes: said in a moment, before minutes go into loading it."""

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from banyan.errors import InvalidInput

_INDEX = "model.safetensors.index.json"
_PLAIN = "*.bin"
_MOST_HEADER = 100 << 20
# Any one of these sets makes a tokenizer.
_TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
)
_OTHERS = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_AGAIN = "download or copy the model again"


def check(folder: Path, tokenizer: bool) -> None:
    """Raises InvalidInput that names the file, what is wrong with it, and what to do."""
    if not (folder / "config.json").is_file():
        raise InvalidInput(
            f"model folder {folder} has no config.json; give a Hugging Face model folder"
        )
    if not isinstance(_json(folder / "config.json").get("model_type"), str):
        raise InvalidInput(
            f"{folder / 'config.json'} names no model_type; give the config.json that came with the model"
        )
    for name in _OTHERS:
        if (folder / name).exists():
            _json(folder / name)
    for weights in _weights(folder):
        _check_weights(weights)
    if tokenizer:
        _check_tokenizer(folder)


def _weights(folder: Path) -> list[Path]:
    """The files that hold the weights."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if (folder / _INDEX).is_file():
        return _shards(folder)
    found = sorted(folder.glob("*.safetensors")) or sorted(folder.glob(_PLAIN))
    if not found:
        raise InvalidInput(
            f"model folder {folder} has no weights (*.safetensors); was it downloaded whole?"
        )
    return found


def _shards(folder: Path) -> list[Path]:
    named = _json(folder / _INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise InvalidInput(f"{folder / _INDEX} has no weight_map; {_AGAIN}")
    shards = [folder / name for name in sorted({str(name) for name in named.values()})]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidInput(
            f"model folder {folder} lacks {missing[0]}{more}, which {_INDEX} names; {_AGAIN}"
        )
    return shards


def _check_weights(path: Path) -> None:
    try:
        size = path.stat().st_size
        if path.suffix != ".safetensors":
            wrong = "is empty" if not size else ""
        else:
            with path.open("rb") as file:
                wrong = _wrong_head(file, size)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    if wrong:
        raise InvalidInput(f"{path} {wrong}; {_AGAIN}")


def _wrong_head(file: BinaryIO, size: int) -> str:
    """What is wrong with a safetensors file: 8 bytes say how long its JSON header is, which says where each tensor ends."""
    start = file.read(9)
    length = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
    if not 2 <= length <= _MOST_HEADER or start[8:] != b"{":
        return f"is no safetensors file ({size} bytes)"
    if 8 + length > size:
        return f"is cut off: it has {size} bytes, and its header alone would take {8 + length}"
    try:
        tensors = {
            k: v
            for k, v in json.loads(start[8:] + file.read(length - 1)).items()
            if k != "__metadata__"
        }
        end = (
            8
            + length
            + max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "has a header that cannot be read"
    if not tensors:
        return "holds no tensor"
    return (
        ""
        if end == size
        else f"is {'cut off' if size < end else 'too long'}: it has {size} bytes instead of {end}"
    )


def _check_tokenizer(folder: Path) -> None:
    for names in _TOKENIZERS:
        if all((folder / name).is_file() for name in names):
            break
    else:
        raise InvalidInput(
            f"model folder {folder} has no tokenizer (tokenizer.json); copy the model's tokenizer files into it,"
            " as tokenizer.save_pretrained writes them"
        )
    for name in names:
        path = folder / name
        if not path.stat().st_size:
            raise InvalidInput(f"{path} is empty; {_AGAIN}")
    if names == ("tokenizer.json",):
        model = _json(folder / names[0]).get("model")
        if not isinstance(model, dict):
            raise InvalidInput(f"{folder / names[0]} is no tokenizer: it has no model; {_AGAIN}")
        _check_vocabulary(folder, model.get("vocab"))


def _check_vocabulary(folder: Path, vocabulary: object) -> None:
    """A model without an embedding for what its tokenizer says ends at the first such token. Tokens that were added later
    are not looked at: where they are never used, models go without them."""
    size = text_config(folder).get("vocab_size")
    ids = (
        vocabulary.values()
        if isinstance(vocabulary, dict)
        else range(len(vocabulary))
        if isinstance(vocabulary, list)
        else ()
    )
    highest = max((number for number in ids if isinstance(number, int)), default=-1)
    if isinstance(size, int) and highest >= size:
        raise InvalidInput(
            f"model folder {folder}: its tokenizer's ids go up to {highest}, and the model has {size} (vocab_size of"
            " config.json); copy the tokenizer's files that came with the model into it"
        )


def text_config(folder: Path) -> dict[str, Any]:
    """The text settings of a model's config.json. In a multimodal model its text section takes precedence.

    Raises InvalidInput for a file that cannot be read as one.
    """
    config = _json(folder / "config.json")
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # text that is no UTF-8 included
        raise InvalidInput(f"{path} is not JSON: {str(error).splitlines()[0]}; {_AGAIN}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} must hold a JSON object, not {type(data).__name__}; {_AGAIN}")
    return data


def say_float32(folder: Path) -> None:
    """Makes transformers load float32 weights as they are: rounded to the base's own precision, small changes are lost."""
    config = folder / "config.json"
    said = json.loads(config.read_text())
    said |= {
        name: "float32" for name in ("dtype", "torch_dtype") if name == "dtype" or name in said
    }
    config.write_text(json.dumps(said, indent=2) + "\n")
