"""Small models for torch, as files; for tests of both kinds of place where they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


class Affine(torch.nn.Module):
    """y = 2x + 1, with weights that have to be where the input is."""

    def __init__(self) -> None:
        super().__init__()
        self.two = torch.nn.Parameter(torch.tensor(2.0))
        self.register_buffer("one", torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.two + self.one


class Layers(torch.nn.Module):
    """Rows of 16 to rows of 4, by a convolution and a matrix, with a batch norm that is for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.conv = torch.nn.Conv1d(1, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(128, 4)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x.unsqueeze(1))))
        return self.last(y.flatten(1))


class TwoByTwo(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor):
        return a.sum(1, keepdim=True), b > 2


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return {"twice": x * 2, "sign": x > 0}


class Doubled(torch.nn.Module):
    """Each row twice as long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 1)


class Mean(torch.nn.Module):
    """Its rows depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Writes(torch.nn.Module):
    """It writes to its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).add_(1)


class Found(torch.nn.Module):
    """What is not 0: as many as there are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


class Chooses(torch.nn.Module):
    """What it does depends on data, which the CPU has to see: no graph can have that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 1000000.0):
            return x
        return x * 2 + 1


class Picky(torch.nn.Module):
    """Fails on some numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == 13).any()):
            raise RuntimeError("13 brings bad luck")
        return x * 2


def script(model: torch.nn.Module, path: Path) -> str:
    """TorchScript, in training mode, as it may come."""
    torch.jit.script(model).save(str(path))
    return str(path)


def exported(
    model: torch.nn.Module, path: Path, *inputs: Any, most: int | None = None, open_dims: Any = None
) -> str:
    """An exported program; axis 0 of every input is the batch axis, `open_dims` others by their axis."""
    batch = torch.export.Dim("batch", max=most) if most else torch.export.Dim("batch")
    shapes = tuple({0: batch, **(open_dims or {})} for _ in inputs)
    program = torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)
    torch.export.save(program, str(path))
    return str(path)
