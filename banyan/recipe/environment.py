"""The environment that answers the actions of paths."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from banyan.environments.hosting import Hosting
from banyan.plugins.environment import HOSTED, OURS
from banyan.recipe.part import Name, Part, Settings, Variable

_OF_CHILDREN = ("python", "seconds", "memory_mb", "concurrency")
_OF_TOOLS = ("external", "network", "secrets")


class Environment(Part):
    """An environment that answers actions.

    A path that samples the environment's end mark stops there; the answer becomes a turn of the
    conversation, which is context, and the path goes on.
    """

    name: Name
    """Environment: a registered name, or a class of your own as module:class."""
    settings: Settings = {}
    """Settings of the environment; the keywords of a class of your own."""
    turns: Annotated[int, Field(ge=1, le=1000)] = 8
    """Actions of a path that are answered; one more ends it."""
    renderer: Name | None = None
    """Code that writes answers as turns: chatml, llama-3 or qwen3; by default by the exact name of
    the model, and chatml for any that is not known by name."""
    renderer_settings: Settings = {}
    """Settings of the renderer: enable_thinking of qwen3, date_string of llama-3."""
    answer_chars: Annotated[int, Field(ge=64, le=1_000_000)] = 2000
    """Characters of an answer that a path gets; a longer one is cut in its middle."""
    end: str = ""
    """module:class only, and needed there: the mark with which the model ends an action."""
    python: str = ""
    """Interpreter that has what a class of your own imports; empty for Banyan's own."""
    seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Time of a step in a child, with the steps that are repeated before it. In a deterministic run
    a step that uses it up ends its path without a score."""
    memory_mb: Annotated[int, Field(ge=16, le=65_536)] = 1024
    """Memory of a step in a child."""
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    """Children whose steps run at once in one verifier; by default its own number of them."""
    episode_s: Annotated[float, Field(ge=0, le=86_400)] = 0
    """Seconds in which the actions of a tree are answered, from its prompt on; a later one ends its
    path without a score (DEADLINE). 0: any."""
    external: Annotated[list[Name], Field(max_length=256)] = []
    """tools only: names of the tools that may change something outside. Each is called at most once
    for an action, and a path does not fork behind its answer."""
    network: bool = False
    """tools only: True if tools may use the network; the verifier's operator has to allow it, too
    (BANYAN_SANDBOX_NETWORK=1)."""
    secrets: Annotated[list[Variable], Field(max_length=16)] = []
    """tools only: environment variables of the verifier that tools get. The operator has to allow
    each (BANYAN_SCORER_SECRETS)."""

    @property
    def hosting(self) -> Hosting | None:
        """Place where it runs; None for an environment that runs in no child."""
        if self.name in OURS:
            return None
        return Hosting(
            end=self.end,
            python=self.python,
            seconds=self.seconds,
            memory_mb=self.memory_mb,
            concurrency=self.concurrency,
            external=tuple(self.external),
            network=self.network,
            secrets=tuple(self.secrets),
        )

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        fields = type(self).model_fields
        given = [name for name in fields if getattr(self, name) != fields[name].default]
        if self.name in OURS and (wrong := [name for name in _OF_CHILDREN if name in given]):
            raise ValueError(f"{wrong[0]} has no meaning for {self.name}, which runs in no child")
        ours = self.name in (*OURS, *HOSTED)  # a name that nobody knows is refused as such, later
        repeats = (ours or ":" in self.name) and self.name != "tools"
        if repeats and (wrong := [name for name in _OF_TOOLS if name in given]):
            raise ValueError(
                f"{wrong[0]} is for environment tools; what {self.name} does must be possible to"
                " repeat, and it reaches nothing outside"
            )
        servers = self.settings.get("servers", ())
        if not self.network and any(isinstance(one, dict) and "url" in one for one in servers):
            raise ValueError("a server of settings.servers has a url: set network: true")
        if ours and self.end:
            raise ValueError(
                f"end is for a class of your own, module:class; that of {self.name} is one of its "
                "settings: environment.settings.end"
            )
        if ":" in self.name and not self.end.strip():
            raise ValueError(f"end: name the mark with which an action of {self.name} ends")
        return self
