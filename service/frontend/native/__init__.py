"""The native front end: gRPC in C, without Python on the way of a request. `native.h` tells how."""
