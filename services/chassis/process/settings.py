"""Settings of a service: a frozen dataclass whose fields are read from `BANYAN_<FIELD>`."""

import dataclasses
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from banyan.errors import InvalidInput

S = TypeVar("S", bound="Settings")
LEAST_SECRET = 32  # characters: 128 bits as hex


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that all services share.

    A service adds its own fields, each with a default and a docstring.
    """

    nats: str = "nats://127.0.0.1:4222"
    """Address of the NATS server."""
    nats_creds: str = ""
    """Credentials file for NATS; empty if the server requires none."""
    nats_tls_root: str = ""
    """PEM file of the only certificate to trust for NATS; empty for no TLS."""
    nats_tls_name: str = ""
    """Name in that certificate."""
    store: str = "127.0.0.1:7101"
    """host:port of the treestore."""
    secret_file: str = ""
    """File with the secret that every call between services must carry; empty for none."""
    listen: str = "127.0.0.1:0"
    """host:port that the service's gRPC server binds; port 0 picks a free one."""
    state: Path = Path(".banyan")
    """Folder for the service's files on this host."""
    log_level: str = "info"
    """debug, info, warning or error."""

    @property
    def secret(self) -> str:
        """Content of `secret_file`, read on access: in no environment and no `repr` of this."""
        if not self.secret_file:
            return ""
        setting = f"BANYAN_SECRET_FILE={self.secret_file!r}"
        try:
            secret = Path(self.secret_file).read_text().strip()
        except OSError as error:
            raise InvalidInput(f"{setting} cannot be read: {error.strerror}") from None
        if len(secret) < LEAST_SECRET:
            raise InvalidInput(f"{setting} must hold at least {LEAST_SECRET} characters")
        return secret


def read(cls: type[S], environ: Mapping[str, str] = os.environ) -> S:
    """Return the settings in the environment.

    Raise InvalidInput that names the variable, its value and the values it may have.
    """
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        variable = f"BANYAN_{field.name.upper()}"
        if variable in environ:
            values[field.name] = _convert(variable, environ[variable], hints[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidInput(f"{variable} is not set; {cls.__module__} needs it")
    return cls(**values)


def _convert(variable: str, text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        if not text:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is bool:
        if text.lower() not in ("0", "1", "true", "false"):
            raise InvalidInput(f"{variable}={text!r} must be 1 or 0")
        return text.lower() in ("1", "true")
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{variable}={text!r} must be of type {kind.__name__}") from None
