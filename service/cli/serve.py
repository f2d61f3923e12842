"""``headrace serve``: flags to a ServeConfig, then the supervisor runs until it is told to end."""

from __future__ import annotations

import ctypes
import signal
from typing import Annotated

import typer

from service.cli import connections
from service.cli.common import examples

EPILOG = examples(
    "headrace serve model.onnx                       # gRPC on 127.0.0.1:8001, metrics on 8002",
    "headrace serve model.onnx --max-batch-size 8    # never more than 8 rows at once",
    "headrace serve a.onnx b.onnx --host 0.0.0.0     # two models, for other machines too",
    "headrace serve models/                          # a repository: models/NAME/VERSION/model.onnx",
    "headrace serve models/ --model-control-mode explicit --load-model a   # the rest when a client asks",
    "headrace serve model.onnx --grpc-port 0 --ready-fd 3 3>ready.json    # a free port: see ready.json",
    "kill -TERM PID                                  # finishes what was accepted, then ends",
)

_PR_SET_PDEATHSIG = 1


def serve(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL.onnx|REPOSITORY",
            help="Model files, each named by its stem, version 1; or model repositories, folders of "
            "NAME/config.pbtxt (may be left out) and NAME/VERSION/model.onnx.",
        ),
    ],
    grpc_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the gRPC service; 0 takes a free one.")
    ] = 8001,
    metrics_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of /metrics, /healthz and /readyz; 0 takes a free one.")
    ] = 8002,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is every one of this machine."),
    ] = "127.0.0.1",
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Rows of a batch at most; 0 turns batching off. Left out: 32 where the model can batch. "
            "This and the next two: for models whose config.pbtxt says nothing else.",
            show_default=False,
        ),
    ] = None,
    max_batch_wait_us: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="How long a free engine may be kept waiting for a fuller batch, in microseconds.",
        ),
    ] = 0,
    instances: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Batches of a model that may execute at once. Left out: 1; on a device one per stream.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]",
            help="The GPUs that run the models which need one, counted as CUDA does, with a worker process "
            "for each; a model runs on one of them.",
        ),
    ] = "0",
    streams: Annotated[
        int, typer.Option(metavar="N", help="CUDA streams of each GPU; all its models share them.")
    ] = 4,
    server_name: Annotated[
        str, typer.Option(metavar="NAME", help="What ServerMetadata calls this server.")
    ] = "headrace",
    frontend: Annotated[
        str | None,
        typer.Option(
            metavar="native|grpcio",
            show_default="native where it was built",
            help="Which front end listens: C from the socket to the queue, or gRPC's own library.",
        ),
    ] = None,
    io_threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="a quarter of the cores, 8 at most",
            help="I/O threads of the native front end, each with an input arena.",
        ),
    ] = None,
    arena_mb: Annotated[int, typer.Option(metavar="MB", help="Memory for requests on their way in.")] = 256,
    output_arena_mb: Annotated[
        int, typer.Option(metavar="MB", help="Memory for answers on their way out.")
    ] = 256,
    spill_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            help="What each of these two may have more, for large requests and answers; 0: nothing.",
        ),
    ] = 4096,
    slots_per_lane: Annotated[
        int, typer.Option(metavar="N", help="Requests in flight at most; more are refused, never queued.")
    ] = 1024,
    max_calls: Annotated[
        int, typer.Option(metavar="N", help="Inference calls and streams in progress at most.")
    ] = 4096,
    answer_mb: Annotated[
        int, typer.Option(metavar="MB", help="Memory for answers that clients have not read yet.")
    ] = 1024,
    status_codes: Annotated[
        str,
        typer.Option(
            metavar="headrace|triton",
            help="Whose status codes and texts, where they differ; triton also refuses what is larger than a "
            "batch, in place of splitting it.",
        ),
    ] = "headrace",
    model_control_mode: Annotated[
        str,
        typer.Option(
            metavar="none|explicit",
            help="Who says what is loaded: none loads everything at the start; explicit loads what "
            "--load-model names, and what clients ask for (RepositoryModelLoad).",
        ),
    ] = "none",
    load_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A model to load at the start, under explicit; may be repeated; '*' is every model.",
            show_default=False,
        ),
    ] = None,
    grpc_unix_socket: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A Unix-domain socket to listen on too; clients name it unix:FILE.",
            show_default=False,
        ),
    ] = "",
    grpc_infer_response_compression_level: Annotated[
        str,
        typer.Option(
            metavar="none|low|medium|high",
            help="How hard answers to inference are compressed (gzip), for clients that read that.",
        ),
    ] = "none",
    max_message_bytes: Annotated[
        int, typer.Option(metavar="BYTES", help="Size of a request at most; larger ones are refused.")
    ] = 2**31 - 1,
    drain_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long accepted requests may take to finish after SIGTERM."),
    ] = 30.0,
    grpc_keepalive_time: connections.KeepaliveTime = 7_200_000,
    grpc_keepalive_timeout: connections.KeepaliveTimeout = 20_000,
    grpc_keepalive_permit_without_calls: connections.KeepalivePermitWithoutCalls = 1,
    grpc_http2_max_pings_without_data: connections.MaxPingsWithoutData = 2,
    grpc_http2_min_recv_ping_interval_without_data: connections.MinRecvPingIntervalWithoutData = 5000,
    grpc_http2_max_ping_strikes: connections.MaxPingStrikes = 0,
    grpc_max_connection_age: connections.MaxConnectionAge = 0,
    grpc_max_connection_age_grace: connections.MaxConnectionAgeGrace = 0,
    grpc_use_ssl: Annotated[bool, typer.Option("--grpc-use-ssl", help="TLS on the gRPC port.")] = False,
    grpc_use_ssl_mutual: Annotated[
        bool,
        typer.Option(
            "--grpc-use-ssl-mutual", help="TLS, and clients must show a certificate of --grpc-root-cert."
        ),
    ] = False,
    grpc_server_cert: Annotated[
        str,
        typer.Option(metavar="FILE", help="The server's certificate and its chain, PEM.", show_default=False),
    ] = "",
    grpc_server_key: Annotated[
        str, typer.Option(metavar="FILE", help="The certificate's private key, PEM.", show_default=False)
    ] = "",
    grpc_root_cert: Annotated[
        str,
        typer.Option(metavar="FILE", help="Who signs clients' certificates, PEM.", show_default=False),
    ] = "",
    ready_fd: Annotated[
        int | None,
        typer.Option(
            metavar="FD",
            help="Descriptor that gets one line of JSON (ports, models) once ready.",
            show_default=False,
        ),
    ] = None,
    end_with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
) -> None:
    """Serve models over gRPC (Open Inference Protocol v2, as Triton's clients speak it).

    Prints one line when ready. SIGTERM or Ctrl-C finishes accepted requests and ends with exit code 0. What
    cannot start (a busy port, a file that is no model, a wrong flag) is said in full and ends with exit
    code 2.
    """
    from service.config import ServeConfig, devices_from
    from service.cores import default_io_threads
    from service.installation import default_frontend
    from service.supervisor import serve as run_service

    if end_with_parent:
        end_with_parent_process()
    try:
        devices = devices_from(device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from None
    config = ServeConfig(
        model_paths=tuple(model),
        host=host,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        max_batch_size=max_batch_size,
        max_batch_wait_us=max_batch_wait_us,
        instances=instances,
        devices=devices,
        streams=streams,
        server_name=server_name,
        drain_timeout_s=drain_timeout,
        arena_mb=arena_mb,
        output_arena_mb=output_arena_mb,
        spill_mb=spill_mb,
        slots_per_lane=slots_per_lane,
        max_message_bytes=max_message_bytes,
        max_calls=max_calls,
        answer_mb=answer_mb,
        status_codes=status_codes,
        grpc_unix_socket=grpc_unix_socket,
        grpc_infer_response_compression_level=grpc_infer_response_compression_level,
        frontend=frontend or default_frontend(),
        model_control_mode=model_control_mode,
        load_models=tuple(load_model or ()),
        io_threads=default_io_threads() if io_threads is None else io_threads,
        grpc_keepalive_time_ms=grpc_keepalive_time,
        grpc_keepalive_timeout_ms=grpc_keepalive_timeout,
        grpc_keepalive_permit_without_calls=bool(grpc_keepalive_permit_without_calls),
        grpc_http2_max_pings_without_data=grpc_http2_max_pings_without_data,
        grpc_http2_min_recv_ping_interval_without_data_ms=grpc_http2_min_recv_ping_interval_without_data,
        grpc_http2_max_ping_strikes=grpc_http2_max_ping_strikes,
        grpc_max_connection_age_ms=grpc_max_connection_age,
        grpc_max_connection_age_grace_ms=grpc_max_connection_age_grace,
        grpc_use_ssl=grpc_use_ssl,
        grpc_use_ssl_mutual=grpc_use_ssl_mutual,
        grpc_server_cert=grpc_server_cert,
        grpc_server_key=grpc_server_key,
        grpc_root_cert=grpc_root_cert,
        ready_fd=ready_fd,
    )
    raise typer.Exit(run_service(config))


def end_with_parent_process() -> None:
    """Has the kernel send SIGTERM when whoever started us is gone: a killed script leaves no server."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
