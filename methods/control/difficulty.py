"""Difficulty predictor of dots: success rates of prompts from those of a few references.

A prompt's base is the mean of the references' rewards, weighted by softmax(cos(q, r) / sharpness)
over frozen embeddings; its prediction is σ(logit(clip(base, 1e-4, 1 − 1e-4)) / temperature + bias).
The paper (Sun et al. 2025, DOTS, arXiv 2506.05316) trains projections and a calibration network
offline on other models' rewards. Here sharpness, temperature and bias are chosen from a grid so
that each reference is predicted best from the others (least binary cross-entropy), anew for each
set of references: nothing is trained or stored.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating]
CLIP = 1e-4
SHARPNESS = (0.1, 0.02, 0.05, 0.2, 0.5)
TEMPERATURES = (1.0, 0.25, 0.35, 0.5, 0.71, 1.41, 2.0, 2.83, 4.0, 10.0)
BIASES = (0.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predictor of success rates for any prompts.

    references_R_D: embeddings of the references, of unit length
    rewards_R: their mean rewards
    sharpness, temperature, bias: calibration
    """

    references_R_D: Vectors
    rewards_R: F64
    sharpness: float = SHARPNESS[0]
    temperature: float = TEMPERATURES[0]
    bias: float = BIASES[0]

    @classmethod
    def fitted(cls, references_R_D: Vectors, rewards_R: F64) -> "Predictor":
        """Return a predictor that is calibrated by predicting each reference from the others.

        With one reference the defaults stay.
        """
        rewards_R = np.clip(rewards_R, 0.0, 1.0)
        if len(rewards_R) < 2:
            return cls(references_R_D, rewards_R)
        like_R_R = _alike(references_R_D, references_R_D)
        np.fill_diagonal(like_R_R, -np.inf)
        best: tuple[float, float, float, float] | None = None
        for sharpness in SHARPNESS:
            base_R = attended(like_R_R, rewards_R, sharpness)
            for temperature, bias in itertools.product(TEMPERATURES, BIASES):
                entropy = round(_entropy(rewards_R, calibrated(base_R, temperature, bias)), 12)
                if best is None or entropy < best[0]:  # of equals the first
                    best = entropy, sharpness, temperature, bias
        assert best is not None
        _, sharpness, temperature, bias = best
        return cls(
            references_R_D, rewards_R, sharpness=sharpness, temperature=temperature, bias=bias
        )

    def predict(self, prompts_Q_D: Vectors) -> F64:
        """Return predicted success rates."""
        base_Q = attended(_alike(prompts_Q_D, self.references_R_D), self.rewards_R, self.sharpness)
        return calibrated(base_Q, self.temperature, self.bias)


def _alike(queries_Q_D: Vectors, references_R_D: Vectors) -> F64:
    return np.asarray(queries_Q_D, np.float64) @ np.asarray(references_R_D, np.float64).T


def attended(like_Q_R: F64, rewards_R: F64, sharpness: float) -> F64:
    """Return means of the references' rewards, weighted by similarity."""
    scaled_Q_R = like_Q_R / sharpness
    weights_Q_R = np.exp(scaled_Q_R - scaled_Q_R.max(axis=1, keepdims=True))
    return np.asarray((weights_Q_R @ rewards_R) / weights_Q_R.sum(axis=1))


def calibrated(base_Q: F64, temperature: float, bias: float) -> F64:
    """Return σ(logit(base) / temperature + bias)."""
    clipped_Q = np.clip(base_Q, CLIP, 1.0 - CLIP)
    logit_Q = np.log(clipped_Q / (1.0 - clipped_Q))
    return np.asarray(1.0 / (1.0 + np.exp(-(logit_Q / temperature + bias))))


def _entropy(rewards_R: F64, predicted_R: F64) -> float:
    clipped_R = np.clip(predicted_R, CLIP, 1.0 - CLIP)
    return float(
        -(rewards_R * np.log(clipped_R) + (1.0 - rewards_R) * np.log(1.0 - clipped_R)).mean()
    )
