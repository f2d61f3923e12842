/* native_state.h: what the parts of the native front end know of each other; for native_*.c alone. */
#ifndef HR_NATIVE_STATE_H
#define HR_NATIVE_STATE_H

#include <nghttp2/nghttp2.h>
#include <pthread.h>
#include <stdatomic.h>

#include "dispatch.h"
#include "dispatch_deadlines.h"
#include "native.h"

enum {
    HR_PREFIX = 5,                  /* bytes before a gRPC message: a flag and a length */
    HR_HEADER_BYTES = 16 << 10,     /* of a call's headers at most, counted as HTTP/2 counts them */
    HR_STREAMS = 1024,              /* of a connection at most */
    HR_STREAM_WINDOW = 4 << 20,     /* bytes */
    HR_CONNECTION_WINDOW = 32 << 20,
    HR_FRAME = 1 << 20,             /* what a peer may put into one frame */
    HR_SEND_FRAME = 256 << 10,      /* what we put into one, if the peer lets us */
    HR_SEND_BUFFER = 256 << 10,     /* of a socket to this machine itself; the kernel takes twice that */
    HR_OUTPUT_CAP = 1 << 20,        /* bytes that a connection takes over from its streams at once */
    HR_REFER = 2048,                /* payloads from this size are referred to, smaller ones copied */
    HR_READ = 16 << 10,             /* the side buffer of a read */
    HR_DIRECT = 4096,               /* rest of a frame from which the socket is read straight into a message */
    HR_READS = 8,                   /* of one connection in one wake-up */
    HR_FIRST_ROOM = 16 << 10,       /* what a message gets before more of it has come */
    HR_AHEAD = 192 << 10,           /* what it gets beyond what has come, until as much has come */
    HR_WAITERS = 16,                /* messages of a connection that may wait for memory */
    HR_PLACED = 16 << 10,           /* messages from this size are received into the input arena */
    HR_INFLATED = 64 << 20,         /* what a compressed message may become: the I/O thread does nothing else meanwhile */
    HR_PACKED = 4 << 20,            /* larger answers go as they are, for the same reason */
    HR_KEEP = 16 << 10,             /* answers up to this size are encoded whole */
    HR_WINDOW = 64,                 /* requests in flight on one stream */
    HR_READ_AHEAD = 64 << 20,       /* bytes of a stream's requests without answers, or answers not sent */
    HR_READ_TO_REFUSE = 64 << 20,   /* a message that is too large by no more is read, to be refused in its turn */
    HR_PINGS = 10000,               /* in a row, with nothing that calls carry in between */
    HR_IDLE_FRAMES = 100000,        /* frames in a row that carry nothing */
    HR_IDLE_BYTES = 40 << 20,       /* the same; more than a refused message of which the client does not know yet */
    HR_QUEUED_FRAMES = 10 << 10,    /* that a peer brings about and does not read: some for each stream */
    HR_ENDED = 64,                  /* streams that the client has ended, of which that is known */
    HR_PATH = 256,                  /* of a method */
    HR_SEALED_READ = 64 << 10,      /* TLS: of one read */
    HR_SEALED = 128 << 10           /* TLS: bytes from which records are sent */
};

typedef struct hr_io hr_io;
typedef struct hr_connection hr_connection;
typedef struct hr_stream hr_stream;
typedef struct hr_entry hr_entry;
typedef struct hr_tls hr_tls;

/* ---- native_output.c: what goes out ---- */

/* A gRPC message with its prefix. The stream's queue holds it, and each piece of it in a connection's output. */
typedef struct hr_message {
    struct hr_message *next; /* of the stream's queue */
    uint32_t holders;
    uint32_t segment_count;
    uint64_t length;
    hr_segment *segments;
    /* A held answer's payloads lie in the output arena of its lane. */
    bool held;
    bool charged; /* to answer_bytes */
    uint32_t lane;
    uint32_t slot;
    bool has_answer;
    uint8_t *copy; /* of its payloads, when the arena was to be left */
    struct hr_message *older, *newer; /* held answers of the thread */
} hr_message;

