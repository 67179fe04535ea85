"""`python -m bench [NAME …]`: run the benches in turn; print tables, write bench/results.

`python -m bench claims [NAME …]` measures published claims instead (docs/claims.md).
"""

import importlib
import os
import sys

from banyan.errors import BanyanError
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
    "trunks",
    "information",
    "growing",
    "trees",
    "sums",
)  # many minutes each, in cells: by name alone
ONLY_WITH_VLLM = ("vllm",)  # in .venv-vllm
ONLY_WITH_CUDA = ("gpu",)
CLAIMS = "claims"


def main() -> None:
    """Run the named benches, by default all that need no vLLM; or measure claims."""
    torch_environment.settle(os.environ)
    if sys.argv[1:2] == [CLAIMS]:
        importlib.import_module("bench.claims.every").main(sys.argv[2:])
        return
    wanted = sys.argv[1:] or NAMES
    if wanted[0] in ("-h", "--help"):
        print(f"python -m bench [NAME ...]; by default {', '.join(NAMES)}; or {CLAIMS} [NAME ...]")
        return
    known = (*NAMES, *LONG, *ONLY_WITH_VLLM, *ONLY_WITH_CUDA)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"there is no bench {unknown[0]!r}; known: {', '.join(known)}")
    try:
        for name in wanted:
            importlib.import_module(f"bench.{name}").run().save()
    except BanyanError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
