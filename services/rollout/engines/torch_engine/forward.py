"""Forward passes of a model over rows at their own positions."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from banyan.segment import Floats, IntTokens
from services.rollout.engines.torch_engine import attention, cascade_attention, paged_attention
from services.rollout.engines.torch_engine.cuda.graphs import DecodeGraphs, OnCuda
from services.rollout.engines.torch_engine.kv.kv_slots import KvSlotCache, KvSlots
from services.rollout.engines.torch_engine.kv.pages import Pages
from services.rollout.engines.torch_engine.kv.prefix_cache import Match
from services.rollout.engines.torch_engine.paged_attention import Bucketing, PagedCache
from services.rollout.engines.torch_engine.probe import layer_kinds, probe

Mask = torch.Tensor | dict[str, torch.Tensor]


class Forward:
    """Forward passes of a model, with its masks and the shape of its KV.

    states: [B, H], the last layer's states that the last pass's logits were made from.
    kv: shape of the KV.
    in_parts: whether rows can attend to their KV part by part.
    by_level: whether rows can share the KV of a trunk.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.states: torch.Tensor | None = None
        self.device = next(model.parameters()).device
        self.kinds = layer_kinds(model)
        self._hook_output_layer()
        self.inspect()
        inputs = model.get_input_embeddings()
        self.embeddings: torch.Tensor = inputs.weight  # type: ignore[assignment]
        self.vocabulary = len(self.embeddings)

    def inspect(self) -> None:
        """Determine the shape of the model's cache, and whether it attends to exactly that."""
        self.kv, self.in_parts = probe(self.model, self.device)
        self.by_level = self.in_parts and self.kinds == {"full_attention"}
        recordable = self.in_parts and self.device.type == "cuda"
        self.graphs = DecodeGraphs(self._graphed, OnCuda) if recordable else None

    @property
    def window(self) -> int:
        """Tokens that a layer with a window sees; 0 without one."""
        return int(getattr(self.model.config.get_text_config(), "sliding_window", None) or 0)

    @torch.inference_mode()
    def decode(
        self,
        pages: Pages,
        tokens_B: Sequence[int],
        positions_B: Sequence[int],
        trunks_B: Sequence[Match | None],
        tables_B: Sequence[Sequence[int]],
        bucketing: Bucketing,
    ) -> torch.Tensor:
        """Return logits [B, V] after one more token per row.

        Row b's token is at positions_B[b] of its path. The beginning of the path is in its trunk,
        if it has one, and the rest in its pages. Rows should come shortest first, by their pages.

        What the model's own code cannot pass on goes around it, within this thread:

        1. `PagedCache` takes the new keys and values of each layer (`update`) and writes them to
           pages; where rows attend part by part it returns placeholders, which nobody reads.
        2. `using` makes the trunks' levels and the cache current for this thread.
        3. transformers calls our attention by its name (`attention.NAME`); `attention.attend` reads
           what is current and leaves the work to `cascade_attention` and `paged_attention`.
        4. A hook before the output layer keeps the last layer's states in `self.states`.

        On CUDA the same is a graph, unless rows share trunks or shapes are fixed.
        """
        if self.graphs is not None and not bucketing.fixed and not any(trunks_B):
            replayed = self.graphs.decode(pages, tokens_B, positions_B, tables_B)
            if replayed is not None:
                logits, self.states = replayed
                return logits
        tokens = torch.tensor(tokens_B, device=self.device)[:, None]
        positions = torch.tensor(positions_B, device=self.device)[:, None]
        places_B = [
            position - (0 if trunk is None else trunk.length)
            for position, trunk in zip(positions_B, trunks_B, strict=True)
        ]
        places = torch.tensor(places_B, device=self.device)[:, None]
        cache = PagedCache(pages, tables_B, places_B, bucketing, together=not self.in_parts)
        levels = cascade_attention.levels(trunks_B, self.device)
        with (
            cascade_attention.using(levels),
            paged_attention.using(cache if self.in_parts else None),
        ):
            return self._run(cache, tokens, positions, self._masks(places, cache.width))

    def _graphed(
        self, cache: PagedCache, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return logits and states of rows without trunks, as a graph records them."""
        with paged_attention.using(cache):
            logits = self._run(cache, tokens, positions, self._masks(positions, cache.width))
        return logits, self.states

    @torch.inference_mode()
    def prefill(
        self, slots: KvSlots, prefixes: Sequence[IntTokens], cached_B: Sequence[int]
    ) -> torch.Tensor:
        """Return logits [B, V] after the last token of each prefix.

        The first cached_B[b] tokens of prefix b are in the slots. The new tokens of all rows are
        aligned at their ends, so that one column has every last token; the padding before a shorter
        row is written to a spare column behind all prefixes.
        """
        queries = max(len(p) - cached for p, cached in zip(prefixes, cached_B, strict=True))
        width = max(len(p) for p in prefixes)
        tokens = np.zeros((len(prefixes), queries), np.int64)
        places = np.full((len(prefixes), queries), width, np.int64)  # the spare column
        for b, (prefix, cached) in enumerate(zip(prefixes, cached_B, strict=True)):
            begin = queries - (len(prefix) - cached)
            tokens[b, begin:] = prefix[cached:]
            places[b, begin:] = np.arange(cached, len(prefix))
        written = torch.from_numpy(places).to(self.device)
        positions = torch.where(written == width, 0, written)
        cache = KvSlotCache(slots, written, width)
        mask = self._masks(positions, width)
        return self._run(cache, torch.from_numpy(tokens).to(self.device), positions, mask)

    @torch.inference_mode()
    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Return the log-probs of tokens[first:] by one plain pass without a cache."""
        ids = torch.from_numpy(tokens_T.astype(np.int64)).to(self.device)[None]
        positions = torch.arange(len(tokens_T), device=self.device)[None]
        mask = self._masks(positions, len(tokens_T))
        output = self.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
        )
        logits = output.logits[0, first - 1 : -1].float() / (temperature or 1.0)
        picked = torch.log_softmax(logits, -1).gather(1, ids[0, first:, None])[:, 0]
        return picked.cpu().numpy().astype(np.float32)

    def _run(
        self, cache: Cache, tokens: torch.Tensor, positions: torch.Tensor, mask: Mask
    ) -> torch.Tensor:
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]

    def _hook_output_layer(self) -> None:
        """Make the output layer's input dense, and note its states.

        The last column of a batch has strides for which torch would copy the output layer's matrix
        once per row.
        """
        output: torch.nn.Module | None
        output = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if output is not None:
            output.register_forward_pre_hook(self._note_states)

    def _note_states(
        self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        dense = tuple(x.clone(memory_format=torch.contiguous_format) for x in inputs)
        self.states = dense[0][:, -1]
        return dense

    def _masks(self, positions: torch.Tensor, width: int) -> Mask:
        at = torch.arange(width, device=self.device)
        visible = (at <= positions[:, :, None])[:, None]
        full = self._mask(visible)
        if self.kinds == {"full_attention"}:
            return full
        near = self._mask(visible & (at > positions[:, :, None] - self.window)[:, None])
        if len(self.kinds) == 1:
            return near
        return {"full_attention": full, "sliding_attention": near}

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return a mask as the model expects it: other attention may add it to its scores."""
        if self.model.config._attn_implementation == attention.NAME:
            return visible
        dtype = self.kv.dtype
        zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return zeros.masked_fill_(~visible, torch.finfo(dtype).min)
