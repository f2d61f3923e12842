/* One message, without the wire: scanned, checked against each model, and sent to the worker and back if it can be. */
#include "fuzz_rig.h"
#include "hr_scan.h"
#include "hr_validate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const hr_spec *spec, const hr_request *request) {
    static hr_bound bound;
    hr_error err;
    if (hr_validate(spec, request, &bound, &err) == 0) FUZZ_EXPECT(bound.input_count == spec->input_count);
    else FUZZ_EXPECT(err.code > 0 && strlen(err.text) > 10);
}

static void encode(hr_io *io) {
    hr_answer *a = &io->answer;
    while (hr_dispatch_next(io->dispatch, io->now_ns, a)) {
        uint64_t bytes = a->code ? 0 : hr_encoded_bytes(&a->response);
        uint8_t *to = malloc(bytes + 1); /* of the very size: a byte too many is seen */
        if (a->code == 0) FUZZ_EXPECT(hr_encode(&a->response, to) == to + bytes);
        free(to);
        hr_dispatch_retire(io->dispatch, a);
    }
}

static void submit(hr_io *io, const uint8_t *data, size_t size) {
    hr_error err;
    uint64_t handle;
    hr_call call = {.token = 1, .arrival_ns = io->now_ns, .deadline_ns = INT64_MAX, .stream = size & 1};
    int failed = hr_dispatch_submit(io->dispatch, data, size, &call, &handle, &err);
    if (failed) FUZZ_EXPECT(err.code > 0 && err.code <= HR_LAST_CODE && strlen(err.text) > 10);
    fuzz_worker();
    encode(io);
    fuzz_worker();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hr_request request;
    hr_error err;
    hr_io *io = fuzz_io();
    uint8_t *exact = malloc(size ? size : 1); /* what is read behind its end is seen */
    if (size) memcpy(exact, data, size);
    if (hr_scan(exact, size, &request, &err) == 0)
        for (uint32_t i = 0; i < FUZZ_MODELS; i++) check(fuzz_model(i), &request);
    submit(io, exact, size);
    free(exact);
    fuzz_end();
    return 0;
}
