/* main.c: the command.
 *
 *   explorer [GROUP ...]           every scenario of these groups (default: all); exit code 1 when one fails
 *   explorer --hunt [GROUP ...]    fastqueue's scenarios, few preemptions first, until one fails: exit code 1; 0: none did
 *   explorer --weaken LABEL:ORDER [GROUP ...]
 *                                  the same, with that ordering weakened
 *   explorer --groups              their names
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "explorer.h"

enum { MOST_PREEMPTIONS = 8 };

typedef struct group {
    const char *name;
    const ex_scenario *scenarios;
} group;

static const group groups[] = {{"litmus", ex_litmus}, {"ring", ex_ring},     {"bell", ex_bell},
                               {"cancel", ex_cancel}, {"slot", ex_slot},     {"former", ex_former},
                               {NULL, NULL}};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int run_group(const group *g) {
    int failures = 0;
    for (const ex_scenario *s = g->scenarios; s->property; s++) {
        double start = seconds();
        ex_result result = ex_explore(s, s->preemptions, 1);
        printf("%-4s %-6s %9ld executions, %d preemptions, %5.2f s  %s\n", result.failure ? "FAIL" : "ok", g->name,
               result.executions, s->preemptions, seconds() - start, s->property);
        if (result.failure) printf("     %s\n", result.failure);
        failures += result.failure != NULL;
    }
    return failures;
}

static int find(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count && names[i]; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* LABEL:ORDER; 0, or -1 when there is no such label or ordering. */
static int parse_weakening(const char *text) {
    char label[8];
    const char *colon = strchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof label) return -1;
    memcpy(label, text, (size_t)(colon - text));
    label[colon - text] = 0;
    ex_weak_label = find(ex_label_names, FQ_LABEL_COUNT, label);
    ex_weak_order = find(ex_order_names, FQ_SC, colon + 1);
    return ex_weak_label > 0 && ex_weak_order >= 0 ? 0 : -1;
}

static int fails(const group *g, int preemptions) {
    for (const ex_scenario *s = g->scenarios; s->property; s++) {
        if (preemptions > s->preemptions || s->must_fail) continue;
        ex_result result = ex_explore(s, preemptions, 0);
        if (!result.failure) continue;
        printf("noticed by %s: %s: %s (after %ld executions with %d preemptions)\n", g->name, s->property, result.failure,
               result.executions, preemptions);
        return 1;
    }
    return 0;
}

static int wanted(const char *name, int count, char **names) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return 1;
    return count == 0;
}

static int hunt(int count, char **names) {
    for (int preemptions = 0; preemptions <= MOST_PREEMPTIONS; preemptions++)
        for (const group *g = groups + 1; g->name; g++) /* not litmus: it has no labels */
            if (wanted(g->name, count, names) && fails(g, preemptions)) return 1;
    puts("no scenario fails");
    return 0;
}

static int weaken(const char *text, int count, char **names) {
    if (parse_weakening(text) == 0) return hunt(count, names);
    fprintf(stderr, "explorer: %s is not LABEL:ORDER with a label of FQ_LABELS and an order of rlx, acq, rel\n", text);
    return 2;
}

static int list_groups(void) {
    for (const group *g = groups; g->name; g++) puts(g->name);
    return 0;
}

static int check_names(int count, char **names) {
    for (int i = 0; i < count; i++) {
        const group *g = groups;
        while (g->name && strcmp(g->name, names[i]) != 0) g++;
        if (!g->name) return fprintf(stderr, "explorer: there is no group %s\n", names[i]);
    }
    return 0;
}

int main(int argc, char **argv) {
    int weakened = argc > 2 && strcmp(argv[1], "--weaken") == 0, hunts = argc > 1 && strcmp(argv[1], "--hunt") == 0;
    int count = argc - (weakened ? 3 : hunts ? 2 : 1), failures = 0;
    char **names = argv + argc - count;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "--groups") == 0) return list_groups();
    if (check_names(count, names)) return 2;
    if (weakened) return weaken(argv[2], count, names);
    if (hunts) return hunt(count, names);
    for (const group *g = groups; g->name; g++)
        if (wanted(g->name, count, names)) failures += run_group(g);
    return failures != 0;
}
