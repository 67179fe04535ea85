"""Who may do what on NATS: operator, accounts and users of one state folder, and the server's configuration (PROTOCOL 8).

Our own services use one credentials file with full rights in their account. Joined nodes have an account of their own,
without JetStream, and meet the log only through what the services' account exports: the broker answers a request wherever
its sender says, with the broker's own rights, and an answer across an import stays in the importer's account (ADR 036).
A node gets a JWT that the gateway signs with that account's key, scoped to its run. Keys are made once and stay in the state
folder.
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
# the system account has none
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
_CONFIG = """\
server_name: banyan
listen: "{listen}"
max_payload: 1MB
jetstream {{
  store_dir: "{store}"
  max_file_store: {max_file_store}
  # The default syncs every two minutes and can lose acknowledged writes.
  sync_interval: always
}}
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
  cert_file: "{certificate}"
  key_file: "{key}"
  # Nodes that join begin with TLS and never speak plainly; services on loopback say nothing first and are greeted plainly.
  handshake_first: auto
}}
allow_non_tls: true
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """Seeds of the operator and of its accounts: the broker's, the services', the joined nodes'."""

    operator: str
    system: str
    account: str
    nodes: str


def keys(state: Path) -> Keys:
    """The keys in a state folder, made if they are not there."""
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
    """The configuration of a NATS server with accounts, and the services' credentials beside it. Its path."""
    made = keys(state)
    config = state / "nats" / "nats.conf"
    system, account, nodes = map(jwt.public_key, (made.system, made.account, made.nodes))
    operator = {"type": "operator", "system_account": system}
    text = _CONFIG.format(
        listen=listen,
        store=store_dir,
        max_file_store=nats_server.MAX_FILE_STORE,
        operator=jwt.sign(made.operator, jwt.public_key(made.operator), "banyan", operator),
        system=system,
        system_jwt=jwt.sign(made.operator, system, "SYS", _account(_LIMITS)),
        account=account,
        account_jwt=jwt.sign(
            made.operator,
            account,
            "banyan",
            _account(_LIMITS | _JETSTREAM, exports=nats_permissions.exports()),
        ),
        nodes=nodes,
        nodes_jwt=jwt.sign(
            made.operator,
            nodes,
            "nodes",
            _account(_LIMITS, imports=nats_permissions.imports(account)),
        ),
        tls=_TLS.format(certificate=tls.certificate.resolve(), key=tls.key.resolve())
        if tls
        else "",
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
    """The credentials file of our own services: all rights in the account. Made if it is not there."""
    path = state / "nats" / "services.creds"
    if not path.exists():
        seed = jwt.new_seed(jwt.USER)
        claims = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        token = jwt.sign(keys(state).account, jwt.public_key(seed), "services", claims)
        private_files.write(path, jwt.credentials_file(token, seed).encode())
    return path


def admit(state: Path, allowed: Scope, node_id: str, node_public_key: str) -> str:
    """A user JWT for a node that showed a token. The node keeps its seed to itself; only the public key comes here."""
    seed_file = state / "nats" / "keys" / "nodes.seed"
    if not seed_file.exists():
        raise InvalidInput(
            f"there is no account key in {seed_file.parent}: NATS runs without accounts, so no node can join"
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
