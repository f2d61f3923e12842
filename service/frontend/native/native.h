/* native.h: gRPC over HTTP/2 without Python on the way of a request.
 *
 * Each I/O thread is a front-end thread of dispatch.h with sockets: an epoll, its connections, one dispatcher. Threads
 * share nothing on the way of a request but a few counters. One of them accepts, and hands each connection to the thread
 * that has the fewest.
 *
 *   client --HTTP/2--> connection -> stream -> hr_dispatch_submit -> lane ... worker
 *   client <--writev-- connection <- message <- hr_dispatch_next  <- lane ... worker
 *                                    stream  <-> rpc <-> Python        every other method
 *
 * THE WAKE-UP is the unit of work: read what connections have, take what the dispatcher has, and only then let each
 * connection that has something to say send it, with one writev. A send for each frame would cost five times as much.
 *
 *   native_thread.c      the loop; commands from other threads; accepting
 *   native_control.c     what the rest of the process asks
 *   native_connection.c  a socket and its nghttp2 session; the limits on what a peer may do
 *   native_socket.c      what its socket is told
 *   native_lifetime.c    how long a connection may take, and how it ends
 *   native_frames.c      frames that RFC 9113 forbids and nghttp2 does not
 *   native_output.c      what a connection still has to send
 *   native_tls.c         TLS between a socket and its session
 *   native_tls_context.c the certificates, and what TLS is here
 *   native_stream.c      gRPC: headers, messages out, status and trailers
 *   native_http.c        what is no gRPC: answered in HTTP
 *   native_incoming.c    messages in
 *   native_arriving.c    the memory that they lie in meanwhile, and how much of it a connection may have
 *   native_compression.c compressed ones, in and out
 *   native_metadata.c    the words of gRPC in headers: time-outs, percent-encoding
 *   native_infer.c       ModelInfer and ModelStreamInfer over the dispatcher
 *   native_rpc.c         calls that Python answers
 *
 * MEMORY. A message that is still arriving has memory that grows with what has come and never with what was announced. A
 * larger one lies in the input arena from its first bytes on, in one run of pages: the socket is read into it, its tensors are
 * never copied, and the request that is published refers to them. Half-sent messages of a connection have a quarter of the
 * arena at most, and nothing of its last quarter (native_arriving.c). An answer is sent from where it lies in the output
 * arena; when clients do not read, and such answers have `held_bytes`, the oldest are copied out, so that a worker never
 * waits for a client. Wherever they lie, answers count against `answer_bytes` until the kernel has them.
 *
 * BACK-PRESSURE is HTTP/2's windows and nothing else. The connection's window is given back at once, so that one slow
 * stream never stops the others; a stream's is withheld while it may not read on (hr_stream_is_full).
 *
 * CALLING. hr_native_* may be called from any thread, one at a time; what concerns a thread's own state is carried out
 * there, and the caller waits. None of it needs the GIL.
 */
#ifndef HR_NATIVE_H
#define HR_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hr_error.h"
#include "hr_spec.h"

typedef struct hr_native hr_native;
typedef struct hr_rpc hr_rpc;

/* The times of a connection, in ms, and what it may do with them: native_lifetime.c. */
typedef struct hr_lifetime {
    uint32_t handshake_ms;        /* how long a new client may take for TLS and its SETTINGS */
    uint32_t headers_ms;          /* and any for headers that it has begun */
    uint32_t keepalive_ms;        /* without a word from the client until it gets a PING; 0: it gets none */
    uint32_t keepalive_timeout_ms; /* without a word after that until it is hung up on */
    bool keepalive_without_calls;
    uint32_t ping_interval_ms; /* between PINGs of a client that are welcome while nothing of a call goes either way */
    uint32_t ping_strikes;     /* of those that are not, how many are let go by; 0: all */
    uint32_t max_age_ms;       /* until it is told to go; 0: it may stay */
    uint32_t max_age_grace_ms; /* and then until it is closed, whatever it does; 0: its calls may finish */
    uint32_t notice_ms;        /* how long a client may take to hear that its connection ends */
    uint32_t linger_ms;        /* and to close its own end */
} hr_lifetime;

typedef struct hr_native_options {
    uint32_t threads;  /* at least 1 */
    uint32_t arena_mb; /* of each thread's input arena */
    uint32_t spill_mb; /* and behind it */
    uint32_t slots;    /* of each lane */
    uint32_t max_calls;
    uint32_t max_connections; /* of all threads: who comes beyond is hung up on */
    uint64_t max_message_bytes;
    uint64_t answer_bytes;
    uint64_t held_bytes; /* of answers that may lie in the worker's output arena, of one thread */
    hr_lifetime lifetime;
    bool triton; /* whose status codes */
    int compression; /* zlib's level for answers to inference; 0: they go as they are */
} hr_native_options;

