"""Operator, accounts and users of NATS for one state folder, and the server's configuration.

Our own services use one credentials file with full rights in their account. Joined nodes have an
account of their own, without JetStream, and reach the log only through the exports of the services'
account. The broker answers a request to whatever subject its sender names, with the broker's own
rights, but an answer across an import stays in the importer's account (ADR 036). A node gets a JWT
that the gateway signs with that account's key, scoped to its run (docs/protocol.md, Rights). Keys
are made once and stay in the state folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from services.chassis.process import nats_server, private_files
from services.gateway.join import jwt, nats_permissions
from services.gateway.join.nats_permissions import Scope
from services.gateway.join.tls import Identity

_NODE_VALID_S = 30 * 86_400  # longer than any run; a node that outlives it joins again
_LIMITS = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
# Not for the system account, which has no JetStream.
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
_ACCOUNTS = """\
operator: {operator}
system_account: {system}
resolver: MEMORY
resolver_preload: {{
  {account}: {account_jwt}
  {nodes}: {nodes_jwt}
  {system}: {system_jwt}
}}
{tls}"""
_TLS = """\
tls {{
  cert_file: {certificate}
  key_file: {key}
  # Everyone begins with TLS, the services on loopback too. A server that also greets plainly does
  # so once nobody has begun for a while: far nodes would be greeted before, or services would wait.
  handshake_first: true
}}
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """Seeds of the operator and its accounts: the broker's, the services' and the joined nodes'."""

    operator: str
    system: str
    account: str
    nodes: str


def keys(state: Path) -> Keys:
    """Return the keys in a state folder; missing ones are made."""
    folder = state / "nats" / "keys"
    private_files.folder(folder)
    kinds = {
        "operator": jwt.OPERATOR,
        "system": jwt.ACCOUNT,
        "account": jwt.ACCOUNT,
        "nodes": jwt.ACCOUNT,
    }
    return Keys(**{name: _seed(folder / f"{name}.seed", kind) for name, kind in kinds.items()})


def _seed(path: Path, kind: int) -> str:
    if not path.exists():
        private_files.write(path, jwt.new_seed(kind).encode())
    return path.read_text().strip()


def write_nats_config(
    state: Path, listen: str, store_dir: Path, tls: Identity | None = None
) -> Path:
    """Write the configuration of a NATS server with accounts, and the services' credentials.

    Return the path of the configuration.
    """
    seeds = keys(state)
    config = state / "nats" / "nats.conf"
    system, account, nodes = map(jwt.public_key, (seeds.system, seeds.account, seeds.nodes))
    operator = {"type": "operator", "system_account": system}
    services_claims = _account(_LIMITS | _JETSTREAM, exports=nats_permissions.exports())
    nodes_claims = _account(_LIMITS, imports=nats_permissions.imports(account))
    tls_text = ""
    if tls:
        tls_text = _TLS.format(
            certificate=nats_server.quoted(tls.certificate.resolve()),
            key=nats_server.quoted(tls.key.resolve()),
        )
    text = (nats_server.CONFIG + _ACCOUNTS).format(
        listen=listen,
        store=nats_server.quoted(store_dir),
        max_file_store=nats_server.MAX_FILE_STORE,
        operator=jwt.sign(seeds.operator, jwt.public_key(seeds.operator), "banyan", operator),
        system=system,
        system_jwt=jwt.sign(seeds.operator, system, "SYS", _account(_LIMITS)),
        account=account,
        account_jwt=jwt.sign(seeds.operator, account, "banyan", services_claims),
        nodes=nodes,
        nodes_jwt=jwt.sign(seeds.operator, nodes, "nodes", nodes_claims),
        tls=tls_text,
    )
    private_files.write(config, text.encode())
    service_credentials(state)
    return config


def _account(limits: dict[str, int], **shared: list[dict[str, str]]) -> dict[str, Any]:
    claims = {
        "type": "account",
        "limits": {**limits, "wildcards": True},
        "default_permissions": {"pub": {}, "sub": {}},
    }
    return claims | shared


def service_credentials(state: Path) -> Path:
    """Return the credentials file of our own services, made if it is missing: all rights."""
    path = state / "nats" / "services.creds"
    if not path.exists():
        seed = jwt.new_seed(jwt.USER)
        claims = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        token = jwt.sign(keys(state).account, jwt.public_key(seed), "services", claims)
        private_files.write(path, jwt.credentials_file(token, seed).encode())
    return path


def admit(state: Path, allowed: Scope, node_id: str, node_public_key: str) -> str:
    """Return a user JWT for a node that showed a token.

    The node keeps its seed to itself; only the public key comes here.
    """
    seed_file = state / "nats" / "keys" / "nodes.seed"
    if not seed_file.exists():
        raise InvalidInput(
            f"there is no account key in {seed_file.parent}:"
            " NATS runs without accounts, so no node can join"
        )
    if not (
        node_public_key.startswith("U") and len(node_public_key) == 56 and node_public_key.isalnum()
    ):
        raise InvalidInput(
            f"public_key {node_public_key!r} is not a NATS user key: U and 55 letters and digits"
        )
    return jwt.sign(
        seed_file.read_text().strip(),
        node_public_key,
        node_id,
        allowed.permissions(),
        _NODE_VALID_S,
    )
