"""A real worker process whose models are the model.py files it is given: x -> y, FP32 [4], batches of 8."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from python_rig import X, Y

from service.engines.base import ModelLoadError
from service.engines.python import open_python
from service.errors import StartError
from service.models.spec import ModelSpec
from service.worker.__main__ import main


def engines(config):
    try:
        return [
            open_python(path, ModelSpec(Path(path).stem, "1", "python", "python", 8, X, Y))
            for path in config.model_paths
        ]
    except ModelLoadError as error:
        raise StartError(str(error)) from error


os._exit(main(sys.argv[1:], engines))
