"""The portable front end, on grpc.aio: one asyncio loop is one front-end thread.

server   the gRPC server: options, method table, listening, draining
calls    requests in flight: the dispatcher on an asyncio loop
unary    ModelInfer, and every other unary RPC
stream   ModelStreamInfer
standard the health and reflection services
"""
