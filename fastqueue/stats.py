"""The types of a worker's counters, as `WorkerPage.stats` and `BatchFormer.stats` return them."""

from __future__ import annotations

from fastqueue._page import Count, ModelStats, SizeStats

__all__ = ["Count", "ModelStats", "SizeStats"]
