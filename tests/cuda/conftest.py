"""A CUDA device, which these tests need; without one they are skipped."""

import pytest
import torch

from tests.learner.conftest import tiny_llama  # noqa: F401


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device here")
    return torch.device("cuda")