/* `room` bytes for prefix and head, which lie behind the segments; NULL when memory is out. */
hr_message *hr_message_new(uint32_t segments, size_t room);
static inline uint8_t *hr_message_bytes(hr_message *m, uint32_t segments) {
    return (uint8_t *)(m + 1) + segments * sizeof(hr_segment);
}
void hr_put_prefix(uint8_t *to, uint64_t length);
void hr_message_charge(hr_io *io, hr_message *m); /* to answer_bytes, until it is dropped */
void hr_message_drop(hr_io *io, hr_message *m);
void hr_message_hold(hr_io *io, hr_message *m, const hr_answer *answer);
void hr_messages_leave_lane(hr_io *io, uint32_t lane); /* copies what is held of it */
void hr_messages_leave_arena(hr_io *io);               /* copies the oldest, while too much is held */

/* A piece of a connection's output: of a message's segment, or of the connection's own bytes (message NULL). */
typedef struct hr_piece {
    hr_message *message;
    uint32_t segment;
    uint32_t length;
    size_t offset;
} hr_piece;

typedef struct hr_output_queue {
    uint8_t *bytes;
    size_t byte_count, byte_room;
    hr_piece *pieces;
    uint32_t first, count, room;
    size_t pending; /* bytes of all pieces */
} hr_output_queue;

int hr_output_copy(hr_output_queue *q, const uint8_t *data, size_t length);
int hr_output_refer(hr_output_queue *q, hr_message *m, uint32_t segment, size_t offset, size_t length);
int hr_output_flush(hr_io *io, hr_output_queue *q, int fd); /* 1: all sent, 0: the socket is full, -1: broken */
/* The next bytes in one piece, where they lie or put together in `room`: at least one, and `most` if there are as many. */
size_t hr_output_front(const hr_output_queue *q, uint8_t *room, size_t most, const uint8_t **data);
void hr_output_sent(hr_io *io, hr_output_queue *q, size_t bytes);
void hr_output_clear(hr_io *io, hr_output_queue *q);

/* ---- native_stream.c: one call ---- */

enum hr_method {
    HR_METHOD_NONE, /* headers are still coming */
    HR_METHOD_INFER,
    HR_METHOD_STREAM_INFER,
    HR_METHOD_RPC,
    HR_METHOD_OVER /* answered: what still comes is dropped */
};

/* A message on its way in. */
typedef struct hr_incoming {
    uint8_t prefix[HR_PREFIX];
    uint8_t prefix_count;
    bool compressed;
    bool placed;  /* it lies in the input arena */
    bool large;   /* its bytes count with those of large messages */
    bool waits;   /* for other messages of its connection to give back memory */
    bool refused; /* its bytes are counted and dropped: `why` is said in its turn */
    uint32_t length;
    uint32_t count;
    uint32_t room; /* as much is charged to the connection */
    uint8_t *data; /* NULL: nothing of it is kept yet */
    hr_arriving arriving;
    hr_error *why;
} hr_incoming;

/* One request of a ModelStreamInfer stream, or the one of a ModelInfer call. Its address is the dispatcher's token. */
struct hr_entry {
    hr_entry *newer, *older; /* of the stream; free ones are linked by newer */
    hr_stream *stream;
    uint64_t handle;
    uint64_t size; /* of the request */
    bool in_flight;
    bool unordered;
    hr_message *message; /* the answer */
    int code;            /* of a failed one */
    char *text;          /* its words, where the stream ends with them */
};

enum hr_timer_kind { HR_TIMER_STREAM, HR_TIMER_CONNECTION };

struct hr_stream {
    hr_timer timer; /* first: a timer is its stream. Runs while no dispatcher or Python watches the deadline */
    hr_connection *connection;
    hr_stream *newer, *older; /* of the connection; free ones are linked by newer */
    hr_stream *wants_next;    /* of the connection's streams that may be read on */
    bool wants;
    int32_t id;
    enum hr_method method, wanted; /* what it is, and what its path will make it */
    bool post, head, grpc;
    bool http; /* no gRPC: native_http.c answers it */
    uint8_t encoding; /* of compressed messages: hr_encoding */
    bool packs;       /* answers to inference go compressed: the server does, and the client reads gzip */
    bool half_closed;  /* by the client */
    bool headers_sent; /* response headers were submitted */
    bool ending;       /* trailers follow what is queued */
    bool deferred;     /* nghttp2 waits for hr_stream_resume */
    bool counted;      /* among max_calls */
    bool fail_fast;    /* triton_grpc_error: the first failed request ends the stream */
    uint32_t header_bytes;
    int64_t arrival_ns;
    int64_t deadline_ns;
    size_t path_length;
    char path[HR_PATH];
    /* in */
    hr_incoming in;
    uint8_t *pending; /* bytes that may not be read yet */
    size_t pending_count, pending_room;
    uint32_t withheld; /* of the stream's window */
    /* out */
    hr_message *first, **last;
    uint32_t segment; /* of the first */
    size_t offset;    /* within that */
    uint64_t queued;  /* bytes */
    int status;
    hr_view text; /* of the status: memory of its own */
    bool retry;
    nghttp2_nv *trailers; /* of an rpc; memory of its own */
    uint32_t trailer_count;
    /* infer */
    hr_entry entry; /* ModelInfer's */
    hr_entry *oldest_entry, *newest_entry; /* ModelStreamInfer's, until their answers are queued */
    uint32_t open;     /* requests whose answers have not left the stream */
    uint32_t waiting;  /* those without an answer */
    uint64_t kept;     /* bytes of those */
    uint64_t answered; /* bytes of finished answers */
    uint64_t latest;   /* bytes of the latest one */
    bool drained;      /* the server ends: nothing more is read */
    /* rpc */
    hr_rpc *rpc;
    hr_header *headers; /* while they come, then the event's */
    uint32_t header_count, header_room;
};

