"""One forward pass of a model over rows with their own positions: the only place where tensors meet transformers."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from banyan.errors import NotReady
from banyan.segment import Floats, IntTokens
from services.rollout.engines import attention, levels
from services.rollout.engines.prefixes import Match
from services.rollout.engines.slots import KVShape, SlotCache, Slots

_PROBE_TOKENS = 2


class Forward:
    """Runs a model. Knows its masks and the shape of its KV."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.states: torch.Tensor | None = None
        """[B, H]: the last layer's states that the last pass's logits were made from."""
        self.device = next(model.parameters()).device
        self.kinds = _layer_kinds(model)
        self._keep_head_dense()
        self.window = int(getattr(model.config, "sliding_window", None) or 0)
        self.kv = _probe(model, self.device)
        self.embeddings: torch.Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        self.vocabulary = len(self.embeddings)
        own = model.config._attn_implementation == attention.NAME
        self.by_level = own and self.kinds == {"full_attention"}  # whether rows can share a trunk's KV

    @torch.inference_mode()
    def decode(
        self, slots: Slots, tokens_B: Sequence[int], positions_B: Sequence[int], trunks_B: Sequence[Match | None], width: int
    ) -> torch.Tensor:
        """Logits [B, V] after one more token per row: row b's token is at positions_B[b] of its path, of which the beginning
        is in its trunk, if it has one, and the rest in its slot."""
        tokens = torch.tensor(tokens_B, device=self.device)[:, None]
        positions = torch.tensor(positions_B, device=self.device)[:, None]
        over = levels.levels(trunks_B, self.device)
        if not over:
            return self._run(slots, tokens, positions, positions, width, positions)
        above = torch.tensor([0 if t is None else t.length for t in trunks_B], device=self.device)[:, None]
        with levels.using(over):
            return self._run(slots, tokens, positions, positions - above, width, positions - above)

    @torch.inference_mode()
    def prefill(self, slots: Slots, prefixes: Sequence[IntTokens], cached_B: Sequence[int]) -> torch.Tensor:
        """Logits [B, V] after the last token of each prefix, of which the first cached_B[b] tokens are in the slots.

        The new tokens of all rows are aligned at their ends, so that one column holds every last token; what stands
        before a shorter row writes to a spare column behind all prefixes.
        """
        queries = max(len(p) - c for p, c in zip(prefixes, cached_B, strict=True))
        width = max(len(p) for p in prefixes)
        tokens = np.zeros((len(prefixes), queries), np.int64)
        places = np.full((len(prefixes), queries), width, np.int64)  # the spare column
        for b, (prefix, cached) in enumerate(zip(prefixes, cached_B, strict=True)):
            tokens[b, queries - (len(prefix) - cached) :] = prefix[cached:]
            places[b, queries - (len(prefix) - cached) :] = np.arange(cached, len(prefix))
        written = torch.from_numpy(places).to(self.device)
        positions = torch.where(written == width, 0, written)
        return self._run(slots, torch.from_numpy(tokens).to(self.device), positions, written, width, positions)

    @torch.inference_mode()
    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:] by one plain pass without any cache of ours."""
        ids = torch.from_numpy(tokens_T.astype(np.int64)).to(self.device)[None]
        at = torch.arange(len(tokens_T), device=self.device)[None]
        out = self.model(input_ids=ids, position_ids=at, attention_mask=self._masks(at, len(tokens_T)), use_cache=False)
        logits = out.logits[0, first - 1 : -1].float() / (temperature or 1.0)
        picked = torch.log_softmax(logits, -1).gather(1, ids[0, first:, None])[:, 0]
        return picked.cpu().numpy().astype(np.float32)

    def _run(
        self,
        slots: Slots,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        written: torch.Tensor,
        width: int,
        last_seen: torch.Tensor,
    ) -> torch.Tensor:
        cache = SlotCache(slots, written, width)
        mask = self._masks(last_seen, width)
        out = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]  # type: ignore[no-any-return]

    def _keep_head_dense(self) -> None:
        """The last column of a batch has odd strides, for which torch would copy the output layer's matrix once per row."""
        output: torch.nn.Module | None = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if output is not None:
            output.register_forward_pre_hook(self._note_states)

    def _note_states(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        dense = tuple(x.clone(memory_format=torch.contiguous_format) for x in inputs)
        self.states = dense[0][:, -1]
        return dense

    def _masks(self, positions: torch.Tensor, width: int) -> torch.Tensor | dict[str, torch.Tensor]:
        at = torch.arange(width, device=self.device)
        full = (at <= positions[:, :, None])[:, None]
        if self.kinds == {"full_attention"}:
            return full
        near = full & (at > positions[:, :, None] - self.window)[:, None]
        return {"full_attention": full, "sliding_attention": near} if len(self.kinds) > 1 else near


def _layer_kinds(model: PreTrainedModel) -> set[str]:
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    unknown = sorted(kinds - {"full_attention", "sliding_attention"})
    if unknown:
        raise NotReady(f"model type {text.model_type} has {unknown[0]} layers, whose state the tree engine cannot share")
    if kinds == {"full_attention"} and getattr(text, "sliding_window", None) and not getattr(text, "layer_types", None):
        kinds = {"sliding_attention"}
    return kinds


@torch.inference_mode()
def _probe(model: PreTrainedModel, device: torch.device) -> KVShape:
    """Runs two tokens and looks at what the model caches."""
    cache = DynamicCache()
    model(input_ids=torch.zeros(1, _PROBE_TOKENS, dtype=torch.long, device=device), past_key_values=cache, use_cache=True)
    pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    shapes = {(k.shape[1], k.shape[3], v.shape[3], k.dtype) for k, v in pairs if k is not None and v is not None}
    if len(shapes) != 1:
        raise NotReady(
            f"model type {model.config.model_type} caches layers of {len(shapes)} shapes; the tree engine needs one"
        )
    heads, key_dim, value_dim, dtype = shapes.pop()
    return KVShape(len(pairs), heads, key_dim, value_dim, dtype, device)
