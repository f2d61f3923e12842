/* What a worker believes of a request that another process wrote: every rule, and anything at all. */
#include "check.h"
#include "fq_request.h"

enum { ARENA = 3 * FQ_PAGE, AT = FQ_PAGE + 64 };

/* Two inputs, INT32 [rows, 5] in two extents and FP64 [rows, 2] in one, at the end of an arena that ASan watches. */
typedef struct fixture {
    unsigned char *arena;
    fq_request request;
    fq_signature signature;
} fixture;

static fq_header *header_of(const fixture *f) { return (fq_header *)(f->arena + AT); }
static fq_tensor *tensors_of(const fixture *f) { return (fq_tensor *)(header_of(f) + 1); }
static fq_extent *extents_of(const fixture *f) { return (fq_extent *)(tensors_of(f) + 2); }

static fixture make(void) {
    fixture f = {.arena = aligned_alloc(FQ_PAGE, ARENA)};
    CHECK(f.arena);
    memset(f.arena, 0, ARENA);
    f.request.header = malloc(FQ_HEADER_MAX);
    f.signature = (fq_signature){.inputs = 2, .batched = 1, .element_bytes = {4, 8}};
    f.request.slot = (fq_slot){.model = 1, .rows = 3, .header = {AT, fq_header_bytes(2, 3)}};
    *header_of(&f) = (fq_header){.bytes = (uint32_t)fq_header_bytes(2, 3), .tensor_count = 2, .extent_count = 3};
    tensors_of(&f)[0] = (fq_tensor){.index = 0, .rank = 2, .extent_count = 2, .length = 60, .dims = {3, 5}};
    tensors_of(&f)[1] =
        (fq_tensor){.index = 1, .rank = 2, .first_extent = 2, .extent_count = 1, .length = 48, .dims = {3, 2}};
    extents_of(&f)[0] = (fq_extent){2 * FQ_PAGE, 40};
    extents_of(&f)[1] = (fq_extent){2 * FQ_PAGE + 64, 20};
    extents_of(&f)[2] = (fq_extent){ARENA - 48, 48};
    return f;
}

static void destroy(fixture *f) {
    free(f->arena);
    free(f->request.header);
}

static int judge(fixture *f) {
    int broken = fq_request_load(&f->request, f->arena, ARENA);
    return broken ? broken : fq_request_check(&f->request, &f->signature, ARENA);
}

/* Breaks one thing and asks which rule that was. */
#define BROKEN(rule, ...)                                                                                    \
    do {                                                                                                     \
        fixture f = make();                                                                                  \
        __VA_ARGS__;                                                                                         \
        CHECK_EQ(judge(&f), rule);                                                                           \
        destroy(&f);                                                                                         \
    } while (0)

TEST(a_good_request_is_accepted_and_found_again) {
    fixture f = make();
    CHECK_EQ(judge(&f), 0);
    CHECK(fq_request_tensor(&f.request, 0)->length == 60);
    CHECK(fq_request_tensor(&f.request, 1)->length == 48);
    CHECK(fq_request_tensor(&f.request, 2) == NULL);
    CHECK(fq_request_extents(&f.request)[2].offset == ARENA - 48);
    memset(f.arena, 0xff, ARENA); /* the copy is what counts from here on */
    CHECK_EQ(fq_request_check(&f.request, &f.signature, ARENA), 0);
    destroy(&f);
}

TEST(every_rule_of_the_slot) {
    BROKEN(1, f.request.slot.header.offset = FQ_PAGE - 64);
    BROKEN(1, f.request.slot.header.offset = ARENA);
    BROKEN(1, f.request.slot.header.offset = UINT64_MAX - 7);
    BROKEN(1, f.request.slot.header.offset += 4);
    BROKEN(1, f.request.slot.header.length = UINT64_MAX);
    BROKEN(2, f.request.slot.header.length = sizeof(fq_header) - 1);
    BROKEN(5, f.signature.batched = 0);
    BROKEN(14, f.request.slot.rows = 2);
}

TEST(every_rule_of_the_header) {
    BROKEN(3, header_of(&f)->tensor_count = FQ_MAX_TENSORS + 1);
    BROKEN(3, header_of(&f)->extent_count = UINT32_MAX);
    BROKEN(4, header_of(&f)->bytes++);
    BROKEN(4, header_of(&f)->tensor_count = 1);
    BROKEN(4, f.request.slot.header.length -= 8);
}

