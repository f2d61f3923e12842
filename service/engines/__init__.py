"""Engines: the code that runs models. Each lives in one file and is imported only when a model needs it."""
