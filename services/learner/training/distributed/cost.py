"""The training cost of a piece of a tree: tokens, attention pairs and predictions. Pure."""

from dataclasses import dataclass
from typing import Any

from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart


@dataclass(frozen=True, slots=True)
class Costs:
    """Multiplications, in multiples of those of one token in the layers' matrices.

    They follow from the model's sizes: measured costs would differ by machine, and with them the
    rank that gets a tree.

    pair: cost of a query and a key
    prediction: cost of the logits at one place
    """

    pair: float
    prediction: float

    def of(self, piece: TreePart) -> float:
        """Return the cost of a piece: a token attends to all tokens above it and to itself."""
        places = {int(at) for path in piece.paths for at in path.predictor_T}
        return self._sum(len(piece), int(piece.position_N.sum()), len(places))

    def of_sequence(self, sequence: PackedSequence) -> float:
        """Return the cost of a packed sequence, in which shared tokens count once."""
        tokens = len(sequence.token_N)
        return self._sum(tokens, int(sequence.position_N.sum()), len(sequence.place_R))

    def _sum(self, tokens: int, above: int, places: int) -> float:
        return tokens + self.pair * (above + tokens) + self.prediction * places


def costs_of(config: Any) -> Costs:
    """Return the costs of a Hugging Face configuration.

    With width H and vocabulary V: 12 H² multiplications a layer and token, 2 H a layer and pair,
    V H a prediction.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    width, layers, vocabulary = text.hidden_size, text.num_hidden_layers, text.vocab_size
    token = 12 * width * width * layers
    return Costs(pair=2 * width * layers / token, prediction=vocabulary * width / token)
