"""The front-end process: listens, speaks gRPC, and hands requests to the workers' lanes.

dispatch.{h,c}, _dispatch   one front-end thread in C: codec, lanes, deadlines; no sockets and no Python
catalog                     what is served, and whether it can be used now
links                       the conversation with one incarnation of a worker
rpcs                        every RPC but the Infer ones, as functions from message to message
grpcio/                     the portable front end, on grpc.aio
process                     all of it together, and the process around it
"""
