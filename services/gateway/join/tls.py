"""The gateway's TLS identity: a self-signed certificate.

Tokens carry its fingerprint, so no authority is needed.
"""

import datetime
import hashlib
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from banyan.errors import DeadlineMissed, InvalidInput, Refused
from banyan.reasons import Reason
from services.chassis.process import private_files

# The only name in the certificate. Clients ask for it under any address.
NAME = "banyan-gateway"
_FOLDER = "tls"
_VALID_DAYS = 3650  # the token expires, the identity of a state folder need not


@dataclass(frozen=True, slots=True)
class Identity:
    """Paths of the certificate and the key, both PEM."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> bytes:
        return self.certificate.read_bytes()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.pem)


def fingerprint(pem: bytes) -> str:
    """Return the SHA-256 of a certificate's DER form, 64 hex digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()


def certificate(state: Path) -> Path:
    """Return where the certificate of a state folder lies."""
    return state / _FOLDER / "gateway.crt"


def identity(state: Path) -> Identity:
    """Return the identity in a state folder; made if it is missing."""
    paths = Identity(certificate(state), state / _FOLDER / "gateway.key")
    if not (paths.certificate.exists() and paths.key.exists()):
        private_files.folder(state / _FOLDER)
        _make(paths)
    return paths


def _make(target: Identity) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of joining hosts may be behind
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private_files.write(
        target.key,
        key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()),
    )
    target.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def fetch_certificate(address: str, expected: str, deadline_s: float = 10.0) -> bytes:
    """Return the PEM certificate of a gateway if it has the expected fingerprint.

    Nothing is sent to any other gateway.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"address {address!r} must be host:port, as the gateway printed it")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The fingerprint is checked below instead.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=deadline_s) as raw,
            context.wrap_socket(raw, server_hostname=NAME) as wrapped,
        ):
            der = wrapped.getpeercert(binary_form=True)
    except OSError as error:
        raise DeadlineMissed(
            f"no gateway answers with TLS at {address}: {error};"
            " is the address right, and the port open?"
        ) from None
    pem = ssl.DER_cert_to_PEM_cert(der or b"").encode()
    if fingerprint(pem) != expected:
        raise Refused(
            f"the gateway at {address} shows certificate {fingerprint(pem)[:16]}…, but the token"
            f" names {expected[:16]}…: the token is another gateway's, or somebody is in between",
            reason=Reason.WRONG_CERTIFICATE,
        )
    return pem