int hr_stream_open(hr_connection *c, int32_t id);
int hr_stream_header(hr_stream *s, hr_view name, hr_view value);
void hr_stream_begin(hr_stream *s);                                 /* all headers are here */
void hr_stream_feed(hr_stream *s, const uint8_t *data, size_t length); /* DATA */
void hr_stream_wants_reading(hr_stream *s); /* it may no longer be full: hr_stream_read_on, after the sending */
void hr_stream_read_on(hr_stream *s);
void hr_stream_half_close(hr_stream *s);
void hr_stream_close(hr_stream *s); /* it is gone: frees it */
void hr_stream_send(hr_stream *s, hr_message *m);
void hr_stream_finish(hr_stream *s, int code, hr_view text, bool retry);
void hr_stream_fail(hr_stream *s, int code, const char *text);
void hr_stream_end(hr_stream *s);
void hr_stream_respond(hr_stream *s, const nghttp2_nv *headers, size_t count);
void hr_stream_submit_headers(hr_stream *s, const nghttp2_nv *extra, uint32_t count);
ssize_t hr_stream_read_length(hr_stream *s, size_t most, uint32_t *flags);
int hr_stream_write(hr_stream *s, size_t length);
bool hr_stream_is_full(const hr_stream *s);
void hr_stream_expire(hr_stream *s);

/* ---- native_arriving.c: memory for the message that a stream is receiving ---- */

int hr_incoming_room(hr_stream *s, hr_view more);       /* for `more`, which has come: 0, or -1 when the call is over */
void hr_incoming_ahead(hr_stream *s);                   /* for what will come, before it is read */
hr_incoming hr_incoming_take(hr_stream *s);             /* the stream has none then */
void hr_incoming_drop(hr_io *io, hr_incoming *in);
void hr_incoming_forget(hr_stream *s);

/* ---- native_http.c ---- */

void hr_http_refuse(hr_stream *s);

/* ---- native_metadata.c ---- */

int64_t hr_parse_timeout_ns(hr_view value); /* -1: not one */
size_t hr_percent_encode(hr_view text, char *to); /* room for three times as much */
bool hr_is_grpc(hr_view content_type);
int hr_as_triton(bool triton, int code, int transient, hr_view text, char *to, size_t room, hr_view *told);

/* ---- native_compression.c ---- */

enum hr_encoding hr_encoding_of(hr_view name);
bool hr_accepts(hr_view list, const char *name); /* grpc-accept-encoding */

/* The message's length, in *out, which is the caller's to free; or -1 with *err. */
int64_t hr_inflate(enum hr_encoding encoding, hr_view data, uint64_t limit, uint8_t **out, hr_error *err);

/* The message compressed, which takes its place; or as it is, when that makes it no smaller. `level` is zlib's, or 0: its
 * usual one. From any thread, unless it is held or charged. */
hr_message *hr_message_compress(hr_io *io, hr_message *m, enum hr_encoding encoding, int level);

/* ---- native_infer.c ---- */

void hr_infer_begin(hr_stream *s);
void hr_infer_message(hr_stream *s, const uint8_t *data, size_t length, hr_arriving *placed); /* NULL: elsewhere */
void hr_infer_refused(hr_stream *s, size_t length, const hr_error *err); /* a message that could not be received */
void hr_infer_half_closed(hr_stream *s);
void hr_infer_answers(hr_io *io);
void hr_infer_lost(hr_io *io, uint32_t lane);         /* the worker is gone */
void hr_infer_sent(hr_stream *s, uint64_t length);    /* a message has left the stream */
void hr_infer_leave(hr_stream *s);                    /* the client is gone, or answered */
void hr_infer_drain(hr_stream *s);
bool hr_infer_is_full(const hr_stream *s);

