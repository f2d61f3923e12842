/* two_producers.c: two threads send rows, a third runs them in batches; the model is y = 2x + 1. No Python, and to compile:
 * cc -std=c11 -D_GNU_SOURCE -I$(python -P -c 'import fastqueue; print(fastqueue.get_include())') two_producers.c -pthread */
#include <stdlib.h>
#include "fq_control.h"
#include "fq_fill.h"
enum { PRODUCERS = 2, SLOTS = 64, REQUESTS = 20000, MAX_BATCH = 8 };
static fq_former former; static fq_worker_page page; /* the worker; its memory */
static _Alignas(FQ_PAGE) unsigned char output[1 << 20], output_books[4096], lanes[PRODUCERS][1 << 16];
static _Alignas(FQ_PAGE) unsigned char arenas[PRODUCERS][2 * FQ_LARGE], books[PRODUCERS][24];
static fq_front_lane fronts[PRODUCERS]; static int wakers[PRODUCERS]; /* a front end each, and its eventfd */

static void *produce(void *argument) {
    fq_front_lane *front = (fq_front_lane *)argument;
    uint32_t free_slots[SLOTS], number, me = (uint32_t)(front - fronts), sent = 0, answered = 0;
    unsigned char states[SLOTS];
    fq_input input; fq_extent blocks[SLOTS]; float x[SLOTS]; /* the arena's allocator; of each slot its memory and its row */
    fq_input_init(&input, 1, books[me]), fq_front_lane_init(front, free_slots, states);
    while (answered < REQUESTS) {
        for (fq_slot *slot; sent < REQUESTS && (slot = fq_lane_claim(front, &number)); x[number] = (float)sent++) {
            fq_source source = {.rank = 2, .dims = (int64_t[]){1, 1}, .data = &(float){(float)sent}, .length = sizeof *x};
            slot->model = slot->rows = 1, slot->arrival_ns = fq_monotonic_ns(), slot->deadline_ns = FQ_NEVER;
            if (fq_fill(&input, arenas[me], &source, 1, &blocks[number], slot) != 1) abort();
            if (fq_lane_publish(front, number) == 1) fq_bell_wake(&page.bell);
        }
        if (fq_front_lane_arm(front) && read(wakers[me], &(uint64_t){0}, 8) != 8) abort();
        for (fq_completion done; fq_lane_poll(front, &done) == 1; answered++) {
            const fq_slice *y = (const fq_slice *)(output + done.answer.offset + sizeof(fq_answer));
            if (done.status || *(const float *)(output + y->data.offset) != 2 * x[done.slot] + 1) abort();
            fq_input_free(&input, &blocks[done.slot], 1);
            if (fq_lane_retire(front, done.slot, 1)) fq_bell_wake(&page.bell);
        }
    }
    return NULL;
}

static void *launch(void *argument) {
    for (uint32_t rows = 0, n; rows < PRODUCERS * REQUESTS; rows += n) {
        fq_batch *batch = fq_stream_next(&former, 0); float x[MAX_BATCH];
        if (!fq_batch_check(batch) || fq_batch_gather(batch, 0, x, sizeof x) != 0) abort();
        if (fq_batch_reserve(batch, (fq_sizes[]){{sizeof *x, NULL}}, 1) != FQ_RESERVED) abort();
        n = batch->rows;
        for (uint32_t row = 0; row < n; row++) ((float *)fq_batch_output(batch, 0))[row] = 2 * x[row] + 1;
        fq_batch_complete(batch, &(fq_shape){.rank = 2, .dims = {n, 1}});
    }
    return fq_former_close(&former), argument;
}

int main(void) {
    pthread_t threads[PRODUCERS + 1];
    fq_model_config model = {.id = 1, .max_streams = 1, .outputs = 1, .policy = {.max_batch = MAX_BATCH},
                             .signature = {.inputs = 1, .batched = 1, .element_bytes = {4}}, .output_row_bytes = {4}};
    fq_former_init(&former, &page, output, sizeof output, output_books);
    fq_former_add_model(&former, &model), fq_former_add_stream(&former, 0);
    for (int i = 0; i < PRODUCERS; i++) {
        void *records = calloc(1, fq_attached_private_bytes(SLOTS));
        fq_lane_format(lanes[i], SLOTS, SLOTS), fq_lane_attach(&fronts[i].lane, lanes[i], SLOTS, SLOTS, 1);
        fronts[i].worker = &page.bell, wakers[i] = eventfd(0, 0);
        fq_former_attach(&former, lanes[i], SLOTS, SLOTS, arenas[i], sizeof arenas[i], wakers[i], records);
        pthread_create(&threads[i], NULL, produce, &fronts[i]);
    }
    pthread_create(&threads[PRODUCERS], NULL, launch, NULL);
    fq_former_run(&former);
    for (int i = 0; i <= PRODUCERS; i++) pthread_join(threads[i], NULL);
    printf("%d rows in %llu batches\n", PRODUCERS * REQUESTS, (unsigned long long)former.batch_count);
}
