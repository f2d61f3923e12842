"""Every way to a server that the client commands know: Unix-domain sockets, TLS, and what is no server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from fake_server import FakeServer, Run
from typer.testing import Result

COMMANDS = ["infer", "models", "bench"]


@pytest.fixture
def ask(run: Run, tmp_path: Path) -> Run:
    """``ask(command, url, *flags)``: the least that each client command does."""
    (tmp_path / "x.json").write_text("[[1, 2, 3, 4]]")
    arguments = {"infer": ["affine", tmp_path / "x.json"], "models": [], "bench": ["affine", "-n", 2]}

    def asked(command: str, url: str, *flags: object) -> Result:
        return run(command, *arguments[command], "--url", url, "--json", *flags)

    return asked


def works(result: Result) -> bool:
    return result.exit_code == 0 and bool(json.loads(result.stdout))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_unix_domain_socket_is_named_as_grpc_names_it(
    ask: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    path = tmp_path / "grpc.sock"
    server = FakeServer(f"unix:{path}")
    monkeypatch.chdir(tmp_path)
    for url in (f"unix:{path}", f"unix://{path}", "unix:grpc.sock"):
        result = ask(command, url)
        assert works(result), result.output
    server.stop()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_socket_that_is_not_there_is_said(ask: Run, tmp_path: Path, command: str) -> None:
    result = ask(command, f"unix:{tmp_path}/grpc.sock")
    assert result.exit_code == 1
    assert f"nothing answers at unix:{tmp_path}/grpc.sock (No such file or directory)" in result.stderr
    assert "--url HOST:PORT or unix:FILE" in result.stderr


# ---- TLS ----


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PEM files by name: root (who signs), cert and key (a client's), other_key, other_root, nonsense."""
    folder = tmp_path_factory.mktemp("pem")
    own, other = ca.issue_cert("client@example.org"), ca.issue_cert("other@example.org")
    contents = {
        "root": ca.cert_pem,
        "cert": own.cert_chain_pems[0],
        "key": own.private_key_pem,
        "other_key": other.private_key_pem,
        "other_root": trustme.CA().cert_pem,
        "nonsense": trustme.Blob(b"nonsense"),
    }
    for name, blob in contents.items():
        blob.write_to_path(folder / name)
    return {name: folder / name for name in contents}


def server_of(ca: trustme.CA, mutual: bool) -> FakeServer:
    cert = ca.issue_cert("localhost", "127.0.0.1")
    pair = (cert.private_key_pem.bytes(), b"".join(pem.bytes() for pem in cert.cert_chain_pems))
    root = ca.cert_pem.bytes() if mutual else None
    return FakeServer(credentials=grpc.ssl_server_credentials([pair], root, mutual))


@pytest.fixture
def tls(ca: trustme.CA) -> Iterator[FakeServer]:
    server = server_of(ca, mutual=False)
    yield server
    server.stop()


@pytest.fixture
def mutual(ca: trustme.CA) -> Iterator[FakeServer]:
    server = server_of(ca, mutual=True)
    yield server
    server.stop()


@pytest.mark.parametrize("command", COMMANDS)
def test_tls_with_a_root_certificate(ask: Run, tls: FakeServer, files: dict[str, Path], command: str) -> None:
    result = ask(command, tls.url, "--ssl-root-cert", files["root"])
    assert works(result), result.output


def test_tls_with_the_roots_of_the_system(
    ask: Run, tls: FakeServer, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(files["root"]))  # OpenSSL's name for another file than its own
    assert works(ask("models", tls.url, "--ssl"))
    monkeypatch.setenv("SSL_CERT_FILE", str(files["other_root"]))
    assert "is not trusted (" in ask("models", tls.url, "--ssl").stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_mutual_tls(ask: Run, mutual: FakeServer, files: dict[str, Path], command: str) -> None:
    flags = ["--ssl-root-cert", files["root"], "--ssl-client-cert", files["cert"]]
    result = ask(command, mutual.url, *flags, "--ssl-client-key", files["key"])
    assert works(result), result.output


def test_a_client_without_a_certificate_is_told_that_one_may_be_wanted(
    ask: Run, mutual: FakeServer, files: dict[str, Path]
) -> None:
    result = ask("models", mutual.url, "--ssl-root-cert", files["root"])
    assert result.exit_code == 1
    assert f"nothing answers at {mutual.url} (" in result.stderr
    assert "--ssl-client-cert FILE and --ssl-client-key FILE" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_plain_client_is_told_that_the_port_may_speak_tls(ask: Run, tls: FakeServer, command: str) -> None:
    result = ask(command, tls.url)
    assert result.exit_code == 1
    assert f"nothing answers at {tls.url} (" in result.stderr
    assert "it may speak TLS (--ssl, or --ssl-root-cert FILE), or be no gRPC server" in result.stderr
    assert "headrace serve" not in result.stderr


def test_a_tls_client_of_a_plain_port_is_told_so(
    ask: Run, server: FakeServer, files: dict[str, Path]
) -> None:
    result = ask("models", server.url, "--ssl-root-cert", files["root"])
    assert result.exit_code == 1
    assert f"nothing answers at {server.url} (" in result.stderr and "it may speak no TLS" in result.stderr


def test_a_certificate_of_somebody_else_is_not_trusted(
    ask: Run, tls: FakeServer, files: dict[str, Path]
) -> None:
    result = ask("models", tls.url, "--ssl-root-cert", files["other_root"])
    assert result.exit_code == 1
    assert f"the certificate of the server at {tls.url} is not trusted (" in result.stderr
    assert "--ssl-root-cert FILE" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"root-cert": "nowhere"}, "--ssl-root-cert '{nowhere}' cannot be read: No such file or directory"),
        ({"root-cert": "nonsense"}, "--ssl-root-cert '{nonsense}' holds no certificate: expected PEM text"),
        ({"client-cert": "cert"}, "--ssl-client-cert '{cert}' needs --ssl-client-key too"),
        ({"client-key": "key"}, "--ssl-client-key '{key}' needs --ssl-client-cert too"),
        (
            {"client-cert": "cert", "client-key": "other_key"},
            "--ssl-client-key '{other_key}' does not belong to --ssl-client-cert '{cert}'",
        ),
        (
            {"client-cert": "cert", "client-key": "nonsense"},
            "--ssl-client-key '{nonsense}' holds no private key for '{cert}': expected PEM text",
        ),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_cannot_be_used_are_named_with_their_flags(
    ask: Run, nobody: str, files: dict[str, Path], command: str, flags: dict[str, str], words: str
) -> None:
    files = {**files, "nowhere": files["root"].parent / "nowhere"}
    given = [part for name, file in flags.items() for part in (f"--ssl-{name}", files[file])]
    result = ask(command, nobody, *given)
    assert result.exit_code == 1 and words.format(**files) in result.stderr


# ---- what is no server ----


@pytest.mark.parametrize("flags", [[], ["--ssl"]], ids=["plain", "tls"])
def test_what_hangs_up_at_once_is_no_server(ask: Run, flags: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"127.0.0.1:{listening.getsockname()[1]}"
        result = ask("models", url, *flags)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert result.exit_code == 1
    assert f"nothing answers at {url} (" in result.stderr and "be no gRPC server" in result.stderr