/* ---- native_rpc.c ---- */

void hr_rpc_begin(hr_stream *s);
void hr_rpc_message(hr_stream *s, const uint8_t *data, size_t length, bool compressed);
void hr_rpc_half_closed(hr_stream *s);
void hr_rpc_sent(hr_stream *s);
void hr_rpc_leave(hr_stream *s);
bool hr_rpc_is_full(const hr_stream *s);

/* ---- native_frames.c ---- */

typedef struct hr_frames {
    uint32_t skip; /* bytes before the next head */
    uint8_t count; /* of the head */
    uint8_t head[13];
    uint32_t next; /* stream: the lowest that was not opened, nor left out */
    uint32_t left_out, left_out_end; /* from the one up to the other, without it */
    uint32_t ended[HR_ENDED]; /* stream n at n / 2 % HR_ENDED */
} hr_frames;

void hr_frames_begin(hr_frames *f);

/* The first error in what a client sends, or NO_ERROR; *good: how many bytes come before that. */
uint32_t hr_frames_judge(hr_frames *f, const uint8_t *data, size_t length, size_t *good);

/* ---- native_connection.c ---- */

/* How far a connection is on its way out (native_lifetime.c). */
enum hr_going {
    HR_STAYS,
    HR_NOTICED, /* the client was told to start no more calls, and may not have heard it */
    HR_TOLD,    /* which of its calls were the last: those are finished */
    HR_LINGERS  /* all is said; the socket is closed when the client has closed its end */
};

struct hr_connection {
    hr_timer timer; /* first: a timer is its connection */
    hr_io *io;
    int fd;
    nghttp2_session *session; /* NULL: a TLS handshake comes first */
    hr_connection *newer, *older; /* of the thread */
    hr_connection *dirty_next;
    bool dirty, broken, writable_wanted;
    hr_stream *streams;
    hr_stream *wanting; /* reading */
    uint32_t stream_count;
    hr_stream *beyond;    /* whose message may have more than the connection's share */
    uint32_t waiters;     /* streams whose message waits for memory */
    uint64_t arriving[2]; /* bytes that messages on their way in have: [1] of large ones, which spill */
    hr_output_queue out;
    hr_tls *tls;   /* NULL: plain */
    size_t sealed; /* bytes of it that are not sent */
    hr_frames frames;
    /* the DATA frame that is being read */
    uint32_t frame_left;
    bool frame_padded;
    hr_stream *direct; /* whose message the socket is read into */
    /* what a peer may not do for ever */
    uint32_t pings, idle_frames, idle_bytes;
    bool leaving; /* it did: a GOAWAY, if there is room for it, and no more */
    /* native_lifetime.c: times are INT64_MAX while nothing is waited for */
    bool greeted; /* the peer's SETTINGS have come */
    bool asked;   /* it got a PING, and has not said anything since */
    uint32_t strikes;
    int64_t ping_ns;  /* of the client's latest PING */
    int64_t heard_ns; /* when it said something last, or was asked to */
    enum hr_going going;
    int64_t greeted_by_ns;
    int64_t headers_by_ns; /* when those of stream `heading` have come, if they have not */
    int32_t heading;
    int64_t go_at_ns;   /* when it is old */
    int64_t told_by_ns; /* HR_NOTICED: when it is HR_TOLD at the latest */
    int64_t gone_by_ns; /* when it is closed, whatever there is still to do */
};

int hr_connections_init(void);
void hr_connection_new(hr_io *io, int fd);
void hr_connection_read(hr_connection *c);
void hr_connection_touch(hr_connection *c); /* it has something to say in this wake-up */
void hr_connections_say(hr_io *io);         /* what they have, and end those that are over */
void hr_connection_drain(hr_connection *c); /* its streams are read no further */
void hr_connection_close(hr_connection *c);
/* For native_tls.c: */
int hr_connection_greet(hr_connection *c);                                      /* the session begins */
bool hr_connection_give(hr_connection *c, const uint8_t *data, size_t length); /* false: the peer has gone too far */
size_t hr_connection_direct_room(const hr_connection *c); /* in the message that this DATA frame continues */

