"""The device that a worker owns, and how models run on it. Until the first such model loads no CUDA is
touched.

driver    libcuda: is there a driver, what its results mean
memory    address ranges that grow, one pool per model, what a load takes and what a model may take
device    the device of this process: its context, its streams, its health
executor  batches on the device's streams: launch slots, bindings, captured graphs
model     what an engine and the executor are to each other
"""
