/* Requests that are no gRPC calls: answered as HTTP knows it, so that who comes with curl, or a probe, reads what is wrong.
 *
 *   headers -> status and words at once -> what still comes is dropped -> the request's end -> the answer's end
 *
 * The answer ends with the request, and not before it: until then the stream stays open, and what the client does wrong on it
 * is found (RFC 9113, 5.1 and 8.1.1).
 */
#include "native_state.h"

#define PLAIN(name, value) \
    {(uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1, \
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}

static const char WRONG_METHOD[] = "expected a gRPC call, a POST with content-type application/grpc, got another method: this "
                                   "port speaks gRPC alone, ask with a gRPC client\n";
static const char WRONG_TYPE[] = "expected content-type application/grpc, got another or none: this port speaks gRPC alone, "
                                 "ask with a gRPC client\n";

static const nghttp2_nv METHOD_NOT_ALLOWED[] = {PLAIN(":status", "405"), PLAIN("content-type", "text/plain"),
                                                PLAIN("allow", "POST")};
static const nghttp2_nv UNSUPPORTED_TYPE[] = {PLAIN(":status", "415"), PLAIN("content-type", "text/plain")};

/* To HEAD the words are not said: without memory they are not either. */
static void say(hr_stream *s, const char *words, size_t length) {
    hr_message *m = s->head ? NULL : hr_message_new(1, 0);
    if (m == NULL) return;
    m->segments[0] = (hr_segment){(const uint8_t *)words, length};
    m->length = length;
    hr_stream_send(s, m);
}

void hr_http_refuse(hr_stream *s) {
    s->http = true;
    s->method = HR_METHOD_OVER;
    if (s->post) {
        hr_stream_respond(s, UNSUPPORTED_TYPE, sizeof UNSUPPORTED_TYPE / sizeof *UNSUPPORTED_TYPE);
        say(s, WRONG_TYPE, sizeof WRONG_TYPE - 1);
    } else {
        hr_stream_respond(s, METHOD_NOT_ALLOWED, sizeof METHOD_NOT_ALLOWED / sizeof *METHOD_NOT_ALLOWED);
        say(s, WRONG_METHOD, sizeof WRONG_METHOD - 1);
    }
}
