"""A real worker process with a model on the driver of the tests. Its device is lost in the batch that finds
the file `lose` beside the model's, which it takes away. While the file `hold` is there every stream that a
batch comes to stops before its computation, so that the next batch's copies wait behind it; `held` then has
a byte for each batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from device_models import AffineModel
from device_processes import worker_main
from fake_driver import HostCompute, driver

ILLEGAL_ADDRESS = 700


def affine(folder: Path) -> AffineModel:
    driver()

    class ObedientCompute(HostCompute):
        def enqueue(self, stream: int, *arguments) -> None:
            if (folder / "lose").exists():
                (folder / "lose").unlink()
                driver().fake_sticky(ILLEGAL_ADDRESS)
            if (folder / "hold").exists():
                driver().fake_hold(stream, 1)
                with open(folder / "held", "ab") as held:
                    held.write(b"x")
            super().enqueue(stream, *arguments)

    return AffineModel(ObedientCompute, dims=(-1,))


worker_main(affine)
