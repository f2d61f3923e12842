/* Outputs that are told as their best classes (hr_classes.h). The texts are made here, once, when the answer is taken:
 * they live until it is retired, so that an answer can be sent from where it lies like any other. */
#include <stdlib.h>

#include "dispatch_state.h"
#include "hr_classes.h"

typedef struct texts {
    uint8_t *data;
    size_t length;
    size_t room;
} texts;

static int refuse(hr_answer *out, const hr_pending *p, const char *what) {
    out->code = HR_RESOURCE_EXHAUSTED;
    return hr_fail(&out->error, out->code, "the classes of model '%.*s' %s: ask for fewer classes or rows",
                   HR_NAME(p->spec->name), what);
}

/* One element of BYTES: its length, the text, ':' and the label where there is one. -1: it becomes too large. */
static int add_text(texts *t, const char *text, size_t length, hr_view label) {
    size_t bytes = length + (label.length ? 1 + label.length : 0), needed = t->length + 4 + bytes;
    uint32_t announced = (uint32_t)bytes;
    if (needed > HR_MAX_RESPONSE) return -1;
    if (needed > t->room) {
        size_t room = needed < 512 ? 1024 : 2 * needed;
        uint8_t *data = realloc(t->data, room);
        if (data == NULL) return -1;
        t->data = data;
        t->room = room;
    }
    uint8_t *to = t->data + t->length;
    memcpy(to, &announced, 4);
    memcpy(to + 4, text, length);
    if (label.length > 0) {
        to[4 + length] = ':';
        memcpy(to + 5 + length, label.data, label.length);
    }
    t->length = needed;
    return 0;
}

static int add_row(texts *t, const hr_tensor_spec *spec, const uint8_t *row, const hr_class *best, uint64_t k) {
    char text[HR_CLASS_TEXT];
    for (uint64_t i = 0; i < k; i++) {
        size_t length = hr_class_text(spec->datatype, row, best[i].index, text);
        if (add_text(t, text, length, hr_label(spec, best[i].index)) < 0) return -1;
    }
    return 0;
}

static int add_rows(texts *t, const hr_tensor_spec *spec, hr_view data, uint64_t rows, uint64_t count, uint64_t k) {
    hr_class *best = k > 0 && rows > 0 ? malloc(k * sizeof *best) : NULL;
    int failed = k > 0 && rows > 0 && best == NULL ? -1 : 0;
    uint64_t row_bytes = count * hr_datatype_bytes(spec->datatype);
    for (uint64_t row = 0; best != NULL && row < rows && failed == 0; row++) {
        hr_best_classes(spec->datatype, data.data + row * row_bytes, count, best, k);
        failed = add_row(t, spec, data.data + row * row_bytes, best, k);
    }
    free(best);
    return failed;
}

int hr_answer_classes(hr_answer *out, const hr_pending *p, const hr_tensor_spec *spec, uint32_t most) {
    uint32_t i = out->response.output_count - 1, axis = p->spec->max_batch_size > 0;
    hr_output *o = &out->outputs[i];
    uint64_t rows = axis ? (uint64_t)out->dims[i][0] : 1, count = 1;
    for (uint32_t d = axis; d < o->rank; d++) count *= (uint64_t)out->dims[i][d];
    uint64_t k = most < count ? most : count, classes;
    if (__builtin_mul_overflow(rows, k, &classes) || classes > HR_MAX_CLASSES - out->classes)
        return refuse(out, p, "are more than the 1048576 that an answer may have");
    texts t = {0};
    int failed = add_rows(&t, spec, o->data, rows, count, k);
    if (t.data != NULL) out->texts[out->text_count++] = t.data;
    if (failed < 0) return refuse(out, p, "have more text than a message can have");
    out->classes += classes;
    out->dims[i][axis] = (int64_t)k;
    o->rank = axis + 1;
    o->datatype = hr_datatype_name(HR_BYTES_DATATYPE);
    o->data = (hr_view){t.data, t.length};
    return 0;
}

void hr_answer_free_texts(const hr_answer *answer) {
    for (uint32_t i = 0; i < answer->text_count; i++) free(answer->texts[i]);
}
