/* former.c: the whole worker as it is shipped, its former thread, a launcher and a control thread under their lock,
 * against a front end. The clock stands still: nothing but a wake-up ends a sleep. */
#include "worker_seam.h"

enum { FORMER = 0, FRONT = 1, LAUNCHER = 2, CONTROL = 3 };
enum { GRANULES = 8, HEADER = 512, MAX_WAIT = 1000, ARENA = FQ_PAGE + KIT_SLOTS * HEADER };

static lane_kit kit;
static fq_former former;
static fq_worker_page page;
static _Alignas(FQ_PAGE) unsigned char output[GRANULES * FQ_GRANULE], arena[ARENA];
static _Alignas(8) unsigned char output_books[64], records[1 << 18];
static int answered, cancelled, refused, ended;

void kit_write_eventfd(void) { ex_event_write(&kit.eventfd); }

/* ---- set-up: one lane of two slots, one model without inputs and with one output of 8 bytes ---- */

static void setup_worker(uint64_t granules, int64_t max_wait_ns) {
    memset(&former, 0, offsetof(fq_former, streams) + sizeof former.streams[0]);
    memset(records, 0, fq_attached_private_bytes(KIT_SLOTS));
    page.bell.wanted.v = 0;
    fq_former_init(&former, &page, output, granules * FQ_GRANULE, output_books);
    former.fixed_ns = 0;
    fq_model_config model = {.id = 1, .max_streams = 1, .outputs = 1, .output_row_bytes = {8}};
    model.signature.batched = 1;
    model.policy = (fq_policy){.max_batch = max_wait_ns ? 2 : 1, .max_wait_ns = max_wait_ns};
    (void)fq_former_add_model(&former, &model);
}

static void setup(uint32_t slots, uint64_t granules, int64_t max_wait_ns) {
    kit_setup(&kit, slots);
    answered = cancelled = refused = ended = 0;
    setup_worker(granules, max_wait_ns);
    kit.front.worker = &page.bell;
    (void)fq_former_attach(&former, kit.memory, slots, slots, arena, ARENA, 0, records);
}

static void setup_without_stream(void) { setup(2, GRANULES, 0); }
static void setup_with_stream(void) { setup(2, GRANULES, 0), (void)fq_former_add_stream(&former, 0); }
static void setup_one_slot(void) { setup(1, GRANULES, 0), (void)fq_former_add_stream(&former, 0); }
static void setup_little_memory(void) { setup(2, 2, 0), (void)fq_former_add_stream(&former, 0); } /* one block */
static void setup_waiting(void) { setup(2, GRANULES, MAX_WAIT), (void)fq_former_add_stream(&former, 0); }

/* ---- the worker's threads ---- */

static void run_former(void) {
    fq_former_run(&former);
    ended++;
}

static void run_launcher(void) {
    for (fq_batch *batch; (batch = fq_stream_next(&former, 0)) != NULL;) {
        if (!fq_batch_check(batch)) continue;
        if (fq_batch_reserve(batch, (fq_sizes[]){{8, NULL}}, 1) != FQ_RESERVED) {
            fq_batch_fail(batch, FQ_UNAVAILABLE, 0, "closed");
            continue;
        }
        fq_data_put(fq_batch_output(batch, 0), &batch->number, 8);
        ex_claim(fq_batch_complete(batch, &(fq_shape){.rank = 1, .dims = {1}}) == 0, "a batch without outputs");
    }
    ended++;
}

static void close_worker(void) { fq_former_close(&former); }

static void detach_after_front(void) {
    ex_wait_end(FRONT);
    fq_former_detach(&former, 0);
    ended++;
}

/* ---- the front end ---- */

static int ask(uint32_t rows) {
    fq_header header = {.bytes = sizeof header};
    uint32_t number;
    if (!fq_lane_claim(&kit.front, &number)) return -1;
    uint64_t at = FQ_PAGE + number * HEADER;
    fq_data_put(arena + at, &header, sizeof header);
    kit_publish(&kit, number, &(fq_slot){.model = 1, .rows = rows, .deadline_ns = FQ_NEVER, .header = {at, sizeof header}});
    return (int)number;
}

static void take_answer(void) {
    fq_completion done;
    fq_slice slice;
    uint64_t value = 0;
    kit_await(&kit, &done);
    if (done.status == 0) {
        memcpy(&slice, output + done.answer.offset + sizeof(fq_answer), sizeof slice);
        fq_data_get(&value, output + slice.data.offset, sizeof value);
        ex_claim(value == done.batch, "an answer was overwritten before it was read");
    }
    *(done.status == 0 ? &answered : done.status == FQ_CANCELLED ? &cancelled : &refused) += 1;
    kit_retire(&kit, done.slot, done.answer.length != 0);
}

static void ask_once(void) { (void)ask(1), take_answer(); }
static void ask_twice(void) { (void)ask(1), (void)ask(1), take_answer(), take_answer(); }
static void ask_for_full_and_more(void) { (void)ask(2), (void)ask(1), take_answer(); }
static void ask_three_times(void) { ask_once(), ask_once(), ask_once(); }

