"""The joining node's side: trust the gateway that the token names, and ask for admission."""

import re
import socket
from pathlib import Path

from banyan.errors import BanyanError, Refused
from banyan.reasons import Reason
from banyan.runtime import secret
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1.gateway_service_pb2_grpc import GatewayServiceStub
from banyan.wire import schema_version
from services.chassis.process import private_files
from services.chassis.rpc import rpc
from services.gateway.join import jwt, tls, tokens


async def admit(address: str, token_text: str, folder: Path, node_id: str = "") -> dict[str, str]:
    """Join the run that the token opens; return the environment for `python -m services.rollout`.

    Keys go to `folder`. Raise InvalidInput, Refused or TemporaryError with advice on what to do. No
    secret is sent before the gateway has shown the certificate that the token names.
    """
    token = tokens.parse(token_text)
    pem = tls.fetch_certificate(address, token.fingerprint)
    seed = _seed(folder)
    node_id = node_id or f"{_plain(socket.gethostname())}-{jwt.public_key(seed)[-6:].lower()}"
    answer = await _ask(address, pem, token, node_id, jwt.public_key(seed))
    files = {"root": folder / "gateway.crt", "creds": folder / "nats.creds"}
    files["root"].write_bytes(pem)
    private_files.write(files["creds"], jwt.credentials_file(answer.nats_jwt, seed).encode())
    secret.make(folder / secret.FILE)  # of the node's own port
    own = {
        "BANYAN_STATE": str(folder.resolve()),
        "BANYAN_SECRET_FILE": str((folder / secret.FILE).resolve()),
    }
    return _environment(address, token, answer, node_id, files) | own


def _seed(folder: Path) -> str:
    """Return the node's own key, made once, so that the same node comes back as itself."""
    private_files.folder(folder)
    path = folder / "node.seed"
    if not path.exists():
        private_files.write(path, jwt.new_seed(jwt.USER).encode())
    return path.read_text().strip()


async def _ask(
    address: str, pem: bytes, token: tokens.Token, node_id: str, public_key: str
) -> pb.JoinSwarmResponse:
    request = pb.JoinSwarmRequest(
        node_id=node_id,
        public_key=public_key,
        host=socket.gethostname(),
        schema=schema_version.digest(),
    )
    channel = rpc.channel(address, root_pem=pem, token=token.secret, target_name=tls.NAME)
    try:
        method = GatewayServiceStub(channel).JoinSwarm
        answer: pb.JoinSwarmResponse = await rpc.call(
            method, request, deadline_s=10.0, patience_s=10.0
        )
        return answer
    except BanyanError as error:
        if error.reason == Reason.UNAUTHENTICATED:
            raise Refused(
                f"the gateway at {address} refuses the token: {error}", reason=error.reason
            ) from None
        raise
    finally:
        await channel.close(None)


def _environment(
    address: str,
    token: tokens.Token,
    answer: pb.JoinSwarmResponse,
    node_id: str,
    files: dict[str, Path],
) -> dict[str, str]:
    host, port = answer.nats_address.rsplit(":", 1)
    root = str(files["root"].resolve())
    return {
        "BANYAN_RUN": answer.run.run_id,
        "BANYAN_NODE_ID": node_id,
        "BANYAN_JOINED": "1",
        "BANYAN_STORE": address,
        "BANYAN_STORE_TLS_ROOT": root,
        "BANYAN_STORE_TLS_NAME": tls.NAME,
        "BANYAN_STORE_TOKEN": f"{token.secret}.{answer.node_proof}",
        "BANYAN_NATS": f"tls://{host or address.rsplit(':', 1)[0]}:{port}",
        "BANYAN_NATS_CREDS": str(files["creds"].resolve()),
        "BANYAN_NATS_TLS_ROOT": root,
        "BANYAN_NATS_TLS_NAME": tls.NAME,
        "BANYAN_NATS_INBOX": answer.inbox_prefix,
        "BANYAN_GROWTH_CONSUMER": answer.growth_consumer,
    }


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40] or "node"
