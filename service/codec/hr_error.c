#include "hr_error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

int hr_shown_up_to(hr_view v, size_t most) {
    if (v.length <= most) return (int)v.length;
    size_t n = most;
    while (n > 0 && (v.data[n] & 0xc0) == 0x80) n--;
    return (int)n;
}

int hr_fail(hr_error *err, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(err->text, HR_TEXT, format, arguments);
    va_end(arguments);
    if (length >= HR_TEXT) {
        hr_view whole = {(const uint8_t *)err->text, HR_TEXT - 1};
        err->text[hr_shown_up_to(whole, HR_TEXT - 4)] = '\0';
        size_t end = strlen(err->text);
        memcpy(err->text + end, "...", 4);
    }
    err->code = code;
    err->transient = false;
    return -1;
}

const char *hr_shape_text(char text[HR_SHAPE_TEXT], const int64_t *dims, uint32_t rank) {
    size_t at = 1;
    text[0] = '[';
    for (uint32_t i = 0; i < rank && i < HR_MAX_RANK; i++) {
        int n = snprintf(text + at, HR_SHAPE_TEXT - at, "%s%" PRId64, i ? "," : "", dims[i]);
        at += (size_t)n;
    }
    snprintf(text + at, HR_SHAPE_TEXT - at, rank > HR_MAX_RANK ? ",...]" : "]");
    return text;
}
