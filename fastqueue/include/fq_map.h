/* fq_map.h: shared memory as this process sees it: a memfd, sealed against resizing, and its mapping.
 *
 * Nothing has a name: the memory lives as long as a process holds the descriptor or a mapping, and is gone with
 * the last one, however that one ends. A mapping is not inherited by a forked child (MADV_DONTFORK). Memory is taken from the
 * system where it is written first, and not before (MAP_NORESERVE), so an arena may be larger than what there is.
 */
#ifndef FQ_MAP_H
#define FQ_MAP_H

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fq_layout.h"

#ifndef MFD_CLOEXEC
#error "memfd_create needs _GNU_SOURCE, defined before the first system header"
#endif

#define FQ_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A new memfd of `bytes` zero bytes, or -1 with errno set. */
static inline int fq_map_create(const char *label, uint64_t bytes) {
    int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, FQ_SEALS) == 0) return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

/* Gives memory of a sealed memfd back to the system; it reads as zeroes afterwards. Should that fail the memory stays, which
 * costs memory and nothing else. */
static inline void fq_map_punch(int fd, uint64_t offset, uint64_t bytes) {
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

/* Maps a descriptor that was made by fq_map_create, perhaps by another process: its memory, or NULL with errno set.
 * EPROTO: it is not sealed, so its other owner could shrink it under our feet. */
static inline void *fq_map_open(int fd, int writable, uint64_t *bytes) {
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & FQ_SEALS) != FQ_SEALS) {
        errno = EPROTO;
        return NULL;
    }
    if (fstat(fd, &status) != 0) return NULL;
    *bytes = (uint64_t)status.st_size;
    void *at = mmap(NULL, *bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) return NULL;
    (void)madvise(at, *bytes, MADV_DONTFORK);
    return at;
}

#endif
