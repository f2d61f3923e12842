"""What there is to serve: model files, and the folders of model repositories.

    repository/
        resnet/
            config.pbtxt          may be left out, or say only what the model cannot know
            1/model.onnx
            2/model.onnx          served: the highest version, unless version_policy says otherwise
        other/1/model.plan        a TensorRT plan is known by its name, as an ONNX model is
        more/1/model.pt           a program for torch too; model.pt2 is another name for it

`find` looks at every path that the service was given and says what to open, with the faults of what cannot be
opened; `find_named` looks for one model, which may be overridden: by a config in place of its config.pbtxt,
and by files in place of its versions. Both read folders and configs and never a model. A model whose folder
is faulty costs no other model its place in the list: who asked decides what a fault means. At the start of
a service it is the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from service.models import modelconfig
from service.models.labels import MAX_LABEL_BYTES, with_labels
from service.models.modelconfig import MODEL_FILES, ON_DEVICES, PLATFORMS, ConfigFault, Defaults
from service.models.wanted import Wanted

CONFIG_FILE = "config.pbtxt"
MAX_CONFIG_BYTES = 64 << 10  # all configs together have to cross a control socket
MAX_MODELS = 64  # the queue's, on one worker; each version counts
KNOWN_BY_FILE = ("tensorrt", "pytorch")  # backends that a config need not name
OTHER_FILES = {"pytorch": "model.pt2", "tensorrt": "model.onnx"}  # names that a backend's file may have too
_MAX_VERSION = (1 << 63) - 1


@dataclass(frozen=True)
class Found:
    """A version of a model that is to be opened.

    Attributes:
        path: what the engine opens. backend: which engine; "" leaves it to the kind of file.
    """

    name: str
    version: str
    path: str
    wanted: Wanted
    backend: str = ""

    @property
    def on_device(self) -> bool:
        """Whether its backend is one whose models run on a device."""
        return self.backend in ON_DEVICES


@dataclass(frozen=True)
class Override:
    """What a client gives in place of what lies in a repository.

    Attributes:
        config: a ModelConfig in JSON; empty: the model's own. folder: where its versions are; empty: its own.
    """

    config: str = ""
    folder: str = ""


NO_OVERRIDE = Override()


class UnknownModel(Exception):
    """No path has a model of this name."""


def find_named(
    paths: Sequence[str], name: str, defaults: Defaults, override: Override = NO_OVERRIDE
) -> list[Found]:
    """The versions of one model, lowest first. Raises UnknownModel, ConfigFault or OSError."""
    homes = [Path(override.folder)] if override.folder else _homes(paths, name)
    if not homes:
        raise UnknownModel
    if len(homes) > 1:
        raise ConfigFault(f"{homes[0]} and {homes[1]} would both be called '{name}'; rename one")
    if homes[0].is_dir():
        return find_model(homes[0], defaults, override, name)
    if not override.config:
        return [_model_file(str(homes[0]), defaults)]
    config, wanted = _read_override(homes[0].parent, override.config, name, defaults)
    return [Found(name, "1", str(homes[0]), wanted, _backend(config))]


def _homes(paths: Sequence[str], name: str) -> list[Path]:
    """The files and folders that are called `name`."""
    files = [Path(path) for path in paths if not os.path.isdir(path) and PurePath(path).stem == name]
    if name.startswith(".") or PurePath(name).name != name or "\0" in name:
        return files
    folders = [Path(path, name) for path in paths if os.path.isdir(path)]
    return files + [folder for folder in folders if folder.is_dir()]


def names(paths: Sequence[str]) -> set[str]:
    """Every model that there is now, by name, whether it can be opened or not."""
    found = {PurePath(path).stem for path in paths if not os.path.isdir(path)}
    for path in paths:
        if os.path.isdir(path):
            with contextlib.suppress(OSError):
                found |= {folder.name for folder in model_folders(Path(path))}
    return {name for name in found if name.isprintable()}  # others are not UTF-8: no request could name them


def find(paths: Sequence[str], defaults: Defaults) -> tuple[list[Found], list[str]]:
    """What is at `paths`, in their order, models of a repository by name; and a sentence per fault."""
    found: list[Found] = []
    faults: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            models, wrong = find_in_repository(Path(path), defaults)
            found += models
            faults += wrong
        else:
            found.append(_model_file(path, defaults))
    faults += _clashes(found)
    if len(found) > MAX_MODELS:
        what = f"{len(found)} models and versions were given; a worker has room for {MAX_MODELS}"
        faults.append(f"{what}: serve fewer, or fewer versions of each (version_policy)")
    labels = sum(len(label) for model in found for tensor in model.wanted.outputs for label in tensor.labels)
    if labels > MAX_LABEL_BYTES:
        what = f"the label files of all models have {labels} bytes in all"
        faults.append(f"{what}; at most {MAX_LABEL_BYTES} are served: serve fewer models with labels")
    return found, faults


def _model_file(path: str, defaults: Defaults) -> Found:
    wanted = Wanted(
        max_batch_size=defaults.max_batch_size,
        max_batch_wait_us=defaults.max_batch_wait_us,
        instances=defaults.instances or 1,
        says_instances=defaults.instances is not None,
    )
    return Found(PurePath(path).stem, "1", path, wanted)


def _clashes(found: Sequence[Found]) -> list[str]:
    first: dict[str, str] = {}
    faults = []
    for model in found:
        home = model.path if not model.backend else str(PurePath(model.path).parents[1])
        if first.setdefault(model.name, home) != home:
            faults.append(f"{first[model.name]} and {home} would both be called '{model.name}'; rename one")
    return list(dict.fromkeys(faults))


# ---- a repository ----


def find_in_repository(folder: Path, defaults: Defaults) -> tuple[list[Found], list[str]]:
    """The models of one repository, and its faults."""
    if fault := _repository_fault(folder):
        return [], [fault]
    found: list[Found] = []
    faults: list[str] = []
    for model in model_folders(folder):
        try:
            found += find_model(model, defaults)
        except ConfigFault as fault:
            faults.append(f"model '{model.name}' ({model}): {fault}")
        except OSError as error:
            faults.append(
                f"model '{model.name}' ({model}): {error.filename} cannot be read: {error.strerror}"
            )
    return found, faults


def model_folders(folder: Path) -> list[Path]:
    """The folders of a repository that hold models, by name. Hidden ones do not count."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _repository_fault(folder: Path) -> str:
    """One sentence on why this folder is no repository; empty when it may be one."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
        models = model_folders(folder)
    except OSError as error:
        return f"cannot read the repository '{folder}': {error.strerror}"
    if CONFIG_FILE in names or any(_is_version(model.name) for model in models):
        return f"'{folder}' is the folder of one model; give the repository that it is in: '{folder.parent}'"
    if not models:
        files = next((name for name in names if name.lower().endswith(".onnx")), "")
        instead = f"; to serve a file, give its path: '{folder / files}'" if files else ""
        return (
            f"'{folder}' is a directory without a model; expected a repository with folders such as "
            f"{folder / 'NAME' / '1' / 'model.onnx'}{instead}"
        )
    return ""


def find_model(
    folder: Path, defaults: Defaults, override: Override = NO_OVERRIDE, name: str = ""
) -> list[Found]:
    """The versions to serve of the model in `folder`, lowest first; its name is the folder's where none is
    given. Raises ConfigFault.
    """
    name = name or folder.name
    _check_name(name)
    if override.config:
        config, wanted = _read_override(folder, override.config, name, defaults)
    else:
        config, wanted = _read_config(folder, defaults)
    versions = _choose(config, *_versions(folder))
    backend = _backend(config) or _backend_of_files(folder / str(versions[-1]))
    if backend in ON_DEVICES and not modelconfig.runs_on_device(config):
        wanted = modelconfig.for_device(wanted)
    file_name = config.default_model_filename or _file_of(backend, folder / str(versions[-1]))
    if PurePath(file_name).is_absolute() or ".." in PurePath(file_name).parts:
        raise ConfigFault(f"default_model_filename '{file_name}' must be a name inside the version's folder")
    found = []
    for version in versions:
        path = _model_path(folder / str(version), file_name)
        found.append(Found(name, str(version), str(path), wanted, backend))
    return found


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigFault("the folder's name is not UTF-8, so no request could name the model") from error


def _read_config(folder: Path, defaults: Defaults) -> tuple[Any, Wanted]:
    path = folder / CONFIG_FILE
    data = b""
    if path.exists() or path.is_symlink():
        if not path.is_file():
            raise ConfigFault(f"{CONFIG_FILE} is no file that can be read")
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_CONFIG_BYTES + 1)
        except OSError as error:
            raise ConfigFault(f"{CONFIG_FILE} cannot be read: {error.strerror}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigFault(f"{CONFIG_FILE} has more than {MAX_CONFIG_BYTES >> 10} KiB")
    try:
        parsed = modelconfig.parse(data)
        wanted = modelconfig.wanted_from(parsed, defaults)
        wanted = replace(wanted, outputs=with_labels(folder, parsed.message.output, wanted.outputs))
    except ConfigFault as fault:
        raise ConfigFault(f"{CONFIG_FILE}: {fault}") from fault
    if (name := parsed.message.name) not in ("", folder.name):
        raise ConfigFault(f"{CONFIG_FILE} says name '{name}'; expected the folder's name, '{folder.name}'")
    return parsed.message, wanted if data else replace(wanted, config_json="")


def _read_override(folder: Path, text: str, name: str, defaults: Defaults) -> tuple[Any, Wanted]:
    try:
        parsed = modelconfig.parse_json(text)
        wanted = modelconfig.wanted_from(parsed, defaults)
        wanted = replace(wanted, outputs=with_labels(folder, parsed.message.output, wanted.outputs))
    except ConfigFault as fault:
        raise ConfigFault(f"parameter 'config': {fault}") from fault
    if (said := parsed.message.name) not in ("", name):
        raise ConfigFault(f"parameter 'config' says name '{said}'; expected '{name}', or none")
    return parsed.message, wanted


def _backend(config: Any) -> str:
    """The engine that a config names; "" when it names none. Raises ConfigFault where there is no such."""
    of_platform = {platform: backend for backend, platform in PLATFORMS.items()}
    backend = config.backend or of_platform.get(config.platform, "")
    if not config.backend and not config.platform:
        return ""
    if backend not in PLATFORMS:
        what = f"backend '{config.backend}'" if config.backend else f"platform '{config.platform}'"
        known = ", ".join(f"backend '{name}'" for name in PLATFORMS)
        raise ConfigFault(f"{CONFIG_FILE}: {what} is not served; expected {known}")
    if config.platform not in ("", PLATFORMS[backend]):
        raise ConfigFault(
            f"{CONFIG_FILE}: platform '{config.platform}' and backend '{backend}' do not fit together; "
            f"expected platform '{PLATFORMS[backend]}', or none"
        )
    return backend


def _backend_of_files(version: Path) -> str:
    """The engine of a version's model where no config says it: the one whose file is there alone."""
    known = [
        backend
        for backend in (*KNOWN_BY_FILE, "onnxruntime")
        if (version / _file_of(backend, version)).exists()
    ]
    return known[0] if len(known) == 1 else "onnxruntime"


