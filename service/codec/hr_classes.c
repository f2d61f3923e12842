#include "hr_classes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- scores ---- */

typedef struct score {
    enum { SIGNED, UNSIGNED, REAL } kind;
    int64_t i;
    uint64_t u;
    double d;
} score;

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                  : ldexp(fraction, -24);
    return bits >> 15 ? -value : value;
}

static double single(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static double twice(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static score score_of(enum hr_datatype datatype, const uint8_t *data, uint64_t index) {
    uint32_t bytes = hr_datatype_bytes(datatype);
    uint64_t bits = 0; /* little-endian, as every machine this runs on */
    memcpy(&bits, data + index * bytes, bytes);
    switch (datatype) {
    case HR_INT8: return (score){SIGNED, (int8_t)bits, 0, 0};
    case HR_INT16: return (score){SIGNED, (int16_t)bits, 0, 0};
    case HR_INT32: return (score){SIGNED, (int32_t)bits, 0, 0};
    case HR_INT64: return (score){SIGNED, (int64_t)bits, 0, 0};
    case HR_FP16: return (score){REAL, 0, 0, half((uint16_t)bits)};
    case HR_BF16: return (score){REAL, 0, 0, single((uint32_t)bits << 16)};
    case HR_FP32: return (score){REAL, 0, 0, single((uint32_t)bits)};
    case HR_FP64: return (score){REAL, 0, 0, twice(bits)};
    default: return (score){UNSIGNED, 0, bits, 0};
    }
}

#define SIGN (UINT64_C(1) << 63)

/* A number that is larger for a better score. Below that of minus infinity there is room: for what is no number. */
static uint64_t key_of(score s) {
    uint64_t bits;
    if (s.kind == UNSIGNED) return s.u;
    if (s.kind == SIGNED) return (uint64_t)s.i ^ SIGN;
    if (isnan(s.d)) return 0;
    double value = s.d + 0.0; /* -0 becomes 0 */
    memcpy(&bits, &value, sizeof bits);
    return bits & SIGN ? ~bits : bits | SIGN;
}

bool hr_can_classify(enum hr_datatype datatype) {
    return datatype > HR_BOOL && datatype < HR_DATATYPES && datatype != HR_BYTES_DATATYPE;
}

size_t hr_class_text(enum hr_datatype datatype, const uint8_t *data, uint64_t index, char text[HR_CLASS_TEXT]) {
    score s = score_of(datatype, data, index);
    int n;
    if (s.kind == SIGNED) n = snprintf(text, HR_CLASS_TEXT, "%" PRId64 ":%" PRIu64, s.i, index);
    else if (s.kind == UNSIGNED) n = snprintf(text, HR_CLASS_TEXT, "%" PRIu64 ":%" PRIu64, s.u, index);
    else n = snprintf(text, HR_CLASS_TEXT, "%f:%" PRIu64, isnan(s.d) ? fabs(s.d) : s.d, index);
    return (size_t)n;
}

/* ---- the best: a heap of k with the worst of them on top ---- */

static bool worse(const hr_class *a, const hr_class *b) {
    return a->key < b->key || (a->key == b->key && a->index > b->index);
}

static void sink(hr_class *heap, uint64_t count, uint64_t at) {
    for (;;) {
        uint64_t worst = at;
        for (uint64_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (worse(&heap[child], &heap[worst])) worst = child;
        if (worst == at) return;
        hr_class moved = heap[at];
        heap[at] = heap[worst];
        heap[worst] = moved;
        at = worst;
    }
}

void hr_best_classes(enum hr_datatype datatype, const uint8_t *data, uint64_t count, hr_class *best, uint64_t k) {
    if (k == 0) return;
    for (uint64_t i = 0; i < k; i++) best[i] = (hr_class){key_of(score_of(datatype, data, i)), i};
    for (uint64_t i = k / 2; i-- > 0;) sink(best, k, i);
    for (uint64_t i = k; i < count; i++) {
        hr_class next = {key_of(score_of(datatype, data, i)), i};
        if (worse(&next, &best[0])) continue;
        best[0] = next;
        sink(best, k, 0);
    }
    for (uint64_t left = k; left > 1; left--) { /* the worst goes to the end */
        hr_class worst = best[0];
        best[0] = best[left - 1];
        best[left - 1] = worst;
        sink(best, left - 1, 0);
    }
}
