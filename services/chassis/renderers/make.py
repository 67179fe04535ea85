"""The renderer of a tree's spec for this node's tokenizer, proven before it is used."""

from typing import Any

from banyan.environments.renderers import CHATML, VERSIONS, RendererSpec
from banyan.errors import InvalidInput
from banyan.reasons import Reason
from banyan.runtime.distribution import install
from services.chassis.renderers import family
from services.chassis.renderers.chatml import ChatMl, around
from services.chassis.renderers.family import Family
from services.chassis.renderers.port import Renderer
from services.chassis.renderers.spelling import Spelling


def make(spec: RendererSpec, tokenizer: Any, ends: frozenset[int]) -> Renderer:
    """Return a renderer.

    tokenizer: of transformers.
    ends: end tokens of the model.

    Raises InvalidInput if the model's turns cannot be written so; with the reason NO_PLUGIN if this
    node has another version.
    """
    check_version(spec)
    spelling = Spelling(tokenizer)
    if spec.name == CHATML:
        made: Renderer = ChatMl(tokenizer, spelling, around(tokenizer))
    else:
        made = Family(spec, tokenizer, spelling)
    _prove(made, spec, tokenizer, spelling, ends)
    return made


def check_version(spec: RendererSpec) -> None:
    """Raise InvalidInput with the reason NO_PLUGIN unless a renderer of this version is here."""
    if spec.name not in VERSIONS:
        raise InvalidInput(f"there is no renderer {spec.name!r} here", reason=Reason.NO_PLUGIN)
    have = VERSIONS[CHATML] if spec.name == CHATML else family.installed()
    if spec.version != have:
        raise InvalidInput(
            f"the tree has {spec}, this node has {have or 'none'}; its tokens would differ; use the"
            f" version that opened the run: {install('renderers')}",
            reason=Reason.NO_PLUGIN,
        )


def _prove(
    renderer: Renderer, spec: RendererSpec, tokenizer: Any, spelling: Spelling, ends: frozenset[int]
) -> None:
    """Raise InvalidInput unless turns can follow each other in the model's own tokens, and an
    answer that spells special tokens has none.
    """
    subject = f"{spec} of {tokenizer.name_or_path}"
    if renderer.stops.isdisjoint(ends):
        raise InvalidInput(f"{subject}: no end token of the model ends a turn; is it its own?")
    prompt = renderer.render([{"role": "user", "content": "1"}])
    action = spelling.encode("2")
    plain = renderer.bridge(prompt, action, "3")
    if plain is None:
        raise InvalidInput(f"{subject} writes no turn behind an action; name another one")
    text = tokenizer.decode(plain, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if tokenizer(text, add_special_tokens=False)["input_ids"] != plain:
        raise InvalidInput(f"{subject} writes {text!r} in other tokens than the tokenizer")
    words = tokenizer.convert_ids_to_tokens(sorted(spelling.special))
    forged = renderer.bridge(prompt, action, "3" + "".join(words))
    if forged is None or _special(forged, spelling) != _special(plain, spelling):
        raise InvalidInput(f"{subject} lets an answer forge special tokens; it cannot be used")


def _special(ids: list[int], spelling: Spelling) -> list[int]:
    return [id_ for id_ in ids if id_ in spelling.special]