def _file_of(backend: str, version: Path) -> str:
    """What a model's file is called where no config says it."""
    file = MODEL_FILES[backend]
    other = OTHER_FILES.get(backend, "")
    return other if other and (version / other).exists() and not (version / file).exists() else file


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and not name.startswith("0") and int(name) <= _MAX_VERSION


def _versions(folder: Path) -> tuple[list[int], list[str]]:
    """The versions in a model's folder, ascending, and the other folders that are there."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise ConfigFault(f"its folder cannot be read: {error.strerror}") from error
    return sorted(int(name) for name in names if _is_version(name)), [n for n in names if not _is_version(n)]


def _choose(config: Any, versions: Sequence[int], others: Sequence[str]) -> list[int]:
    """The versions that the policy serves, lowest first. Raises ConfigFault when that is none."""
    if not versions:
        seen = f"; there is {', '.join(others)}" if others else ""
        raise ConfigFault(
            f"it has no folder of a version, such as '1' (a number without zeros in front){seen}"
        )
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return list(versions)
    if choice == "specific":
        return _specific(list(policy.specific.versions), versions)
    count = policy.latest.num_versions if choice == "latest" else 1
    if count < 1:
        raise ConfigFault(f"{CONFIG_FILE}: version_policy.latest.num_versions must be at least 1, got 0")
    return list(versions)[-count:]


def _specific(wanted: Sequence[int], versions: Sequence[int]) -> list[int]:
    where = f"{CONFIG_FILE}: version_policy.specific"
    if not wanted:
        raise ConfigFault(f"{where} names no version")
    if missing := sorted(set(wanted) - set(versions)):
        has = ", ".join(map(str, versions))
        raise ConfigFault(f"{where} names {', '.join(map(str, missing))}; the folder has {has}")
    return sorted(set(wanted))


def _model_path(folder: Path, file_name: str) -> Path:
    path = folder / file_name
    if path.is_dir():
        path = path / file_name  # a model with its weights in files beside it may have a folder of its own
    if not path.is_file():
        seen = ", ".join(_names(folder)) or "nothing"
        expected = f"expected the model as {folder.name}/{file_name}"
        raise ConfigFault(
            f"{expected} (default_model_filename names another); in {folder.name} is {seen}{_of_python(path)}"
        )
    return path


def _of_python(missing: Path) -> str:
    """What to do where a model in Python lies and nothing says that it is one; else empty."""
    if missing.name != MODEL_FILES["onnxruntime"] or not (missing.parent / MODEL_FILES["python"]).is_file():
        return ""
    return f'; a model in Python needs a {CONFIG_FILE} with backend: "python", its inputs and its outputs'


def _names(folder: Path) -> Iterator[str]:
    yield from sorted(entry.name for entry in folder.iterdir())[:10]
