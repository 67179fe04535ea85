"""The part of Banyan that runs inside vLLM's own processes.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). It adds the
weight transfer backend `banyan`, and ties the process to the one that started it, so that none
outlives the node.
"""

import multiprocessing
import signal

BACKEND = "banyan"


def register() -> None:
    """Register the backend in this process, and tie the process to the one that started it."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from services.chassis.process import parent_death

    if BACKEND not in WeightTransferEngineFactory._registry:
        from services.rollout.engines.vllm_engine import weight_transfer

        WeightTransferEngineFactory.register_engine(BACKEND, weight_transfer.backend())
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        # A process that waits for another ignores milder signals.
        parent_death.die_with(parent.pid, signal.SIGKILL)
