/* A peer whose frames are whole, and whose header blocks, messages and order are not: what an input says, step by step.
 *
 * A step is a byte (what, and of which stream) and what goes with it: STEPS below.
 */
#include "fuzz_rig.h"

enum step { HEADERS, BLOCK, DATA, MESSAGE, END, RESET, WINDOW, SETTINGS, GOAWAY, PING, TURN, STEPS };
enum { STREAMS = 16, FRAME = 1 << 14 };

static const char HELLO[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
static const char *const PATHS[] = {"/inference.GRPCInferenceService/ModelInfer",
                                    "/inference.GRPCInferenceService/ModelStreamInfer", "/t.T/Python"};
static const char *const OTHERS[][2] = {{"grpc-timeout", "3m"},          {"grpc-encoding", "gzip"},
                                        {"grpc-encoding", "deflate"},    {"triton_grpc_error", "true"},
                                        {"content-type", "text/plain"}, {"x-bin", "AAAA"}};

typedef struct input {
    const uint8_t *at, *end;
} input;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t byte(input *in) { return in->at < in->end ? *in->at++ : 0; }

/* The next bytes, as many as two say. */
static hr_view bytes(input *in) {
    size_t length = byte(in);
    length |= (size_t)byte(in) << 8;
    if (length > (size_t)(in->end - in->at)) length = (size_t)(in->end - in->at);
    hr_view found = {in->at, length};
    in->at += length;
    return found;
}

static void frame(fuzz_peer *peer, uint8_t type, uint8_t flags, uint32_t stream, hr_view payload) {
    static uint8_t room[9 + (1 << 17)];
    uint32_t length = (uint32_t)payload.length;
    uint8_t head[9] = {(uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length, type, flags,
                       (uint8_t)(stream >> 24), (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    memcpy(room, head, sizeof head);
    if (length) memcpy(room + sizeof head, payload.data, length);
    fuzz_send(peer, room, sizeof head + length);
}

static uint8_t *literal(uint8_t *to, const char *name, const char *value) {
    *to++ = 0;
    *to++ = (uint8_t)strlen(name);
    to = (uint8_t *)mempcpy(to, name, strlen(name));
    *to++ = (uint8_t)strlen(value);
    return (uint8_t *)mempcpy(to, value, strlen(value));
}

static void headers(fuzz_peer *peer, input *in, uint32_t stream) {
    uint8_t room[1024], *to = room, choice = byte(in), more = byte(in);
    to = literal(to, ":method", more & 64 ? "GET" : "POST");
    to = literal(to, ":scheme", "http");
    to = literal(to, ":path", PATHS[choice % 3]);
    to = literal(to, ":authority", "x");
    to = literal(to, "content-type", "application/grpc");
    for (int i = 0; i < 6; i++)
        if (more >> i & 1) to = literal(to, OTHERS[i][0], OTHERS[i][1]);
    frame(peer, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | (choice >> 7), stream, (hr_view){room, (size_t)(to - room)});
}

/* With its prefix; the highest bit of the kind's byte: it is called compressed. */
static void message(fuzz_peer *peer, input *in, uint32_t stream) {
    static uint8_t room[HR_PREFIX + (1 << 16)];
    uint8_t kind = byte(in);
    hr_view body = bytes(in);
    hr_put_prefix(room, body.length);
    room[0] = kind >> 7;
    if (body.length) memcpy(room + HR_PREFIX, body.data, body.length);
    frame(peer, NGHTTP2_DATA, kind & 1, stream, (hr_view){room, HR_PREFIX + body.length});
}

static void number(fuzz_peer *peer, uint8_t type, uint32_t stream, uint32_t value) {
    uint8_t payload[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    frame(peer, type, 0, stream, (hr_view){payload, 4});
}

static void settings(fuzz_peer *peer, input *in) {
    hr_view payload = bytes(in);
    payload.length -= payload.length % 6;
    frame(peer, NGHTTP2_SETTINGS, 0, 0, payload);
}

static void step(fuzz_peer *peer, input *in) {
    uint8_t what = byte(in);
    uint32_t stream = 2 * (what / STEPS % STREAMS) + 1;
    switch ((enum step)(what % STEPS)) {
    case HEADERS: headers(peer, in, stream); break;
    case BLOCK: frame(peer, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | (byte(in) & 1), stream, bytes(in)); break;
    case DATA: frame(peer, NGHTTP2_DATA, byte(in) & 1, stream, bytes(in)); break;
    case MESSAGE: message(peer, in, stream); break;
    case END: frame(peer, NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, stream, (hr_view){0}); break;
    case RESET: number(peer, NGHTTP2_RST_STREAM, stream, NGHTTP2_CANCEL); break;
    case WINDOW: number(peer, NGHTTP2_WINDOW_UPDATE, byte(in) & 1 ? stream : 0, (uint32_t)byte(in) << (byte(in) & 23)); break;
    case SETTINGS: settings(peer, in); break;
    case GOAWAY: frame(peer, NGHTTP2_GOAWAY, 0, 0, (hr_view){(const uint8_t *)"\0\0\0\0\0\0\0\0", 8}); break;
    case PING: frame(peer, NGHTTP2_PING, 0, 0, (hr_view){(const uint8_t *)"12345678", 8}); break;
    case TURN:
    case STEPS: fuzz_turn(peer); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, data + size};
    fuzz_peer peer = fuzz_connect();
    fuzz_send(&peer, (const uint8_t *)HELLO, sizeof HELLO - 1);
    while (in.at < in.end) step(&peer, &in);
    for (int i = 0; i < 4; i++) fuzz_turn(&peer); /* what can be answered is */
    fuzz_hang_up(&peer);
    fuzz_end();
    return 0;
}
