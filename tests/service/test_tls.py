"""TLS and mutual TLS on the gRPC port, and what is said of files that cannot be used."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as tritonclient
import trustme
from scripted import ScriptedEngine, affine, model_spec, tensor
from waiting import wait_until
from wire import Wire, done_response, hold, infer_request, output, rows

from service.certificates import Certificates
from service.config import ServeConfig
from service.errors import ConfigError
from service.frontend.grpcio.tls import Changes

WIDTH = 10 << 20


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def install(folder: Path, signer: trustme.CA) -> dict[str, str]:
    """A new certificate in the server's files; each is replaced at once, as tools do."""
    cert = signer.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(pem.bytes() for pem in cert.cert_chain_pems)
    contents = {"cert": chain, "key": cert.private_key_pem.bytes(), "root": signer.cert_pem.bytes()}
    for name, data in contents.items():
        (folder / "new").write_bytes(data)
        os.replace(folder / "new", folder / name)
    names = {"grpc_server_cert": "cert", "grpc_server_key": "key", "grpc_root_cert": "root"}
    return {field: str(folder / name) for field, name in names.items()}


def credentials(signer: trustme.CA, client: trustme.CA | None = None) -> grpc.ChannelCredentials:
    """Of a client that trusts `signer` and, if it has a certificate, has it from `client`."""
    root = signer.cert_pem.bytes()
    if client is None:
        return grpc.ssl_channel_credentials(root)
    own = client.issue_cert("client@example.org")
    return grpc.ssl_channel_credentials(root, own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())


def check(wire: Wire) -> None:
    request = infer_request("affine", x=rows(1))
    np.testing.assert_array_equal(output(wire.infer(request)), (2 * rows(1) + 1).reshape(-1, 4))


def works(address: str, whose: grpc.ChannelCredentials) -> bool:
    """Whether a new connection that trusts these can be had."""
    wire = Wire(address, whose)
    try:
        check(wire)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        return False
    finally:
        wire.close()
    return True


def refused(wire: Wire) -> None:
    assert wire.error(infer_request("affine", x=rows(1)))[0] == "UNAVAILABLE"
    wire.close()


class TestServing:
    def test_unary_and_stream(self, serve, tmp_path, ca):
        service, _ = serve(affine(), grpc_use_ssl=True, **install(tmp_path, ca))
        wire = Wire(service.address, credentials(ca))
        check(wire)
        stream = wire.stream().send(*[infer_request("affine", x=rows(1)) for _ in range(3)]).half_close()
        assert len(stream.rest()) == 3
        wire.close()

    def test_ten_megabytes_each_way(self, serve, tmp_path, ca):
        spec = model_spec(
            "echo", [tensor("x", "UINT8", WIDTH)], [tensor("y", "UINT8", WIDTH)], max_batch_size=1
        )
        echo = ScriptedEngine(spec, lambda x: [x])
        sizes = {"arena_mb": 64, "output_arena_mb": 64}
        service, _ = serve(echo, grpc_use_ssl=True, **sizes, **install(tmp_path, ca))
        wire = Wire(service.address, credentials(ca))
        sent = (np.arange(WIDTH) % 251).astype(np.uint8)[None]
        np.testing.assert_array_equal(output(wire.infer(infer_request("echo", x=sent)), 0, np.uint8), sent)
        wire.close()

    def test_a_client_without_tls_fails_alone(self, serve, tmp_path, ca):
        service, plain = serve(affine(), grpc_use_ssl=True, **install(tmp_path, ca))
        wire = Wire(service.address, credentials(ca))
        check(wire)
        refused(plain)
        check(wire)
        wire.close()

    def test_mutual(self, serve, tmp_path, ca):
        service, _ = serve(affine(), grpc_use_ssl_mutual=True, **install(tmp_path, ca))
        wire = Wire(service.address, credentials(ca, ca))
        check(wire)
        refused(Wire(service.address, credentials(ca)))
        refused(Wire(service.address, credentials(ca, trustme.CA())))
        check(wire)
        wire.close()

    def test_a_new_certificate_is_for_new_connections(self, serve, tmp_path, ca):
        service, _ = serve(affine(), grpc_use_ssl=True, **install(tmp_path, ca))
        old, other = Wire(service.address, credentials(ca)), trustme.CA()
        check(old)
        install(tmp_path, other)
        wait_until(lambda: works(service.address, credentials(other)), "the new certificate")
        new = Wire(service.address, credentials(other))
        check(new)
        check(old)
        refused(Wire("localhost:" + service.address.rpartition(":")[2], credentials(ca)))
        old.close()
        new.close()

    def test_files_that_make_no_sense_are_said_and_those_before_go_on(self, serve, tmp_path, ca, capfd):
        service, _ = serve(affine(), grpc_use_ssl=True, **install(tmp_path, ca))
        said = ""

        def is_said() -> bool:
            nonlocal said
            assert works(service.address, credentials(ca))
            said += capfd.readouterr().err
            return "the one before goes on: --grpc-server-key" in said

        (tmp_path / "key").write_bytes(b"no key")
        wait_until(is_said, "the refusal")
        assert works(service.address, credentials(ca))

    def test_a_rotation_under_load_fails_no_call(self, serve, tmp_path, ca):
        service, _ = serve(affine(), grpc_use_ssl=True, **install(tmp_path, ca))
        busy, other = Wire(service.address, credentials(ca)), trustme.CA()
        check(busy)
        done = threading.Event()

        def load() -> int:
            count = 0
            while not done.is_set() or count == 0:
                check(busy)
                count += 1
            return count

        with ThreadPoolExecutor(4) as pool:
            counts = [pool.submit(load) for _ in range(4)]
            try:
                install(tmp_path, other)
                wait_until(lambda: works(service.address, credentials(other)), "the new certificate")
            finally:
                done.set()
            assert all(count.result() > 0 for count in counts)
        busy.close()

    def test_every_io_thread_has_the_certificate_and_the_next_one(self, serve, tmp_path, ca):
        service, _ = serve(affine(), grpc_use_ssl=True, io_threads=3, **install(tmp_path, ca))
        old, other = [Wire(service.address, credentials(ca)) for _ in range(6)], trustme.CA()
        for wire in old:
            check(wire)
        install(tmp_path, other)
        for _ in range(3):  # the threads get it one after the other
            wait_until(lambda: works(service.address, credentials(other)), "the new certificate")
        new = [Wire(service.address, credentials(other)) for _ in range(6)]
        for wire in old + new:
            check(wire)
            wire.close()

    def test_a_client_of_an_authority_that_is_not_a_root(self, serve, tmp_path, ca):
        files = install(tmp_path, ca)
        between = ca.create_child_ca()
        (tmp_path / "root").write_bytes(between.cert_pem.bytes())
        service, _ = serve(affine(), grpc_use_ssl_mutual=True, **files)
        assert works(service.address, credentials(ca, between))

    def test_tritonclient(self, serve, tmp_path, ca):
        service, _ = serve(affine(), grpc_use_ssl=True, **install(tmp_path, ca))
        with tritonclient.InferenceServerClient(
            service.address, ssl=True, root_certificates=str(tmp_path / "root")
        ) as client:
            x = tritonclient.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(rows(1))
            assert client.is_server_ready()
            np.testing.assert_array_equal(client.infer("affine", [x]).as_numpy("y"), 2 * rows(1) + 1)

    def test_a_drain_sends_the_answers_that_are_waited_for(self, serve, tmp_path, ca):
        engine = affine()
        service, _ = serve(engine, grpc_use_ssl=True, **install(tmp_path, ca))
        wire = Wire(service.address, credentials(ca))
        first = hold(engine, wire, infer_request("affine", x=rows(1)))
        service.begin_drain()
        engine.gate.open()
        np.testing.assert_array_equal(output(done_response(first)), 2 * rows(1) + 1)
        wire.close()


