"""The check that vLLM is installed. It imports nothing of vLLM: that takes seconds."""

from importlib.util import find_spec

from banyan.errors import NotReady


def check() -> None:
    """Raise NotReady with the remedy where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise absent("No module named 'vllm'")


def absent(why: object) -> NotReady:
    """Return the error of an engine without vLLM."""
    remedy = "`make vllm` makes .venv-vllm with it, and `.venv-vllm/bin/banyan` uses it"
    return NotReady(f"resources.engine vllm: vLLM is not installed here ({why}); {remedy}")