static void ask_and_cancel(void) {
    int number = ask(1);
    kit_cancel(&kit, (uint32_t)number);
    take_answer();
}

/* ---- how it ends ---- */

static const char *how_it_ended(void) {
    if (ex_asleep(FRONT)) return "the front end waits for ever";
    if (refused) return "refused";
    return cancelled ? "cancelled" : answered == 1 ? "answered" : "both answered";
}

static const char *closed(void) { return ended == 2 ? "both ended" : "a thread of a closed worker goes on"; }

/* With nobody left, everything is the worker's again. */
static const char *detached(void) {
    if (ended == 0) return "the detach waits for ever";
    if (fq_output_check(&former.output) != 0) return "an invariant is broken";
    if (former.output.free_granules != former.output.granules - 1) return "output memory is lost";
    return kit.front.lane.header->submission.tail.v ? "detached after a request" : "detached";
}

/* The front end goes on until it has let go of all three; then the worker takes stock. */
static const char *nothing_lost(void) {
    if (answered != 3) return "the front end waits for ever";
    (void)fq_former_step_now(&former);
    return former.output.free_granules == former.output.granules - 1 ? "nothing is lost" : "output memory is lost";
}

/* A full batch has run; behind it one row waits to be joined by another. Somebody must be awake when it has waited long
 * enough, although the former went to sleep when the stream was still busy. */
static const char *in_time(void) {
    if (!answered || !former.models[0].waiting) return "nobody took the request";
    return ex_asleep(FORMER) && ex_asleep_until(FORMER) > MAX_WAIT ? "nobody closes the batch in time" : "in time";
}

const ex_scenario ex_former[] = {
    {.property = "a request is formed, launched and answered, whoever sleeps when it comes", .preemptions = 2,
     .setup = setup_with_stream,
     .threads = {{"former", run_former, 0}, {"front end", ask_once, 0}, {"launcher", run_launcher, 0}},
     .outcome = how_it_ended,
     .outcomes = {{"answered", EX_ALLOWED}, {"the front end waits for ever", EX_FORBIDDEN}, {"refused", EX_FORBIDDEN}}},
    {.property = "a cancel right behind its request is seen, though no launch slot is ever free", .preemptions = 3,
     .setup = setup_without_stream, .threads = {{"former", run_former, 0}, {"front end", ask_and_cancel, 0}},
     .outcome = how_it_ended, .outcomes = {{"cancelled", EX_ALLOWED}, {"the front end waits for ever", EX_FORBIDDEN}}},
    {.property = "a launcher that waits for output memory gets what a reader gives back", .preemptions = 1,
     .setup = setup_little_memory,
     .threads = {{"former", run_former, 0}, {"front end", ask_twice, 0}, {"launcher", run_launcher, 0}},
     .outcome = how_it_ended,
     .outcomes = {{"both answered", EX_ALLOWED}, {"the front end waits for ever", EX_FORBIDDEN}}},
    {.property = "no release is lost, however often a slot is used between two looks", .preemptions = 1,
     .setup = setup_one_slot,
     .threads = {{"former", run_former, 0}, {"front end", ask_three_times, 0}, {"launcher", run_launcher, 0}},
     .outcome = nothing_lost,
     .outcomes = {{"nothing is lost", EX_ALLOWED}, {"output memory is lost", EX_FORBIDDEN},
                  {"the front end waits for ever", EX_FORBIDDEN}}},
    {.property = "a batch that waits to fill closes in time, whoever saw its stream become free", .preemptions = 1,
     .setup = setup_waiting,
     .threads = {{"former", run_former, 0}, {"front end", ask_for_full_and_more, 0}, {"launcher", run_launcher, 0}},
     .outcome = in_time,
     .outcomes = {{"in time", EX_ALLOWED}, {"nobody closes the batch in time", EX_FORBIDDEN},
                  {"nobody took the request", EX_FORBIDDEN}}},
    {.property = "a closed worker's threads end, wherever they are", .preemptions = 3, .setup = setup_with_stream,
     .threads = {{"former", run_former, 0}, {"closer", close_worker, 0}, {"launcher", run_launcher, 0}},
     .outcome = closed,
     .outcomes = {{"both ended", EX_ALLOWED}, {"a thread of a closed worker goes on", EX_FORBIDDEN}}},
    {.property = "of a front end that dies anywhere, all memory comes back", .preemptions = 1,
     .setup = setup_with_stream,
     .threads = {{"former", run_former, 0}, {"front end", ask_once, 1}, {"launcher", run_launcher, 0},
                 {"control", detach_after_front, 0}},
     .outcome = detached,
     .outcomes = {{"detached", EX_ALLOWED}, {"detached after a request", EX_ALLOWED},
                  {"the detach waits for ever", EX_FORBIDDEN}, {"output memory is lost", EX_FORBIDDEN},
                  {"an invariant is broken", EX_FORBIDDEN}}},
    {.property = NULL},
};
