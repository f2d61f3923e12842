#include "hr_strings.h"

/* Takes the first element off; false when there is no whole one, and *length is then what it announces, if it does. */
static bool next_raw(hr_view *rest, uint32_t *length) {
    *length = 0;
    if (rest->length < HR_STRING_HEAD) return false;
    memcpy(length, rest->data, HR_STRING_HEAD); /* little-endian, as every machine this runs on */
    if (*length > rest->length - HR_STRING_HEAD) return false;
    *rest = (hr_view){rest->data + HR_STRING_HEAD + *length, rest->length - HR_STRING_HEAD - *length};
    return true;
}

hr_strings hr_strings_in(hr_view data) {
    hr_strings found = {0};
    while (next_raw(&data, &found.length)) found.count++;
    found.left = data.length;
    return found;
}

bool hr_strings_are_text(hr_view data, uint64_t *element) {
    uint32_t length;
    const uint8_t *string = data.data + HR_STRING_HEAD;
    for (*element = 0; next_raw(&data, &length); ++*element, string = data.data + HR_STRING_HEAD)
        if (!hr_utf8_valid((hr_view){string, length})) return false;
    return true;
}

/* ---- rows ---- */

hr_row_ends hr_row_ends_at(const hr_input *input, hr_view raw, bool is_typed) {
    hr_row_ends w = {.is_typed = is_typed, .raw = raw, .elements = 1};
    if (is_typed) w.typed = hr_typed_at(input, HR_BYTES_DATATYPE);
    for (uint32_t d = 1; d < input->rank; d++) w.elements *= (uint64_t)input->dims[d];
    return w;
}

static void pass_row(hr_row_ends *w) {
    for (uint64_t i = 0; i < w->elements; i++) {
        uint32_t length = 0;
        bool there = w->is_typed ? hr_typed_next_string(&w->typed, &length) : next_raw(&w->raw, &length);
        if (!there) return; /* never: the elements were counted */
        w->end += HR_STRING_HEAD + (uint64_t)length;
    }
}

void hr_row_ends_write(void *walk, void *to, uint64_t length) {
    hr_row_ends *w = walk;
    uint8_t *at = to, *end = at + length;
    for (; at < end; at += sizeof w->end) {
        pass_row(w);
        memcpy(at, &w->end, sizeof w->end);
    }
}
