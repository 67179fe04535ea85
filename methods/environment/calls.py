"""The call in an action: what stands between its marks."""

from dataclasses import dataclass

from banyan.environments.malformed import Malformed


@dataclass(frozen=True)
class Marks:
    """The marks of a call.

    begin: before it
    end: behind it; the action ends there
    """

    begin: str
    end: str

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise ValueError(f"{name} must be a text, got {getattr(self, name)!r}")

    def call(self, said: str) -> str:
        """Return the last call of an action without its end mark. Raises Malformed for none."""
        _, begin, call = said.rpartition(self.begin)
        if not begin:
            raise Malformed(f"no {self.begin}…{self.end}")
        return call.strip()
