"""The engine of a recipe. Heavy libraries are imported here, in the engine's thread."""

from collections.abc import Callable

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from services.rollout.engines.port import Engine

UNLOADED = PolicyVersion(0, 0, b"")  # the model of the folder, before the first policy


def maker(recipe: Recipe, threads: int | None) -> Callable[[], Engine]:
    """Return a function that builds the engine."""
    if recipe.resources.engine == "scripted":
        return lambda: _scripted(recipe)
    if recipe.resources.engine == "vllm":
        return lambda: _vllm(recipe, threads)
    return lambda: _torch(recipe, threads)


def import_libraries(recipe: Recipe) -> None:
    """Import the libraries of an engine within this process, before it is built."""
    if recipe.resources.engine == "torch":
        import services.rollout.engines.torch_engine.engine
        import services.rollout.engines.torch_engine.loading  # noqa: F401


def _scripted(recipe: Recipe) -> Engine:
    from services.rollout.engines.scripted.engine import build

    return build(recipe.resources.engine_settings, UNLOADED, recipe.resources.max_branches)


def _vllm(recipe: Recipe, threads: int | None) -> Engine:
    from services.chassis import models
    from services.rollout.engines.vllm_engine import start

    if recipe.deterministic:
        raise InvalidInput(
            "deterministic: true needs resources.engine torch; vLLM's bits depend on what runs"
            " together"
        )
    folder = models.resolve(recipe.model, tokenizer=True)
    return start.build(folder, recipe.resources, threads, UNLOADED)


def _torch(recipe: Recipe, threads: int | None) -> Engine:
    import torch

    from services.chassis import models
    from services.rollout.engines.torch_engine import attention_check, loading
    from services.rollout.engines.torch_engine.engine import TorchEngine
    from services.rollout.engines.torch_engine.kv.kv_budget import Limits, share_from

    if threads:
        torch.set_num_threads(threads)
    if recipe.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    folder, device = models.resolve(recipe.model, tokenizer=True), loading.choose_device()
    model = loading.load_model(folder, loading.choose_dtype(recipe.resources.dtype, device), device)
    forward = attention_check.checked(model, recipe.deterministic)
    tokenizer = loading.ChatTokenizer(folder, model)
    resources = recipe.resources
    limits = Limits(
        kv_tokens=resources.kv_tokens,
        max_branches=resources.max_branches,
        deterministic=recipe.deterministic,
        context=loading.context(model),
        share_from=share_from(device, resources.kv_tokens),
    )
    return TorchEngine(forward, tokenizer, limits, UNLOADED)
