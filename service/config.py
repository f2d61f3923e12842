"""What `headrace serve` was asked to do: one frozen object, checked as a whole, once, before anything starts.

Precedence: a flag of the command line, else the default here. Nothing reads the environment. Units are in
the names. `ServeConfig.check()` reports every fault at once, and `headrace serve` then ends with exit code
2; what only shows later (a busy port, a corrupt model) is a StartError of the process that meets it and
ends the same way.

The object crosses the control socket to the children as JSON, so they work from exactly what was checked.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field, fields
from pathlib import PurePath

from service.certificates import BadCertificate, read_certificates
from service.cores import default_io_threads
from service.errors import ConfigError
from service.installation import default_frontend

DEFAULT_SERVER_NAME = "headrace"
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002
MAX_INSTANCES = 64
MAX_DEVICE = 63
MAX_DEVICES = 16  # of one service, each with a worker
MAX_STREAMS = 32
MAX_BATCH_SIZE = 65536
MAX_BATCH_WAIT_US = 60_000_000
MAX_ARENA_MB = 1 << 20
MAX_MESSAGE_BYTES = 2**31 - 1  # no protobuf library reads more
MAX_CALLS = 1 << 20
SOCKET_PATH_BYTES = 107  # of a Unix-domain socket on Linux, without the zero behind it
NEVER_MS = 2**31 - 1  # gRPC's word for it
FRONTENDS = ("native", "grpcio")
COMPRESSION_LEVELS = ("none", "low", "medium", "high")
STATUS_CODES = ("headrace", "triton")
CONTROL_MODES = ("none", "explicit")
EVERY_MODEL = "*"  # of --load-model


@dataclass(frozen=True)
class ServeConfig:
    """Everything a service is started with.

    Attributes:
        model_paths: model files, named by their stem, version 1, and model repositories (folders). host: the
        address both ports are bound to. grpc_port, metrics_port: 0 lets the system choose; the ready line
        says which. max_batch_size: rows of a batch at most, for models that can batch; None derives it, 0
        turns batching off. max_batch_wait_us: how long the oldest request may wait for company once a launch
        slot is free. instances: execution slots of each model; None: one, on a device as many as streams.
        devices, streams: the devices that run the models which need one, with a worker each, and how many
        CUDA streams each has.
        server_name: what ServerMetadata calls this server. drain_timeout_s: how long accepted requests may
        take to finish after SIGTERM. arena_mb, output_arena_mb: payload memory of a front-end thread and of a
        worker, in MiB. spill_mb: what each of
        these may have more, for large requests and answers, in MiB; 0: nothing. slots_per_lane: requests
        between one front-end thread and one worker at a time. max_calls: inference calls and streams in
        progress at once. answer_mb: answers that clients have not read yet, in MiB. max_message_bytes: of a
        request at most. status_codes: whose refusals these are, where Triton differs (STATUS_CODES).
        frontend: which front end listens (FRONTENDS); native where it was built. io_threads: of the native
        one, each with an input arena; by default a quarter of the cores. model_control_mode: who says what is
        loaded (CONTROL_MODES): the start, or clients. load_models: what is loaded at the start under
        `explicit`, by name; EVERY_MODEL is all there is.
        grpc_unix_socket: the file of a Unix-domain socket to listen on too; empty: none.
        grpc_infer_response_compression_level: how hard answers to inference are compressed for clients that
        read gzip (COMPRESSION_LEVELS). grpc_keepalive_* and what follows: of connections, as in Triton (see
        README), with its unit, milliseconds; NEVER_MS, and 0 of an age or grace, are none.
        grpc_use_ssl, grpc_use_ssl_mutual: TLS, and certificates of clients too; the three after them are PEM
        files (see `root_cert`). ready_fd: a descriptor that gets one line of JSON when the service is ready,
        then is closed.
    """

    model_paths: tuple[str, ...]
    host: str = "127.0.0.1"
    grpc_port: int = DEFAULT_GRPC_PORT
    metrics_port: int = DEFAULT_METRICS_PORT
    max_batch_size: int | None = None
    max_batch_wait_us: int = 0
    instances: int | None = None
    devices: tuple[int, ...] = (0,)
    streams: int = 4
    server_name: str = DEFAULT_SERVER_NAME
    drain_timeout_s: float = 30.0
    arena_mb: int = 256
    output_arena_mb: int = 256
    spill_mb: int = 4096
    slots_per_lane: int = 1024
    max_calls: int = 4096
    answer_mb: int = 1024
    max_message_bytes: int = MAX_MESSAGE_BYTES
    status_codes: str = "headrace"
    frontend: str = field(default_factory=default_frontend)
    model_control_mode: str = "none"
    load_models: tuple[str, ...] = ()
    grpc_unix_socket: str = ""
    grpc_infer_response_compression_level: str = "none"
    io_threads: int = field(default_factory=default_io_threads)
    grpc_keepalive_time_ms: int = 7_200_000
    grpc_keepalive_timeout_ms: int = 20_000
    grpc_keepalive_permit_without_calls: bool = True
    grpc_http2_max_pings_without_data: int = 2
    grpc_http2_min_recv_ping_interval_without_data_ms: int = 5000
    grpc_http2_max_ping_strikes: int = 0
    grpc_max_connection_age_ms: int = 0
    grpc_max_connection_age_grace_ms: int = 0
    grpc_use_ssl: bool = False
    grpc_use_ssl_mutual: bool = False
    grpc_server_cert: str = ""
    grpc_server_key: str = ""
    grpc_root_cert: str = ""
    ready_fd: int | None = None

    def check(self) -> None:
        """Raises ConfigError with every fault of this configuration; does nothing when there is none."""
        faults = self._number_faults() + self._word_faults() + self._model_faults() + self._ready_fd_faults()
        faults += self._socket_faults() + self._tls_faults()
        if faults:
            raise ConfigError(faults)

    def _number_faults(self) -> list[str]:
        bounds: list[tuple[str, float | None, float, float]] = [
            ("grpc-port", self.grpc_port, 0, 65535),
            ("metrics-port", self.metrics_port, 0, 65535),
            ("max-batch-size", self.max_batch_size, 0, MAX_BATCH_SIZE),
            ("max-batch-wait-us", self.max_batch_wait_us, 0, MAX_BATCH_WAIT_US),
            ("instances", self.instances, 1, MAX_INSTANCES),
            *(("device", device, 0, MAX_DEVICE) for device in self.devices),
            ("streams", self.streams, 1, MAX_STREAMS),
            ("drain-timeout", self.drain_timeout_s, 0, 86400),
            ("arena-mb", self.arena_mb, 1, MAX_ARENA_MB),
            ("output-arena-mb", self.output_arena_mb, 1, MAX_ARENA_MB),
            ("spill-mb", self.spill_mb, 0, MAX_ARENA_MB),
            ("slots-per-lane", self.slots_per_lane, 1, 1 << 16),
            ("max-calls", self.max_calls, 1, MAX_CALLS),
            ("answer-mb", self.answer_mb, 1, MAX_ARENA_MB),
            ("io-threads", self.io_threads, 1, 64),
            ("max-message-bytes", self.max_message_bytes, 1024, MAX_MESSAGE_BYTES),
            ("grpc-keepalive-time", self.grpc_keepalive_time_ms, 1, NEVER_MS),
            ("grpc-keepalive-timeout", self.grpc_keepalive_timeout_ms, 1, NEVER_MS),
            ("grpc-http2-max-pings-without-data", self.grpc_http2_max_pings_without_data, 0, NEVER_MS),
            (
                "grpc-http2-min-recv-ping-interval-without-data",
                self.grpc_http2_min_recv_ping_interval_without_data_ms,
                0,
                NEVER_MS,
            ),
            ("grpc-http2-max-ping-strikes", self.grpc_http2_max_ping_strikes, 0, NEVER_MS),
            ("grpc-max-connection-age", self.grpc_max_connection_age_ms, 0, NEVER_MS),
            ("grpc-max-connection-age-grace", self.grpc_max_connection_age_grace_ms, 0, NEVER_MS),
        ]
        return [
            f"--{flag} must be between {low} and {high}, got {value}"
            for flag, value, low, high in bounds
            if value is not None and not low <= value <= high
        ]

    def _word_faults(self) -> list[str]:
        faults = []
        if self.grpc_port == self.metrics_port != 0:
            faults.append(f"--grpc-port and --metrics-port are both {self.grpc_port}; they must differ")
        if not self.host:
            faults.append("--host is empty; name an address to bind, such as 127.0.0.1 or 0.0.0.0")
        if not self.server_name:
            faults.append("--server-name is empty; leave it out to be called headrace")
        choices = [
            ("status-codes", self.status_codes, STATUS_CODES),
            ("frontend", self.frontend, FRONTENDS),
            ("model-control-mode", self.model_control_mode, CONTROL_MODES),
            (
                "grpc-infer-response-compression-level",
                self.grpc_infer_response_compression_level,
                COMPRESSION_LEVELS,
            ),
        ]
        faults += [
            f"--{flag} must be one of {', '.join(words)}, got '{value}'"
            for flag, value, words in choices
            if value not in words
        ]
        if not 1 <= len(set(self.devices)) == len(self.devices) <= MAX_DEVICES:
            named = ",".join(map(str, self.devices))
            faults.append(f"--device must name 1 to {MAX_DEVICES} devices, each once, got '{named}'")
        if self.load_models and not self.explicit:
            faults.append("--load-model is for --model-control-mode explicit; otherwise everything is loaded")
        return faults

    def _socket_faults(self) -> list[str]:
        path = self.grpc_unix_socket
        size = len(os.fsencode(path))
        if size > SOCKET_PATH_BYTES:
            return [f"--grpc-unix-socket may have {SOCKET_PATH_BYTES} bytes, got {size}: name a shorter path"]
        if "\0" in path or path.startswith(("unix:", "@")):
            return [f"--grpc-unix-socket must be the path of a file, such as /run/h.sock, got {path!r}"]
        return []

    def _tls_faults(self) -> list[str]:
        files = {
            "--grpc-server-cert": self.grpc_server_cert,
            "--grpc-server-key": self.grpc_server_key,
            "--grpc-root-cert": self.grpc_root_cert,
        }
        if not self.tls:
            named = [flag for flag, path in files.items() if path]
            return [f"{', '.join(named)}: for --grpc-use-ssl or --grpc-use-ssl-mutual alone"] if named else []
        if not self.grpc_use_ssl_mutual:
            del files["--grpc-root-cert"]
        if missing := [flag for flag, path in files.items() if not path]:
            mode = "--grpc-use-ssl-mutual" if self.grpc_use_ssl_mutual else "--grpc-use-ssl"
            return [f"{mode} needs {' and '.join(missing)}: name a PEM file"]
        try:
            read_certificates(self.grpc_server_cert, self.grpc_server_key, self.root_cert)
        except BadCertificate as error:
            return [str(error)]
        return []

    @property
    def tls(self) -> bool:
        """Whether the gRPC port speaks TLS."""
        return self.grpc_use_ssl or self.grpc_use_ssl_mutual

    @property
    def root_cert(self) -> str:
        """The file that clients' certificates are checked against; empty when clients need none."""
        return self.grpc_root_cert if self.grpc_use_ssl_mutual else ""

    @property
    def explicit(self) -> bool:
        """Whether clients say what is loaded."""
        return self.model_control_mode == "explicit"

    def _model_faults(self) -> list[str]:
        if not self.model_paths:
            return ["no model was given; name a model file, such as model.onnx, or a model repository"]
        faults = [fault for path in self.model_paths if (fault := _path_fault(path))]
        files = [path for path in self.model_paths if not os.path.isdir(path)]  # a folder's show when read
        names = [PurePath(path).stem for path in files]
        for name in sorted({name for name in names if names.count(name) > 1}):
            paths = [path for path in files if PurePath(path).stem == name]
            faults.append(f"{' and '.join(paths)} would both be called '{name}'; rename one of the files")
        return faults

    def _ready_fd_faults(self) -> list[str]:
        if self.ready_fd is None:
            return []
        try:
            os.fstat(self.ready_fd)
        except (OSError, OverflowError):
            return [f"--ready-fd {self.ready_fd} is not an open descriptor of this process"]
        return []

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServeConfig:
        """The inverse of to_json. Raises TypeError on a field this version does not have."""
        values = json.loads(text)
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise TypeError(f"unknown configuration fields {sorted(unknown)}")
        values["model_paths"] = tuple(values["model_paths"])
        values["load_models"] = tuple(values.get("load_models", ()))
        values["devices"] = tuple(values.get("devices", (0,)))
        return cls(**values)


def devices_from(text: str) -> tuple[int, ...]:
    """The numbers of `--device`: "0", "0,1", "cuda:0,cuda:1". ValueError with a clause for anything else."""
    parts = [part.strip().removeprefix("cuda:") for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise ValueError(f"expected numbers of GPUs, with commas, such as 0 or 0,1, got '{text}'")
    return tuple(map(int, parts))


def _path_fault(path: str) -> str:
    """One sentence on why `path` can be neither a model file nor a repository; empty when it can."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return f"cannot read model '{path}': {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        return f"'{path}' is neither a regular file nor a directory"
    if not os.access(path, os.R_OK):
        return f"cannot read model '{path}': Permission denied"
    return ""
