/* explorer.h: runs small scenarios over the shipped headers in every way that C11 allows.
 *
 * A scenario is a set-up, up to four threads, and a table of the ways it may end. The explorer runs it again and
 * again; wherever something could go two ways (who runs next, which store a load sees, whether a process dies here)
 * it takes a choice, and the next run takes the next one, until no choice is left (depth first).
 *
 * WHO RUNS NEXT. A thread can be interrupted before every atomic access. The number of interruptions (preemptions) of
 * a run is bounded, and the bound is printed with the result; a switch away from a thread that ended, died or sleeps is
 * free. Plain data needs no switching: a race is found from what is ordered, in whichever run it occurs.
 *
 * WHICH STORE A LOAD SEES. Every atomic word keeps the history of its stores. A load may see any store that is not older
 * than one it is bound to know:
 *   - the newest store that its thread has read or written, or that somebody read or wrote in its past. Past means
 *     happens-before, kept in vector clocks: program order, and acquire loads that saw release stores;
 *   - for a sequentially consistent load, the newest sequentially consistent store to that word.
 * A read-modify-write sees the newest store, and carries on the release clock of the store it replaces.
 * Sequential consistency is that one rule and acquire/release, as C11 has it: it does not order other words by itself. A
 * model in which it were a full barrier would not notice that a publication needs it.
 *
 * WHEN IT FAILS. A data race; a way to end that the table forbids or does not know; a claim (ex_claim) that does not hold.
 * The last run is then repeated with every access printed. A way to end that is allowed and was never seen fails the
 * scenario too: it would test less than it says.
 *
 * In former.c the whole worker runs: its lock and conditions are the explorer's, its clock stands still, and the counters of
 * its page (S1, S2) are carried out and not explored.
 *
 * WHAT IT DOES NOT COVER. Stores enter a word's history in the order in which they run (no cycles of stores on two words),
 * and no load sees a store that has not run yet (no load buffering); so a dependency is never broken. More preemptions
 * than the bound, and longer scenarios than these.
 *
 * Files: memory.c histories and clocks, threads.c threads and choices, explore.c the runs and the tables, main.c the command.
 * litmus.c tests the explorer itself; ring.c, bell.c, cancel.c, slot.c and former.c test fastqueue.
 */
#ifndef EXPLORER_H
#define EXPLORER_H

#include "fq_atomic.h"

enum { EX_THREADS = 4, EX_OUTCOMES = 8 };

enum ex_verdict { EX_ALLOWED = 1, EX_FORBIDDEN };

/* One way to end. */
typedef struct ex_outcome {
    const char *name;
    enum ex_verdict verdict;
} ex_outcome;

typedef struct ex_thread {
    const char *name;
    void (*body)(void);
    int mortal; /* its process may die before any of its accesses */
} ex_thread;

typedef struct ex_scenario {
    const char *property; /* what the scenario shows */
    int preemptions;
    void (*setup)(void);
    ex_thread threads[EX_THREADS];
    const char *(*outcome)(void); /* how the run ended: a name in the table */
    ex_outcome outcomes[EX_OUTCOMES];
    const char *must_fail; /* for the explorer's own tests: the failure that has to be found */
} ex_scenario;

/* Ends with an entry without a property. */
extern const ex_scenario ex_litmus[], ex_ring[], ex_bell[], ex_cancel[], ex_slot[], ex_former[];

/* ---- for scenarios ---- */

void ex_claim(int holds, const char *what); /* fails the run unless it holds */
int ex_asleep(int thread);                  /* at the end: it was never woken */
int64_t ex_asleep_until(int thread);        /* that one, were time to pass */
int ex_died(int thread);                    /* at the end, or while running */
void ex_wait_end(int thread);               /* until that thread has ended or died; orders nothing */

/* An eventfd: reading waits for a write, and takes all of them. Orders nothing. */
void ex_event_write(uint32_t *event);
void ex_event_wait(uint32_t *event);

/* A lock and a condition of one process, by address: pthread's, without spurious wake-ups. A lock orders what its holders
 * did, one after the other. */
void ex_lock(const void *lock);
void ex_unlock(const void *lock);
void ex_condition_wait(const void *condition, const void *lock);
void ex_condition_wake(const void *condition);

/* ---- explore.c ---- */

typedef struct ex_result {
    long executions;
    const char *failure; /* NULL: none */
    unsigned seen;       /* a bit per outcome */
} ex_result;

ex_result ex_explore(const ex_scenario *scenario, int preemptions, int complete);
void ex_fail(const char *what);
int ex_failed(void);

/* ---- threads.c ---- */

extern int ex_current;  /* the thread that runs, -1: set-up or the end */
extern int ex_tracing;

void ex_choices_restart(void);
void ex_choices_rewind(void);
int ex_choices_next(void); /* 0 when there is none left */
int ex_choose(int count);
void ex_switch(void);
void ex_run(const ex_scenario *scenario, int preemptions);
void ex_abandon(void); /* ends the run here */

/* ---- memory.c ---- */

extern int ex_weak_label, ex_weak_order; /* ex_weak_label 0: nothing is weakened */
extern const char *const ex_label_names[FQ_LABEL_COUNT];
extern const char *const ex_order_names[];

void ex_memory_reset(void);
int ex_lock_holder(const void *lock); /* a thread, or -1 */
void ex_lock_taken(const void *lock);
void ex_lock_left(const void *lock);
void ex_trace(const char *format, ...);

#endif
