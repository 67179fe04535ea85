"""Decode passes as graphs: the launches of a pass are recorded once, and repeated as one.

A pass of a small model is thousands of kernels of a few microseconds, and the host takes longer to
launch them than the device to run them. A graph has fixed shapes and places: rows and the widths of
their page tables are rounded up to few values, and the numbers of a pass are copied to where the
graph reads them. Rows of no branch use page 0, which belongs to none. Graphs are of one pool of
pages, and end with it.
"""

import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch

from services.rollout.engines.torch_engine.kv.pages import Pages
from services.rollout.engines.torch_engine.paged_attention import PagedCache

log = logging.getLogger(__name__)

Outputs = tuple[torch.Tensor, torch.Tensor | None]  # logits [B, V] and states [B, H]
Pass = Callable[[PagedCache, torch.Tensor, torch.Tensor], Outputs]

_ROWS, _WIDTH = 8, 128  # least rows, and least tokens of a page table
_TOKENS = 1 << 19  # most tokens that all rows attend to: as many are gathered in each layer
_GRAPHS = 64  # most graphs, those of the last use
_HEADER = 3  # numbers of a row before its pages: token, position, place in the pool


class Recorder(ABC):
    """A recorder of the launches of functions."""

    @abstractmethod
    def record(self, run: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return a function that repeats the launches of `run`, and has its outputs.

        They are overwritten by the next call of it or of another one.
        """


class OnCuda(Recorder):
    """A recorder of CUDA graphs that share their memory."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return a function that repeats the launches of `run`, and has its outputs."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what a first run prepares is not recorded
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            outputs = run()

        def repeat() -> Outputs:
            graph.replay()
            return outputs

        return repeat


class DecodeGraphs:
    """The graphs of a model's decode passes, by rounded numbers of rows and pages.

    run: the pass. recorder: makes the recorder of a pool's graphs.
    """

    def __init__(self, run: Pass, recorder: Callable[[], Recorder]) -> None:
        self._run, self._make_recorder = run, recorder
        self._pool: weakref.ref[Pages] | None = None
        self._recorder: Recorder | None = None
        self._graphs: dict[tuple[int, int], tuple[torch.Tensor, Callable[[], Outputs]]] = {}
        self._refused = False

    def decode(
        self,
        pages: Pages,
        tokens_B: Sequence[int],
        positions_B: Sequence[int],
        tables_B: Sequence[Sequence[int]],
    ) -> Outputs | None:
        """Return logits and states of rows whose KV is in pages alone.

        None if the pass is too wide for a graph, or none could be recorded.
        """
        size = pages.size
        used_B = [position // size + 1 for position in positions_B]
        shape = rounded(len(used_B), _ROWS), rounded(max(used_B), max(1, _WIDTH // size))
        if self._refused or shape[0] * shape[1] * size > _TOKENS:
            return None
        graph = self._of(pages, shape)
        if graph is None:
            return None
        numbers_B_N, repeat = graph
        filled = np.zeros(numbers_B_N.shape, np.int64)
        for row, token, position, table, used in zip(
            filled, tokens_B, positions_B, tables_B, used_B, strict=False
        ):
            row[:_HEADER] = token, position, table[used - 1] * size + position % size
            row[_HEADER : _HEADER + used] = table[:used]
        numbers_B_N.copy_(torch.from_numpy(filled))
        logits, states = repeat()
        rows = len(tokens_B)
        return logits[:rows], None if states is None else states[:rows]

    def _of(
        self, pages: Pages, shape: tuple[int, int]
    ) -> tuple[torch.Tensor, Callable[[], Outputs]] | None:
        """Return the graph of a shape, and the numbers that it reads; None if none can be made."""
        if self._pool is None or self._pool() is not pages:
            self._graphs.clear()
            self._pool, self._recorder = weakref.ref(pages), self._make_recorder()
        graph = self._graphs.pop(shape, None)
        if graph is None:
            try:
                graph = self._record(pages, *shape)
            except RuntimeError as error:
                log.warning("decode passes are no graphs: %s", str(error).splitlines()[0])
                self._refused = True
                self._graphs.clear()
                return None
        self._graphs[shape] = graph
        if len(self._graphs) > _GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        return graph

    def _record(
        self, pages: Pages, rows: int, width: int
    ) -> tuple[torch.Tensor, Callable[[], Outputs]]:
        assert self._recorder is not None, "_of makes it"
        begun = time.perf_counter()
        device = pages.shape.device
        numbers_B_N = torch.zeros(rows, _HEADER + width, dtype=torch.long, device=device)

        def run() -> Outputs:
            tokens, positions = numbers_B_N[:, :1], numbers_B_N[:, 1:2]
            cache = PagedCache.together_at(pages, numbers_B_N[:, 2], numbers_B_N[:, _HEADER:])
            return self._run(cache, tokens, positions)

        repeat = self._recorder.record(run)
        log.info(
            "a graph of %d rows x %d tokens in %.0f ms",
            rows,
            width * pages.size,
            1000 * (time.perf_counter() - begun),
        )
        return numbers_B_N, repeat


def rounded(count: int, least: int) -> int:
    """Round up to one of few values: by less than `least`, or by a quarter at most."""
    step = max(least, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step
