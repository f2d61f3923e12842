"""ONNX to a TensorRT plan.

    tools      the library: TensorRT, or TensorRT-RTX for a compute capability, which needs no device
    build      parse -> profile -> config -> build -> Built, with what is worth knowing of the plan

Precision. TensorRT 10 has builder flags for FP16 and INT8, and a calibrator (deprecated) for INT8 without
Q/DQ nodes. TensorRT 11 and TensorRT-RTX take the types that are in the ONNX file and nothing else: there such
a flag is refused with a sentence on what to do instead. Which of the two a library is, its flags say.

A build ends early when `Progress.step` says False. TensorRT calls it on the thread that builds.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service.cuda.device import the_device
from service.cuda.driver import DriverError, NoDriver
from service.engines.tensorrt_calibration import Calibration, CalibrationError
from service.engines.tensorrt_options import BuildError, BuildOptions, Range, Tensor, ranges_of
from service.engines.tensorrt_runtime import DATATYPES, Words, known, log_of
from service.models.spec import DYNAMIC

MB = 1 << 20
_FORMAT = re.compile(r"\b(float|half|fp32|fp16|bf16|fp8|int8|int4|int32|int64|uint8|bool)\b", re.IGNORECASE)
_NAMES = {"FLOAT": "FP32", "HALF": "FP16"}  # as some versions of the inspector have it


class Progress(Protocol):
    """What a build tells while it goes on. Phases lie in each other."""

    def start(self, phase: str, parent: str, steps: int) -> None: ...

    def step(self, phase: str, done: int) -> bool:
        """False: end the build."""

    def finish(self, phase: str) -> None: ...


@dataclass(frozen=True)
class Built:
    """A plan, and what is worth knowing of it.

    Attributes:
        max_batch_size: 0 where the inputs share no open first dimension. precisions: layers by the type of
        their first output. calibration_batches: those that were read, 0 with a cache that fits.
    """

    plan: bytes
    seconds: float
    version: str
    layers: int
    precisions: Mapping[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    notes: tuple[str, ...]
    calibration_batches: int = 0


# ---- the library ----


class Tools:
    """TensorRT or TensorRT-RTX, with its log."""

    def __init__(self, trt: Any, words: Words, log: Any, name: str) -> None:
        self.trt = trt
        self.words = words
        self.log = log
        self.version = f"{name} {trt.__version__}"
        self.chooses = hasattr(trt.BuilderFlag, "FP16")  # the types of layers


def tools(options: BuildOptions) -> Tools:
    """The library for these options, usable in this thread. Raises BuildError."""
    if options.compute_capability:
        return _rtx()
    try:
        library = known()
        the_device().make_current()
    except (NoDriver, DriverError) as error:
        raise BuildError(
            f"a plan is built on the device that it is for: {error}. TensorRT-RTX builds without one: "
            "--compute-capability 8.9"
        ) from error
    return Tools(library.trt, library.words, library.log, "TensorRT")


def _rtx() -> Tools:
    try:
        import tensorrt_rtx as trt
    except ImportError:
        try:
            import tensorrt_rtx_bindings as trt  # without the package that only names it
        except ImportError as error:
            raise BuildError(
                f"TensorRT-RTX is not installed ({error}): pip install tensorrt-rtx-cu13"
            ) from error
    words = Words()
    return Tools(trt, words, log_of(trt, words), "TensorRT-RTX")


# ---- the build ----


def build(path: str, options: BuildOptions, progress: Progress | None = None) -> Built:
    """Builds the plan of the ONNX file at `path`. Raises BuildError."""
    found = tools(options)
    try:
        return _Build(found, path, options).run(progress)
    except (CalibrationError, DriverError) as error:
        raise BuildError(f"{path} was not built: {error}") from error


class _Build:
    def __init__(self, found: Tools, path: str, options: BuildOptions) -> None:
        self._tools, self._trt, self._words = found, found.trt, found.words
        self._path, self._options = path, options
        self._notes: list[str] = []
        self._calibration: Calibration | None = None

    def run(self, progress: Progress | None) -> Built:
        self._words.last()
        builder = self._trt.Builder(self._tools.log)
        self._load_plugins(builder)
        network = builder.create_network(0)
        parser = self._parsed(network)  # what it read belongs to it, and the network refers to it
        ranges = ranges_of(_tensors(network, "input"), self._options)
        config = self._config(builder, network, ranges)
        if progress is not None:
            monitor = config.progress_monitor = monitor_of(self._trt, progress)
        began = time.perf_counter()
        try:
            plan = builder.build_serialized_network(network, config)
        finally:
            if self._calibration is not None:
                self._calibration.close()
        if plan is None:
            raise BuildError(f"{self._path} was not built by {self._tools.version}: {self._words.last()}")
        seconds = time.perf_counter() - began
        self._keep_timing_cache(config)
        del parser
        if progress is not None:
            del monitor
        return self._built(bytes(plan), seconds, network, ranges)

    def _load_plugins(self, builder: Any) -> None:
        if hasattr(self._trt, "init_libnvinfer_plugins"):
            self._trt.init_libnvinfer_plugins(self._tools.log, "")
        for plugin in self._options.plugins:
            if not Path(plugin).is_file():
                raise BuildError(f"plugin library {plugin} is not there")
            if builder.get_plugin_registry().load_library(plugin) is None:
                raise BuildError(f"plugin library {plugin} was not loaded: {self._words.last()}")

    def _parsed(self, network: Any) -> Any:
        if not Path(self._path).is_file():
            raise BuildError(f"{self._path} is not there; expected an ONNX file")
        parser = self._trt.OnnxParser(network, self._tools.log)
        if not parser.parse_from_file(self._path):
            faults = [_fault(parser.get_error(index)) for index in range(parser.num_errors)]
            raise BuildError(f"{self._path} was not understood: {'; '.join(faults) or self._words.last()}")
        if not network.num_outputs:
            raise BuildError(f"{self._path} has no outputs: it is no whole ONNX model; was it cut off?")
        return parser

    def _config(self, builder: Any, network: Any, ranges: Mapping[str, Range]) -> Any:
        config = builder.create_builder_config()
        if self._options.workspace_mb:
            config.set_memory_pool_limit(self._trt.MemoryPoolType.WORKSPACE, self._options.workspace_mb * MB)
        config.profiling_verbosity = self._trt.ProfilingVerbosity.DETAILED  # or layers tell no types
        self._set_precision(builder, network, config, ranges)
        self._set_capability(config)
        self._set_timing_cache(config)
        if ranges:
            profile = builder.create_optimization_profile()
            for name, shapes in ranges.items():
                profile.set_shape(name, *shapes)
            if config.add_optimization_profile(profile) < 0:
                raise BuildError(f"{self._path}: these shapes were refused: {self._words.last()}")
        return config

    def _set_precision(self, builder: Any, network: Any, config: Any, ranges: Mapping[str, Range]) -> None:
        options, trt = self._options, self._trt
        if not self._tools.chooses:
            self._refuse_precision(options)
            return
        if options.fp16:
            config.set_flag(trt.BuilderFlag.FP16)
        if options.int8:
            config.set_flag(trt.BuilderFlag.INT8)
            self._calibrate(builder, network, config, ranges)
        elif options.calibration:
            raise BuildError("--calibration is for --int8; add it, or leave the data out")

    def _refuse_precision(self, options: BuildOptions) -> None:
        if options.calibration:
            raise BuildError(
                f"{self._tools.version} has no calibrator: put Q/DQ nodes into the ONNX file (NVIDIA "
                "ModelOpt, or onnxruntime.quantization), and leave --calibration out"
            )
        if options.fp16:
            raise BuildError(
                f"{self._tools.version} computes in the types of the ONNX file: convert it to FP16 first "
                "(AutoCast of NVIDIA ModelOpt, or onnxconverter-common), and leave --fp16 out"
            )

    def _calibrate(self, builder: Any, network: Any, config: Any, ranges: Mapping[str, Range]) -> None:
        quantized = "QUANTIZE" in _layer_types(network)
        if quantized and self._options.calibration:
            raise BuildError(f"{self._path} has Q/DQ nodes, which say it all; leave --calibration out")
        if quantized:
            return
        if not self._options.calibration:
            raise BuildError(
                f"{self._path} has no Q/DQ nodes, so --int8 needs data to find ranges with: "
                "--calibration DATA.npz"
            )
        self._calibration = calibration = Calibration(
            self._path,
            self._options.calibration,
            self._options.calibration_cache,
            self._tools.version,
            {tensor.name: tensor for tensor in _tensors(network, "input")},
        )
        config.int8_calibrator = calibration.calibrator_of(self._trt)
        if ranges:
            profile = builder.create_optimization_profile()
            for name in ranges:
                profile.set_shape(name, *[calibration.shape(name)] * 3)
            config.set_calibration_profile(profile)

    def _set_capability(self, config: Any) -> None:
        wanted = self._options.compute_capability
        if not wanted:
            return
        kinds = self._trt.ComputeCapability
        name = f"SM{wanted.replace('.', '')}"
        if not hasattr(kinds, name):
            names = (kind[2:] for kind in dir(kinds) if kind.startswith("SM"))
            told = ", ".join(f"{kind[:-1]}.{kind[-1]}" for kind in names)
            raise BuildError(f"--compute-capability {wanted}: {self._tools.version} builds for {told}")
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(kinds, name), 0)

    def _set_timing_cache(self, config: Any) -> None:
        if not self._options.timing_cache or not self._tools.chooses:
            return  # TensorRT-RTX times nothing at build
        path = Path(self._options.timing_cache)
        kept = path.read_bytes() if path.is_file() else b""
        if kept and config.set_timing_cache(config.create_timing_cache(kept), False):
            return
        if kept:
            self._notes.append(f"{path} is of another TensorRT or device ({self._words.last()}): made anew")
        config.set_timing_cache(config.create_timing_cache(b""), False)

    def _keep_timing_cache(self, config: Any) -> None:
        if self._options.timing_cache and self._tools.chooses:
            Path(self._options.timing_cache).write_bytes(bytes(config.get_timing_cache().serialize()))

    def _built(self, plan: bytes, seconds: float, network: Any, ranges: Mapping[str, Range]) -> Built:
        inputs, outputs = _tensors(network, "input"), _tensors(network, "output")
        batched = bool(inputs) and all(t.name in ranges and t.dims[0] == DYNAMIC for t in inputs)
        most = min((ranges[t.name][2][0] for t in inputs), default=0) if batched else 0
        layers, precisions = self._layers(plan, network)
        if self._calibration is not None:
            self._notes += self._calibration.notes
        return Built(
            plan,
            seconds,
            self._tools.version,
            layers,
            precisions,
            inputs,
            outputs,
            most,
            tuple(self._notes),
            self._calibration.batches_read if self._calibration is not None else 0,
        )

    def _layers(self, plan: bytes, network: Any) -> tuple[int, Mapping[str, int]]:
        """Of the plan, where a device can look into it; else of the network."""
        if self._options.compute_capability:
            types = Counter(_first_type(network.get_layer(i)) for i in range(network.num_layers))
            return network.num_layers, types
        runtime = self._trt.Runtime(self._tools.log)
        engine = runtime.deserialize_cuda_engine(plan)
        inspector = engine.create_engine_inspector()
        line = self._trt.LayerInformationFormat.ONELINE
        found = [inspector.get_layer_information(i, line) for i in range(engine.num_layers)]
        return engine.num_layers, Counter(precision_of(text) for text in found)


def monitor_of(trt: Any, progress: Progress) -> Any:
    """What TensorRT tells how far it is."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.start(phase_name, parent_phase or "", num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return progress.step(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            progress.finish(phase_name)

    return Monitor()


