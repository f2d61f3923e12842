"""What stands before most image models: from the bytes of a camera to normalized planes of floats.

IMAGE [height, width, 3] UINT8, any size -> PIXELS [3, size, size] FP32

The shorter side is scaled to `size` and the middle cut out, by the nearest pixel; then each channel has its
mean subtracted and is divided by its standard deviation. All are parameters of config.pbtxt.
"""

import numpy as np


class Model:
    def initialize(self, config):
        parameters = config["parameters"]
        self.size = int(parameters.get("size", "224"))
        mean = [float(value) for value in parameters.get("mean", "0.485,0.456,0.406").split(",")]
        deviation = [float(value) for value in parameters.get("std", "0.229,0.224,0.225").split(",")]
        if self.size < 1 or len(mean) != 3 or len(deviation) != 3 or 0 in deviation:
            raise ValueError("expected a size of at least 1, and a mean and a std for each of 3 channels")
        # pixel / 255, minus the mean, by the deviation: one multiplication and one addition per pixel
        self.scale = (1 / (255 * np.array(deviation))).astype(np.float32)
        self.shift = (-np.array(mean) / deviation).astype(np.float32)

    def execute(self, inputs):
        images = inputs["IMAGE"]  # [rows, height, width, 3], all of one size: others are batched apart
        _, height, width, _ = images.shape
        if 0 in (height, width):
            raise ValueError(f"an image of {height} x {width} pixels is empty")
        ys, xs = self.places(height, width)
        cut = images[:, ys[:, None], xs] * self.scale + self.shift
        return {"PIXELS": cut.transpose(0, 3, 1, 2)}

    def places(self, height, width):
        """The rows and the columns to take: of `size` x `size` cells over the middle square."""
        side = min(height, width)
        steps = ((np.arange(self.size) + 0.5) * side / self.size).astype(np.intp)
        return steps + (height - side) // 2, steps + (width - side) // 2