TEST(every_rule_of_the_tensors) {
    BROKEN(6, tensors_of(&f)[1].index = 0);
    BROKEN(7, tensors_of(&f)[0].first_extent = 1);
    BROKEN(7, tensors_of(&f)[1].extent_count = 2);
    BROKEN(7, tensors_of(&f)[1].first_extent = UINT32_MAX);
    BROKEN(8, (tensors_of(&f)[1].extent_count = 0, tensors_of(&f)[1].length = 0, tensors_of(&f)[1].dims[1] = 0));
    BROKEN(11, tensors_of(&f)[1].index = 2);
    BROKEN(11, tensors_of(&f)[1].rank = FQ_MAX_RANK + 1);
    BROKEN(13, tensors_of(&f)[0].length = 64);
    BROKEN(14, tensors_of(&f)[0].rank = 0);
    BROKEN(14, tensors_of(&f)[0].dims[0] = 4);
    BROKEN(15, tensors_of(&f)[0].dims[1] = 6);
    BROKEN(15, tensors_of(&f)[0].dims[1] = -5);
    BROKEN(15, tensors_of(&f)[0].dims[1] = INT64_MAX);
    BROKEN(15, (tensors_of(&f)[0].rank = 3, tensors_of(&f)[0].dims[2] = 0));
}

TEST(every_rule_of_the_extents) {
    BROKEN(12, extents_of(&f)[0].offset = 64); /* the arena's own header */
    BROKEN(12, extents_of(&f)[2].offset++);
    BROKEN(12, extents_of(&f)[2].length++);
    BROKEN(12, extents_of(&f)[0].offset = UINT64_MAX);
    BROKEN(12, extents_of(&f)[0].length = UINT64_MAX);
}

/* A table of row ends takes the place of the length by shape: without one such a tensor is not read. */
TEST(elements_of_variable_size_have_a_table_of_row_ends) {
    BROKEN(17, (f.signature.element_bytes[0] = 0, tensors_of(&f)[0].dims[1] = 99));
    BROKEN(0, (f.signature.element_bytes[0] = 0, f.signature.batched = 0, f.request.slot.rows = 1));
    BROKEN(7, tensors_of(&f)[0].table_extents = 1000);
    BROKEN(7, tensors_of(&f)[1].table_extents = UINT32_MAX);
}

/* Whatever it accepts, all it names lies in the arena. ASan sees every byte that is read to find out. */
TEST(anything_at_all_is_judged_without_a_stray_read) {
    long accepted = 0, sum = 0;
    for (int step = 0; step < 100000; step++) {
        fixture f = make();
        for (uint64_t n = test_below(3); n > 0; n--) {
            unsigned char *at = test_below(8) ? (unsigned char *)header_of(&f) + test_below(fq_header_bytes(2, 3))
                                              : (unsigned char *)&f.request.slot.header + test_below(16);
            *at = (unsigned char)(test_below(2) ? test_random() : *at + test_below(5) - 2);
        }
        if (judge(&f) == 0) {
            const fq_extent *e = fq_request_extents(&f.request);
            for (uint32_t i = 0; i < fq_request_header(&f.request)->extent_count; i++)
                for (uint64_t b = 0; b < e[i].length; b++) sum += f.arena[e[i].offset + b];
            accepted++;
        }
        destroy(&f);
    }
    CHECK(accepted > 1000 && sum >= 0);
}

/* ---- what may share a batch ---- */

TEST(requests_share_a_batch_when_all_but_the_first_axis_agrees) {
    fixture a = make(), b = make();
    CHECK_EQ(judge(&a) | judge(&b), 0);
    a.request.key = fq_request_key(&a.request);
    struct {
        int64_t rows, dim;
        uint32_t rank;
        int same;
    } cases[] = {{3, 5, 2, 1}, {7, 5, 2, 1}, {3, 6, 2, 0}, {3, 5, 1, 0}, {3, 5, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fq_tensor *t = (fq_tensor *)(b.request.header + sizeof(fq_header));
        t->dims[0] = cases[i].rows, t->dims[1] = cases[i].dim, t->rank = cases[i].rank;
        b.request.key = fq_request_key(&b.request);
        CHECK_EQ(fq_request_same_key(&a.request, &b.request), cases[i].same);
        b.request.key = a.request.key; /* a hash that collides decides nothing */
        CHECK_EQ(fq_request_same_key(&a.request, &b.request), cases[i].same);
    }
    destroy(&a);
    destroy(&b);
}