# ---- what is read of a network ----


def _tensors(network: Any, side: str) -> tuple[Tensor, ...]:
    count, get = getattr(network, f"num_{side}s"), getattr(network, f"get_{side}")
    found = []
    for tensor in (get(index) for index in range(count)):
        datatype = DATATYPES.get(tensor.dtype.name)
        if datatype is None:
            raise BuildError(f"{side} '{tensor.name}' has type {tensor.dtype.name}, which is not served")
        found.append(Tensor(tensor.name, datatype, tuple(tensor.shape)))
    return tuple(found)


def _layer_types(network: Any) -> Iterator[str]:
    return (network.get_layer(index).type.name for index in range(network.num_layers))


def _first_type(layer: Any) -> str:
    name: str = layer.get_output(0).dtype.name
    return DATATYPES.get(name, name)


def precision_of(layer: str) -> str:
    """The type of a layer's outputs, from what the inspector says of it."""
    outputs = layer[layer.find("Outputs:") :]
    found = _FORMAT.search(outputs) or _FORMAT.search(layer)
    name = found[1].upper() if found else "other"
    return _NAMES.get(name, name)


def _fault(error: Any) -> str:
    operator = getattr(error, "node_operator", lambda: "")()
    name = getattr(error, "node_name", lambda: "")()
    where = f"node '{name}' ({operator}): " if operator else ""
    return where + " ".join(error.desc().split())