/* ---- native_tls.c ---- */

int hr_tls_begin(hr_connection *c);
int hr_tls_read(hr_connection *c);  /* 1: there may be more, 0: not now, -1: the peer is gone */
int hr_tls_flush(hr_connection *c); /* as hr_output_flush */
void hr_tls_end(hr_connection *c);  /* the last words of TLS, before the socket is closed */
void hr_tls_free(hr_connection *c);
void hr_tls_free_thread(hr_io *io);

/* ---- native_lifetime.c ---- */

void hr_lifetime_begin(hr_connection *c);
static inline void hr_lifetime_greeted(hr_connection *c);
static inline void hr_lifetime_read(hr_connection *c); /* all that there is now has been read */
void hr_lifetime_heading(hr_connection *c);
static inline void hr_lifetime_heard(hr_connection *c); /* the client has said something, whatever it is */
void hr_lifetime_answered(hr_connection *c);
bool hr_lifetime_pinged(hr_connection *c);   /* by the client: false when that is too many */
void hr_lifetime_too_many_pings(hr_connection *c);
void hr_lifetime_go(hr_connection *c);       /* it is told to go, and closed when its calls are over */
void hr_lifetime_goaway_sent(hr_connection *c, int32_t last);
void hr_lifetime_acknowledged(hr_connection *c, const uint8_t *payload); /* a PING of ours */
bool hr_lifetime_linger(hr_connection *c); /* all is said: false when it is to be closed at once */
void hr_lifetime_expire(hr_connection *c); /* its timer has gone off */

/* ---- native_socket.c ---- */

void hr_socket_tune(int fd);

/* ---- native_thread.c ---- */

/* Something that another thread wants done on an I/O thread. */
typedef struct hr_command {
    struct hr_command *next;
    void (*run)(hr_io *io, struct hr_command *command); /* frees it, unless somebody waits for it */
} hr_command;

struct hr_io {
    hr_native *native;
    uint32_t number;
    pthread_t thread;
    int epoll, wake;
    hr_dispatch *dispatch;
    hr_deadlines deadlines; /* of streams, and of connections */
    hr_connection *connections;
    hr_connection *dirty;
    hr_stream *free_streams;
    hr_entry *free_entries;
    hr_message *held_oldest, *held_newest;
    uint64_t held_bytes;
    int64_t now_ns;
    bool draining, stopping;
    uint8_t *buffer; /* HR_READ bytes */
    hr_answer answer;
    struct ssl_ctx_st *tls; /* NULL: connections are plain */
    uint8_t *sealed;        /* HR_SEALED_READ bytes: what TLS reads */
    uint8_t *spare;         /* memory for sealed bytes of any connection */
    size_t spare_room;
    _Atomic uint32_t connection_count;
    pthread_mutex_t lock; /* guards commands */
    hr_command *first_command, **last_command;
};

struct hr_native {
    hr_native_options options;
    int listeners[HR_LISTENERS];
    uint32_t listener_count;
    hr_io *ios;
    uint32_t started_threads;
    _Atomic bool started;
    _Atomic uint64_t in_flight, calls, streams, answer_bytes, refused_draining;
    _Atomic uint64_t rejected[HR_LAST_CODE + 1];
    pthread_mutex_t event_lock;
    hr_event *first_event, **last_event;
    int event_fd;
    _Atomic uint64_t rpc_number;
};

void hr_io_post(hr_io *io, hr_command *command);
void hr_io_ask(hr_io *io, void (*what)(hr_io *, void *), void *argument); /* has it done there, and waits for it */
int hr_io_watch(hr_io *io, int fd, void *who);
int hr_io_set_timer(hr_io *io, hr_timer *timer, int64_t at_ns); /* INT64_MAX: it is stopped. -1: no memory */
void hr_native_stop_listening(hr_native *n); /* on the first thread, or when none runs */
void hr_count(_Atomic uint64_t *counter, int64_t by);

static inline void hr_lifetime_greeted(hr_connection *c) {
    c->greeted = true;
    c->greeted_by_ns = INT64_MAX;
}

/* Headers are never interrupted: only those of the newest stream can be half here. */
static inline void hr_lifetime_read(hr_connection *c) {
    if (c->streams && c->streams->method == HR_METHOD_NONE) hr_lifetime_heading(c);
}

static inline void hr_lifetime_heard(hr_connection *c) {
    c->heard_ns = c->io->now_ns;
    if (c->asked) hr_lifetime_answered(c);
}

#endif