/* Makes the threads and starts them; they serve nobody before hr_native_listen. NULL with *err. */
hr_native *hr_native_new(const hr_native_options *options, hr_error *err);

/* Accepts connections from `fd` too, a listening socket that does not block; it is closed at the end, or when draining. Before
 * there are connections, and HR_LISTENERS times at most. */
enum { HR_LISTENERS = 2 };
int hr_native_listen(hr_native *n, int fd, hr_error *err);

/* What the files of TLS hold, PEM. */
typedef struct hr_pem {
    hr_view cert, key;
    hr_view root; /* of the certificates that clients must show; empty: they need none */
} hr_pem;

/* New connections speak TLS from now on, with these; those that are there go on as they are. -1: nothing has changed. */
int hr_native_set_tls(hr_native *n, const hr_pem *pem, hr_error *err);

/* Ends every connection and thread. */
void hr_native_free(hr_native *n);

/* ---- lanes and models: dispatch.h, for each thread ---- */

uint32_t hr_native_threads(const hr_native *n);
int hr_native_open_lane(hr_native *n, uint32_t thread, int *lane_fd, hr_error *err);
void hr_native_fds(const hr_native *n, uint32_t thread, int *arena_fd, int *eventfd);
int hr_native_attach(hr_native *n, uint32_t thread, uint32_t lane, int page_fd, int output_fd, hr_error *err);
void hr_native_close_lane(hr_native *n, uint32_t thread, uint32_t lane);
void hr_native_free_lane(hr_native *n, uint32_t thread, uint32_t lane);
void hr_native_set_table(hr_native *n, uint32_t thread, hr_table *table); /* takes it over */

/* ---- the server's state ---- */

/* From now on requests may be told that a model is unknown; before, that the server is not ready. */
void hr_native_started(hr_native *n);

/* New calls are refused, streams are read no further. */
void hr_native_drain(hr_native *n);

/* Nobody is accepted any more, and connections are told to go: native_lifetime.c. */
void hr_native_go(hr_native *n);

/* Ends every connection. */
void hr_native_hang_up(hr_native *n);

uint64_t hr_native_in_flight(const hr_native *n); /* requests that were accepted and whose clients wait */
uint64_t hr_native_calls(const hr_native *n);     /* ModelInfer and ModelStreamInfer calls in progress */
uint64_t hr_native_streams(const hr_native *n);   /* ModelStreamInfer calls in progress */
uint64_t hr_native_unsent(hr_native *n); /* calls of every kind that are not over, connections that are to go */
uint64_t hr_native_rejected(const hr_native *n, int code);
uint64_t hr_native_refused_draining(const hr_native *n);
uint64_t hr_native_answer_bytes(const hr_native *n);
uint64_t hr_native_outstanding(hr_native *n);
uint64_t hr_native_arena_used(hr_native *n);
int hr_native_check(hr_native *n); /* hr_dispatch_check of the first thread with something to say */

/* ---- calls that Python answers ---- */

typedef struct hr_header {
    hr_view name;
    hr_view value;
} hr_header;

enum hr_event_kind {
    HR_RPC_STARTED,     /* headers, path and deadline are set; hr_rpc_drop it once */
    HR_RPC_MESSAGE,     /* data and length, to be freed by hr_event_clear */
    HR_RPC_HALF_CLOSED, /* the client sends no more */
    HR_RPC_WRITTEN,     /* the message that was sent last is on its way */
    HR_RPC_ENDED        /* cancelled, expired or broken off: nobody listens any more */
};

/* How a message is compressed. */
enum hr_encoding { HR_IDENTITY, HR_GZIP, HR_DEFLATE, HR_UNKNOWN_ENCODING };

typedef struct hr_event {
    struct hr_event *next;
    enum hr_event_kind kind;
    bool compressed; /* the message was, on its way here */
    hr_rpc *rpc;
    hr_view path;
    int64_t deadline_ns; /* CLOCK_MONOTONIC; INT64_MAX: none */
    uint32_t header_count;
    hr_header *headers;
    uint8_t *data;
    size_t length;
} hr_event;

int hr_native_event_fd(const hr_native *n); /* readable while events wait */
hr_event *hr_native_next_event(hr_native *n); /* NULL: none */
void hr_event_free(hr_event *event);

/* All of these return at once. What is said to a call that has ended is dropped. */
int hr_rpc_read(hr_rpc *rpc); /* the next message may come */
int hr_rpc_send_headers(hr_rpc *rpc, const hr_header *headers, uint32_t count);
int hr_rpc_send(hr_rpc *rpc, const uint8_t *data, size_t length, enum hr_encoding encoding);
int hr_rpc_finish(hr_rpc *rpc, int code, hr_view text, const hr_header *trailers, uint32_t count);
void hr_rpc_drop(hr_rpc *rpc); /* the last word about it */

#endif
