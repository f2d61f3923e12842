"""A small client of the Open Inference Protocol v2 over gRPC: numpy arrays in, numpy arrays out.

It is what the command line talks through, so it works with any server of the protocol and not only with
Headrace. Its layers, each usable alone:

``tensors``  arrays to ModelInferRequest, ModelInferResponse to arrays; no I/O
``address``  HOST:PORT or unix:FILE, and ``Tls``: how a server is spoken to
``calls``    ``Client`` (blocking) and ``AsyncClient`` (asyncio): one method per RPC
``stream``   ``InferStream``: many requests in flight on one ModelStreamInfer call, answers matched by id

Every failure is a ``ClientError`` whose text can be shown to a person as it is. ``Unreachable`` means that
no server was spoken to (``HungUp``: who listens there ended the connection first); ``RpcFailed`` and, on a
stream, ``RequestRefused`` that one answered with an error, whose gRPC status name is in ``code``.
"""

from __future__ import annotations

from service.client.address import Tls
from service.client.calls import AsyncClient, Client
from service.client.errors import ClientError, HungUp, InvalidTensor, RequestRefused, RpcFailed, Unreachable
from service.client.stream import InferStream
from service.client.tensors import InferResult, ModelInfo, TensorInfo, infer_request, infer_result

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "HungUp",
    "InferResult",
    "InferStream",
    "InvalidTensor",
    "ModelInfo",
    "RequestRefused",
    "RpcFailed",
    "TensorInfo",
    "Tls",
    "Unreachable",
    "infer_request",
    "infer_result",
]
