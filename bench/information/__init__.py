"""Signal and noise of the gradient by tree and estimator, on an exact table of probabilities."""

from bench.information.measure import run as run
