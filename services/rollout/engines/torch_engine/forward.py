"""One forward pass of a model over rows with their own positions: the only place where tensors meet transformers."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Cache, DynamicCache, PreTrainedModel

from banyan.errors import NotReady
from banyan.segment import Floats, IntTokens
from services.rollout.engines.torch_engine import attention, cascade_attention, paged_attention
from services.rollout.engines.torch_engine.kv.kv_slots import KVShape, SlotCache, Slots
from services.rollout.engines.torch_engine.kv.pages import Pages
from services.rollout.engines.torch_engine.kv.prefix_cache import Match
from services.rollout.engines.torch_engine.paged_attention import Cuts, PagedCache

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
        self.look()
        self.embeddings: torch.Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        self.vocabulary = len(self.embeddings)

    def look(self) -> None:
        """Looks at what the model caches and attends to."""
        self.kv, self.in_parts = _probe(
            self.model, self.device
        )  # whether rows can attend to their KV part by part
        self.by_level = self.in_parts and self.kinds == {
            "full_attention"
        }  # whether they can share a trunk's

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
        cuts: Cuts,
    ) -> torch.Tensor:
        """Logits [B, V] after one more token per row: row b's token is at positions_B[b] of its path, of which the beginning
        is in its trunk, if it has one, and the rest in its pages. Rows should come shortest first, by what their pages hold.
        """
        tokens = torch.tensor(tokens_B, device=self.device)[:, None]
        positions = torch.tensor(positions_B, device=self.device)[:, None]
        places_B = [
            at - (0 if trunk is None else trunk.length)
            for at, trunk in zip(positions_B, trunks_B, strict=True)
        ]
        places = torch.tensor(places_B, device=self.device)[:, None]
        cache = PagedCache(pages, tables_B, places_B, cuts, together=not self.in_parts)
        with (
            cascade_attention.using(cascade_attention.levels(trunks_B, self.device)),
            paged_attention.using(cache if self.in_parts else None),
        ):
            return self._run(cache, tokens, positions, self._masks(places, cache.width))

    @torch.inference_mode()
    def prefill(
        self, slots: Slots, prefixes: Sequence[IntTokens], cached_B: Sequence[int]
    ) -> torch.Tensor:
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
        cache = SlotCache(slots, written, width)
        return self._run(
            cache,
            torch.from_numpy(tokens).to(self.device),
            positions,
            self._masks(positions, width),
        )

    @torch.inference_mode()
    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:] by one plain pass without any cache of ours."""
        ids = torch.from_numpy(tokens_T.astype(np.int64)).to(self.device)[None]
        at = torch.arange(len(tokens_T), device=self.device)[None]
        out = self.model(
            input_ids=ids,
            position_ids=at,
            attention_mask=self._masks(at, len(tokens_T)),
            use_cache=False,
        )
        logits = out.logits[0, first - 1 : -1].float() / (temperature or 1.0)
        picked = torch.log_softmax(logits, -1).gather(1, ids[0, first:, None])[:, 0]
        return picked.cpu().numpy().astype(np.float32)

    def _run(
        self,
        cache: Cache,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | dict[str, torch.Tensor],
    ) -> torch.Tensor:
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

    def _note_states(
        self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        dense = tuple(x.clone(memory_format=torch.contiguous_format) for x in inputs)
        self.states = dense[0][:, -1]
        return dense

    def _masks(self, positions: torch.Tensor, width: int) -> torch.Tensor | dict[str, torch.Tensor]:
        at = torch.arange(width, device=self.device)
        full = (at <= positions[:, :, None])[:, None]
        if self.kinds == {"full_attention"}:
            return self._given(full)
        near = self._given(full & (at > positions[:, :, None] - self.window)[:, None])
        return (
            {"full_attention": self._given(full), "sliding_attention": near}
            if len(self.kinds) > 1
            else near
        )

    def _given(self, seen: torch.Tensor) -> torch.Tensor:
        """A mask as the model takes it: attention that is not ours may add it to its scores."""
        if self.model.config._attn_implementation == attention.NAME:
            return seen
        dtype = self.kv.dtype
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
            ~seen, torch.finfo(dtype).min
        )


def _layer_kinds(model: PreTrainedModel) -> set[str]:
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    unknown = sorted(kinds - {"full_attention", "sliding_attention"})
    if unknown:
        raise NotReady(
            f"model type {text.model_type} has {unknown[0]} layers, whose state the tree engine cannot share"
        )
    if (
        kinds == {"full_attention"}
        and getattr(text, "sliding_window", None)
        and not getattr(text, "layer_types", None)
    ):
        kinds = {"sliding_attention"}
    return kinds


@torch.inference_mode()
def _probe(model: PreTrainedModel, device: torch.device) -> tuple[KVShape, bool]:
    """Runs two tokens and looks at what the model caches; whether its layers attend, in our attention, to just that.

    Those that cache less than they attend to (latent attention) or attend to parts of it do not.
    """
    cache = DynamicCache()
    with attention.watched() as seen:
        model(
            input_ids=torch.zeros(1, _PROBE_TOKENS, dtype=torch.long, device=device),
            past_key_values=cache,
            use_cache=True,
        )
    pairs = [
        (getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers
    ]
    shapes = {
        (k.shape[1], k.shape[3], v.shape[3], k.dtype)
        for k, v in pairs
        if k is not None and v is not None
    }
    if len(shapes) != 1:
        raise NotReady(
            f"model type {model.config.model_type} caches layers of {len(shapes)} shapes; the tree engine needs one"
        )
    heads, key_dim, value_dim, dtype = shapes.pop()
    kept = len(seen) == len(pairs) and all(
        _same(key, value, pairs, layer) for layer, key, value in seen
    )
    return KVShape(len(pairs), heads, key_dim, value_dim, dtype, device), kept


def _same(
    key: torch.Tensor,
    value: torch.Tensor,
    pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]],
    layer: int | None,
) -> bool:
    """Whether a layer attends to just what it caches."""
    cached = (None, None) if layer is None else pairs[layer]
    return all(
        kept is not None and torch.equal(given, kept)
        for given, kept in zip((key, value), cached, strict=True)
    )
