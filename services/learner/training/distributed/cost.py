"""What a piece of a tree costs to train on: tokens, attention pairs and predictions, weighed by the model's sizes. Pure."""

from dataclasses import dataclass
from typing import Any

from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart


@dataclass(frozen=True, slots=True)
class Costs:
    """Multiplications, in multiples of those of one token in the layers' matrices. Measured ones would differ by machine,
    and with them which rank gets which tree."""

    pair: float
    prediction: float

    def of(self, piece: TreePart) -> float:
        """Of a piece. A token attends to all that is above it on its path, and to itself."""
        places = {int(at) for path in piece.paths for at in path.predictor_T}
        return self._sum(len(piece), int(piece.position_U.sum()), len(places))

    def of_row(self, row: PackedSequence) -> float:
        """Of a row: what its pieces share counts once."""
        return self._sum(len(row.token_U), int(row.position_U.sum()), len(row.place_R))

    def _sum(self, tokens: int, above: int, places: int) -> float:
        return tokens + self.pair * (above + tokens) + self.prediction * places


def costs_of(config: Any) -> Costs:
    """From a Hugging Face configuration: 12 H² multiplications a layer and token, 2 H a layer and pair, V H a prediction."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    wide, deep, vocabulary = text.hidden_size, text.num_hidden_layers, text.vocab_size
    token = 12 * wide * wide * deep
    return Costs(pair=2 * wide * deep / token, prediction=vocabulary * wide / token)
