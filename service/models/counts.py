"""What engines count of their batches besides what every batch has: the names of the queue's numbers
(`Batch.count`, `ModelStats.engine`). The worker counts, telemetry shows; numbers that no engine of a model
counts are 0.
"""

from __future__ import annotations

GRAPH_HITS = 0  # batches that ran as a captured graph
GRAPH_MISSES = 1  # batches on a device that did not
PINNED_FALLBACKS = 2  # pieces of a batch that a device could not copy from where they lay
