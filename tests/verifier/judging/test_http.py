"""Replies of HTTP in all their forms, and what is none; over TLS only from trusted servers."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.verifier.judging import http

OK = b"HTTP/1.1 200 OK\r\n"


async def answered(data: bytes, *, tls: ssl.SSLContext | None = None) -> http.Response:
    """Return what a server that says these bytes is understood to say."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"http{'s' if tls else ''}://127.0.0.1:{port}/v1/x"
        async with asyncio.timeout(10):
            response = await http.post(url, b"{}", {"A": "b"})
    assert heads[0].startswith(b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nContent-Length: 2\r\nA: b\r\n" in heads[0]
    return response


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabcd", 200, b"abc"),
        (OK + b"transfer-encoding: Chunked\r\n\r\n3;x\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", 200, b"abcd"),
        (OK + b"\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.0 503\r\nRetry-After: 1\r\n\r\n", 503, b""),
    ],
)
async def test_replies_are_read(data: bytes, status: int, body: bytes) -> None:
    response = await answered(data)
    assert (response.status, response.body) == (status, body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x y\r\n\r\n",
        b"HTTP/1.1 many OK\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\nshort",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 99999999999\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        OK + b"x" * 100_000,
        OK + b"a: b\r\n" * 200 + b"\r\n",
        OK + b"\r\n" + b"x" * (5 << 20),
    ],
    ids=range(12),
)
async def test_nonsense_is_no_reply(data: bytes) -> None:
    with pytest.raises((http.BadReply, ConnectionResetError)):
        await answered(data)


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Write a certificate that signs itself; return it, and a server's context that uses it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    made = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    file, private = folder / "cert.pem", folder / "key.pem"
    file.write_bytes(made.public_bytes(pem))
    form: Any = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, private)
    return file, context


async def test_only_a_trusted_server_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, context = certificate(tmp_path)
    http._trusted.cache_clear()
    with pytest.raises(ssl.SSLCertVerificationError):
        await answered(OK + b"Content-Length: 0\r\n\r\n", tls=context)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    http._trusted.cache_clear()
    assert (await answered(OK + b"Content-Length: 0\r\n\r\n", tls=context)).status == 200
    http._trusted.cache_clear()
