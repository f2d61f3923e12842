"""gRPC's own interoperability tests: its clients in Go and Java against TestService in Python."""

from __future__ import annotations

import shutil

import pytest
from judging import said

pytestmark = [pytest.mark.judge, pytest.mark.slow]

GO_CASES = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
]


@pytest.mark.parametrize("case", GO_CASES)
def test_go_client(judge, interop_port, case):
    judge("bin/client", "--server_host=127.0.0.1", f"--server_port={interop_port}", f"--test_case={case}")


# The Go client has no cases of compression.
JAVA_CASES = [
    "client_compressed_unary",
    "server_compressed_unary",
    "client_compressed_streaming",
    "server_compressed_streaming",
]


@pytest.mark.parametrize("case", JAVA_CASES)
def test_java_client(program, interop_port, case):
    if shutil.which("java") is None:
        pytest.skip("needs java")
    client = ["java", "-cp", f"{program('java')}/*", "io.grpc.testing.integration.TestServiceClient"]
    server = ["--server_host=127.0.0.1", f"--server_port={interop_port}", "--use_tls=false"]
    said([*client, *server, f"--test_case={case}"])
