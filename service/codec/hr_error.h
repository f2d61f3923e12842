/* hr_error.h: how the codec says no.
 *
 * An error is a gRPC status code and one sentence for the caller: it names the tensor or parameter, what was expected
 * and what came. Names in it were sent by a client and may be of any length, so each is cut (at a
 * character, never inside one) to leave room for the rest of the sentence.
 */
#ifndef HR_ERROR_H
#define HR_ERROR_H

#include <stdbool.h>

#include "hr_wire.h"

enum hr_code {
    HR_OK = 0,
    HR_INVALID_ARGUMENT = 3,
    HR_DEADLINE_EXCEEDED = 4,
    HR_NOT_FOUND = 5,
    HR_RESOURCE_EXHAUSTED = 8,
    HR_UNIMPLEMENTED = 12,
    HR_INTERNAL = 13,
    HR_UNAVAILABLE = 14,
    HR_LAST_CODE = 16
};

enum {
    HR_TEXT = 512,      /* bytes of a message, terminating zero included */
    HR_NAME_SHOWN = 96, /* bytes of a client's name that a message shows */
    HR_SHAPE_TEXT = 224 /* enough for "[d,d,...]" of 8 dimensions and "..." */
};

typedef struct hr_error {
    int code;
    bool transient; /* the same request may succeed a little later */
    char text[HR_TEXT];
} hr_error;

/* Fills in the error and returns -1, so that a check ends with `return hr_fail(...)`. */
int hr_fail(hr_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The bytes of a view that a message shows: at most `most`, and whole characters. */
int hr_shown_up_to(hr_view v, size_t most);
static inline int hr_shown(hr_view v) { return hr_shown_up_to(v, HR_NAME_SHOWN); }

/* For "%.*s". */
#define HR_NAME(v) hr_shown(v), (const char *)(v).data

/* Writes "[1,16]" and returns `text`. A rank above 8 ends in "...": no more dimensions are kept. */
const char *hr_shape_text(char text[HR_SHAPE_TEXT], const int64_t *dims, uint32_t rank);

#endif
