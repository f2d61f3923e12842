/* fuzz_rig.h: the native front end in one thread, with a worker and a "Python" that answer at once.
 *
 * Everything is the real thing but the threads: a fuzzer's input is the same work each time. Time moves by a millisecond
 * with each turn. fuzz_end ends every connection and call, and then nothing may be left: not a slot, a byte of an arena, a
 * counter above 0, or memory (AddressSanitizer looks for that at the end).
 *
 * Models, by name: f (FP32 [4] in, with labels out), t (BYTES [1] of text), w (UINT8 [1] in, 32 KB out), u (without
 * batching: INT64 [any size], INT32 [2]).
 */
#ifndef FUZZ_RIG_H
#define FUZZ_RIG_H

#include <stdio.h>
#include <stdlib.h>

#include "native_state.h"

hr_io *fuzz_io(void); /* with everything behind it; made once */
const hr_spec *fuzz_model(uint32_t number); /* from 0 */
void fuzz_end(void);

enum { FUZZ_MODELS = 4 };

/* A connection: what is sent to it is read by it in the same call, and what it says is thrown away. */
typedef struct fuzz_peer {
    int fd;
} fuzz_peer;

fuzz_peer fuzz_connect(void);
void fuzz_send(fuzz_peer *peer, const uint8_t *data, size_t length);
void fuzz_turn(fuzz_peer *peer); /* the worker and Python answer, what is to be said is said */
void fuzz_hang_up(fuzz_peer *peer);

void fuzz_worker(void); /* answers what it was sent */

#define FUZZ_EXPECT(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #what); \
            abort(); \
        } \
    } while (0)

#endif
