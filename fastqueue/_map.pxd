"""Mapping of shared memory, for the modules that do it: fq_map.h with Python's errors."""
from libc.errno cimport EPROTO, errno
from libc.stdint cimport uint64_t
from libc.string cimport strerror

from fastqueue cimport _c


cdef inline void *map_memory(int fd, int writable, uint64_t *size, str what) except NULL:
    """Maps a sealed memfd. LayoutMismatch: it is not sealed; OSError: it cannot be mapped."""
    cdef void *at = _c.fq_map_open(fd, writable, size)
    if at != NULL:
        return at
    cdef int failure = errno
    if failure == EPROTO:
        from fastqueue.errors import LayoutMismatch
        raise LayoutMismatch(f"{what}: expected a sealed memfd, descriptor {fd} is not sealed against resizing")
    raise OSError(failure, f"{what}: cannot map descriptor {fd}: {strerror(failure).decode()}")
