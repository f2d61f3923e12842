"""INT8 calibration: which batches are copied to the device, and what a cache is good for."""

from __future__ import annotations

import numpy as np

from service.cuda.device import the_device
from service.engines.tensorrt_calibration import Calibration
from service.engines.tensorrt_options import Tensor

X = {"x": Tensor("x", "FP32", (-1, 4))}


class Ten:
    """What TensorRT 10 has of its calibrator."""

    class IInt8EntropyCalibrator2:
        def __init__(self) -> None:
            pass


def test_a_calibration_cache_is_used_for_what_it_was_made_of_alone(tmp_path, fake) -> None:
    the_device()
    fake.fake_pageable(1)  # as a real driver takes it
    model, data, cache = (tmp_path / name for name in ("model.onnx", "data.npy", "cache"))
    model.write_bytes(b"one weight")
    np.save(data, np.arange(80, dtype=np.float32).reshape(20, 4))

    def calibrated(version: str = "TensorRT 10.6.0") -> Calibration:
        found = Calibration(str(model), str(data), str(cache), version, X)
        asked = found.calibrator_of(Ten)
        if asked.read_calibration_cache() is None:
            while asked.get_batch(["x"]) is not None:
                pass
            asked.write_calibration_cache(b"ranges")
        found.close()
        return found

    assert calibrated().batches_read == 2  # of 8 rows; a rest of 4 is left out
    assert (calibrated().batches_read, calibrated().notes) == (0, [])
    model.write_bytes(b"another weight")
    assert calibrated().batches_read == 2
    assert calibrated().batches_read == 0
    (note,) = calibrated("TensorRT 10.7.0").notes
    assert "of another model, data or TensorRT: not used" in note
