"""Load generation for ``headrace bench`` and ``benchmarks/``: clock, loops, senders, and the arithmetic."""
