"""A real worker process with a model on the driver of the tests. Its device is lost in the batch that finds
the file `lose` beside the model's, which it takes away.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from device_models import AffineModel
from fake_driver import HostCompute, driver

from service.worker.__main__ import main

ILLEGAL_ADDRESS = 700


def engines(config):
    driver()
    lose = Path(config.model_paths[0]).with_name("lose")

    class LosingCompute(HostCompute):
        def enqueue(self, *arguments) -> None:
            if lose.exists():
                lose.unlink()
                driver().fake_sticky(ILLEGAL_ADDRESS)
            super().enqueue(*arguments)

    return [AffineModel(LosingCompute, capturable=False)]


os._exit(main(sys.argv[1:], engines))
