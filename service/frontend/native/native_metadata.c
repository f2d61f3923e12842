/* The words of gRPC in headers. */
#include <stdio.h>

#include "native_state.h"

static int64_t unit_ns(uint8_t unit) {
    switch (unit) {
    case 'H': return 3600ll * 1000000000;
    case 'M': return 60ll * 1000000000;
    case 'S': return 1000000000;
    case 'm': return 1000000;
    case 'u': return 1000;
    case 'n': return 1;
    default: return 0;
    }
}

/* "At most 8 digits and a unit". */
int64_t hr_parse_timeout_ns(hr_view value) {
    int64_t number = 0;
    if (value.length < 2 || value.length > 9) return -1;
    for (size_t i = 0; i + 1 < value.length; i++) {
        if (value.data[i] < '0' || value.data[i] > '9') return -1;
        number = number * 10 + (value.data[i] - '0');
    }
    int64_t unit = unit_ns(value.data[value.length - 1]);
    return unit == 0 ? -1 : number * unit; /* 10^8 hours are below 2^63 ns */
}

size_t hr_percent_encode(hr_view text, char *to) {
    static const char digits[] = "0123456789ABCDEF";
    char *at = to;
    for (size_t i = 0; i < text.length; i++) {
        uint8_t byte = text.data[i];
        if (byte >= ' ' && byte <= '~' && byte != '%') {
            *at++ = (char)byte;
            continue;
        }
        *at++ = '%';
        *at++ = digits[byte >> 4];
        *at++ = digits[byte & 15];
    }
    return (size_t)(at - to);
}

/* application/grpc, alone or with a subtype or parameters. */
bool hr_is_grpc(hr_view content_type) {
    static const char name[] = "application/grpc";
    size_t length = sizeof name - 1;
    if (!hr_view_starts(content_type, name)) return false;
    return content_type.length == length || content_type.data[length] == '+' || content_type.data[length] == ';';
}

/* `transient`: whether the same request may succeed later; -1: whoever failed it did not say. The table is that of
 * service.errors, and test_status_codes holds the two together. */
int hr_as_triton(bool triton, int code, int transient, hr_view text, char *to, size_t room, hr_view *told) {
    const char *words = "";
    *told = text;
    if (!triton) return code;
    if (code == HR_RESOURCE_EXHAUSTED) {
        code = transient == 0 ? HR_INVALID_ARGUMENT : HR_UNAVAILABLE;
        if (transient == 1) words = "Exceeds maximum queue size";
    } else if (code == HR_DEADLINE_EXCEEDED && transient != 1) {
        code = HR_UNAVAILABLE;
        words = "Request timeout expired";
    }
    if (hr_view_starts(text, words)) return code;
    int length = snprintf(to, room, "%s: %.*s", words, (int)text.length, (const char *)text.data);
    *told = (hr_view){(const uint8_t *)to, (size_t)length < room ? (size_t)length : room - 1};
    return code;
}
