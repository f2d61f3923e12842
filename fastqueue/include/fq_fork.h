/* fq_fork.h: a forked child has no business with its parent's queue: its threads are gone and the mappings are not
 * inherited. Every handle remembers the generation it was made in; a child is one generation further. */
#ifndef FQ_FORK_H
#define FQ_FORK_H

#include <pthread.h>

static unsigned fq_generation;

static void fq_forked(void) { fq_generation++; }

static inline int fq_fork_watch(void) { return pthread_atfork(NULL, NULL, fq_forked); }

#endif
