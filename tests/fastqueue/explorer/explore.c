/* explore.c: all runs of one scenario, and what its table says about each. */
#include <stdio.h>
#include <string.h>

#include "explorer.h"

static const char *failure;

void ex_fail(const char *what) {
    if (!failure) failure = what;
}

int ex_failed(void) { return failure != NULL; }

void ex_claim(int holds, const char *what) {
    if (!holds) ex_fail(what);
}

static int outcome_index(const ex_scenario *scenario, const char *name) {
    for (int i = 0; i < EX_OUTCOMES && scenario->outcomes[i].name; i++)
        if (strcmp(scenario->outcomes[i].name, name) == 0) return i;
    return -1;
}

static void judge(const ex_scenario *scenario, ex_result *result) {
    const char *name = scenario->outcome();
    int index = outcome_index(scenario, name);
    if (failure) return;
    if (index < 0 || scenario->outcomes[index].verdict == EX_FORBIDDEN)
        ex_fail(name);
    else
        result->seen |= 1u << index;
}

static void run_once(const ex_scenario *scenario, int preemptions, ex_result *result) {
    failure = NULL;
    ex_choices_rewind();
    ex_memory_reset();
    scenario->setup();
    ex_run(scenario, preemptions);
    if (!failure) judge(scenario, result);
}

static void explain(const ex_scenario *scenario, int preemptions, ex_result *result) {
    printf("    how it came to \"%s\":\n", failure);
    ex_tracing = 1;
    run_once(scenario, preemptions, result);
    ex_tracing = 0;
}

static const char *unseen(const ex_scenario *scenario, unsigned seen) {
    for (int i = 0; i < EX_OUTCOMES && scenario->outcomes[i].name; i++) {
        if (scenario->outcomes[i].verdict != EX_ALLOWED || (seen >> i & 1)) continue;
        printf("    \"%s\" is allowed and never happened: the scenario does not reach it\n", scenario->outcomes[i].name);
        return "an allowed outcome never happened";
    }
    return NULL;
}

/* With `complete`, every allowed outcome must have been seen, and a failure is explained. */
ex_result ex_explore(const ex_scenario *scenario, int preemptions, int complete) {
    ex_result result = {0};
    ex_choices_restart();
    do {
        run_once(scenario, preemptions, &result);
        result.executions++;
    } while (!failure && ex_choices_next());
    result.failure = failure;
    if (scenario->must_fail) {
        int found = failure && strcmp(failure, scenario->must_fail) == 0;
        result.failure = found ? NULL : "the explorer did not find what it has to find";
    } else if (failure && complete) {
        explain(scenario, preemptions, &result);
    } else if (complete) {
        result.failure = unseen(scenario, result.seen);
    }
    return result;
}