def test_a_change_that_makes_no_sense_is_said_once_and_not_used(tmp_path, ca):
    files, said = install(tmp_path, ca), []
    paths = files["grpc_server_cert"], files["grpc_server_key"], files["grpc_root_cert"]
    certificates = Certificates(*paths, said.append)
    before = certificates.newest()
    (tmp_path / "key").write_bytes(b"no key")
    assert certificates.newest() == certificates.newest() == before
    (words,) = said
    assert "--grpc-server-key" in words
    install(tmp_path, ca)
    assert certificates.newest() != before


def test_grpc_is_told_of_changes_alone(tmp_path, ca):
    paths = tuple(install(tmp_path, ca).values())
    files = Certificates(*paths, lambda words: None)
    changes = Changes(files, files.newest())
    assert changes() is None
    install(tmp_path, ca)
    assert isinstance(changes(), grpc.ServerCertificateConfiguration)
    assert changes() is None


def fault_of(**settings) -> str:
    with pytest.raises(ConfigError) as caught:
        ServeConfig((__file__,), **settings).check()
    (fault,) = caught.value.faults
    return fault


@pytest.mark.parametrize("name", ["cert", "key", "root"])
@pytest.mark.parametrize("damage, words", [(None, "No such file"), (b"text", "PEM"), (b"", "PEM")])
def test_a_file_that_cannot_be_used_is_named_by_its_flag(tmp_path, ca, name, damage, words):
    files = install(tmp_path, ca)
    (tmp_path / name).unlink()
    if damage is not None:
        (tmp_path / name).write_bytes(damage)
    fault = fault_of(grpc_use_ssl_mutual=True, **files)
    flag = {"cert": "--grpc-server-cert", "key": "--grpc-server-key", "root": "--grpc-root-cert"}[name]
    assert fault.startswith(f"{flag} '{tmp_path / name}'")
    assert words in fault


def test_what_stands_between_certificates_may_be_in_any_language(tmp_path, ca):
    files = install(tmp_path, ca)
    root = tmp_path / "root"
    root.write_bytes("Főtanúsítvány\n".encode() + root.read_bytes())
    ServeConfig((__file__,), grpc_use_ssl_mutual=True, **files).check()


@pytest.mark.parametrize("name", ["cert", "key", "root"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, ca, name):
    files = install(tmp_path, ca)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert "expected a regular file" in fault_of(grpc_use_ssl_mutual=True, **files)


def test_a_key_of_another_certificate(tmp_path, ca):
    files = install(tmp_path, ca)
    (tmp_path / "key").write_bytes(ca.issue_cert("localhost").private_key_pem.bytes())
    assert "does not belong to --grpc-server-cert" in fault_of(grpc_use_ssl=True, **files)


@pytest.mark.parametrize("field", ["grpc_server_cert", "grpc_server_key", "grpc_root_cert"])
def test_a_file_that_is_not_named(tmp_path, ca, field):
    files = install(tmp_path, ca) | {field: ""}
    assert f"needs --{field.replace('_', '-')}" in fault_of(grpc_use_ssl_mutual=True, **files)


def test_files_without_tls_are_a_mistake(tmp_path, ca):
    assert "--grpc-use-ssl" in fault_of(**install(tmp_path, ca))
