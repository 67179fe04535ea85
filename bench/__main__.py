"""`python -m bench [NAME …]`: run the benches in turn; print tables, write bench/results."""

import importlib
import os
import sys

from banyan.runtime import torch_environment

NAMES = (
    "ingest",
    "jail",
    "environments",
    "scores",
    "step",
    "overhead",
    "turns",
    "branches",
    "mixed",
    "packing",
    "saving",
    "planning",
    "pruning",
    "diversity",
    "deltas",
    "refresh",
    "recovery",
)
LONG = (
    "trl",
    "equal",
    "trunks",
    "information",
    "growing",
    "trees",
)  # many minutes each, in cells: by name alone
ONLY_WITH_VLLM = ("vllm",)  # in .venv-vllm
ONLY_WITH_CUDA = ("gpu",)


def main() -> None:
    """Run the named benches, by default all that need no vLLM."""
    torch_environment.settle(os.environ)
    wanted = sys.argv[1:] or NAMES
    known = (*NAMES, *LONG, *ONLY_WITH_VLLM, *ONLY_WITH_CUDA)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"there is no bench {unknown[0]!r}; known: {', '.join(known)}")
    for name in wanted:
        importlib.import_module(f"bench.{name}").run().save()


if __name__ == "__main__":
    main()
