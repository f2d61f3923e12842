/* native_moderation.h: interrupt moderation, when an I/O thread lets events come together before it looks again.
 *
 * With many calls out, a thread that is woken again at once is woken for one or two of them, and the wake-up (here, and
 * that of the worker) costs more than what it is for. It never naps while few calls are out, where nothing would come
 * together and somebody waits for each answer, nor while wake-ups are far apart, where there is nothing to save.
 */
#ifndef HR_NATIVE_MODERATION_H
#define HR_NATIVE_MODERATION_H

#include <stdbool.h>
#include <stdint.h>

enum { HR_NAP_CALLS = 16, HR_NAP_IDLE_NS = 50000, HR_NAP_NS = 50000 };

/* `idle_ns`: for how long the thread had nothing to do before this wake-up. `out`: its requests that a worker has. */
static inline bool hr_should_nap(int64_t idle_ns, uint64_t out) { return idle_ns < HR_NAP_IDLE_NS && out >= HR_NAP_CALLS; }

#endif
