/* TLS between a socket and its HTTP/2 session.
 *
 *   socket -> a thread's buffer -> OpenSSL -> the side buffer, or straight into a message -> nghttp2
 *   nghttp2 -> what a connection has to send -> records -> sealed bytes -> one send for up to HR_SEALED of them
 *
 * OpenSSL never sees the socket. It is given all that a read brought, and asked until it wants more: nothing stays in it
 * that no later readiness of the socket would tell of. What it writes lies in the connection's sealed bytes, which no
 * kernel has yet: they count among answers that clients have not read. Their memory goes from connection to connection,
 * so that one that has nothing to send has none.
 *
 * HANDSHAKES are timed (native_lifetime.c). Until one is over a connection has no session, and sends nothing but what the
 * handshake itself says. Its signature is made by the I/O thread, which serves nobody else for that millisecond.
 *
 * LIMITS. OpenSSL bounds the messages of a handshake and empty records. Of records that bring nothing (padding, new keys)
 * the bytes count as idle ones (native_connection.c), and each message of TLS itself as MESSAGE_FRAMES idle frames: a peer
 * that asks for new keys again and again is gone. What a peer does not read is bounded too (make_room).
 */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "native_state.h"

enum { MESSAGE_FRAMES = 10 }; /* new keys cost about as much as so many frames */

struct hr_tls {
    hr_connection *connection;
    SSL *ssl;
    hr_view in;     /* what came and OpenSSL has not taken yet */
    uint8_t *bytes; /* sealed: those from `at` are not sent */
    size_t at, end, room;
    size_t charged; /* to answer_bytes */
    bool failed;    /* there is no more to be said to the peer */
};

static BIO_METHOD *method;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- what OpenSSL reads from and writes to ---- */

static int take(BIO *bio, char *to, int length) {
    hr_tls *t = BIO_get_data(bio);
    size_t n = t->in.length < (size_t)length ? t->in.length : (size_t)length;
    BIO_clear_retry_flags(bio);
    if (n == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(to, t->in.data, n);
    t->in.data += n;
    t->in.length -= n;
    return (int)n;
}

static bool make_room(hr_tls *t, size_t length) {
    hr_io *io = t->connection->io;
    if (t->bytes == NULL) {
        t->bytes = io->spare;
        t->room = io->spare_room;
        io->spare = NULL;
        io->spare_room = 0;
    }
    if (t->end + length <= t->room) return true;
    size_t room = t->room ? t->room : HR_READ;
    while (room < t->end + length) room *= 2;
    uint8_t *bytes = room <= 2 * HR_OUTPUT_CAP ? realloc(t->bytes, room) : NULL;
    if (bytes == NULL) return false;
    t->bytes = bytes;
    t->room = room;
    return true;
}

static int put(BIO *bio, const char *data, int length) {
    hr_tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (!make_room(t, (size_t)length)) return -1;
    memcpy(t->bytes + t->end, data, (size_t)length);
    t->end += (size_t)length;
    t->connection->sealed = t->end - t->at;
    return length;
}

static long control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int create(BIO *bio) {
    BIO_set_init(bio, 1);
    return 1;
}

static void make_method(void) {
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "headrace");
    if (method == NULL) return;
    BIO_meth_set_create(method, create);
    BIO_meth_set_read(method, take);
    BIO_meth_set_write(method, put);
    BIO_meth_set_ctrl(method, control);
}

/* ---- handshakes ---- */

/* TLS has said something itself, either way: after the handshake that is new keys and alerts. */
static void on_message(int sent, int version, int type, const void *data, size_t length, SSL *ssl, void *argument) {
    hr_connection *c = ((hr_tls *)argument)->connection;
    (void)sent, (void)version, (void)data, (void)length, (void)ssl;
    if (c->session && (type == SSL3_RT_HANDSHAKE || type == SSL3_RT_ALERT)) c->idle_frames += MESSAGE_FRAMES;
}

int hr_tls_begin(hr_connection *c) {
    pthread_once(&once, make_method);
    hr_tls *t = c->tls = calloc(1, sizeof *t);
    BIO *bio = method ? BIO_new(method) : NULL;
    if (t) t->ssl = SSL_new(c->io->tls);
    if (t == NULL || t->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        return -1;
    }
    t->connection = c;
    BIO_set_data(bio, t);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_accept_state(t->ssl);
    SSL_set_msg_callback(t->ssl, on_message);
    SSL_set_msg_callback_arg(t->ssl, t);
    return 0;
}

/* What OpenSSL's refusal to go on means: 0 it wants more, or has failed and said so to the peer; -1 the peer is gone. */
static int why_not(hr_tls *t, int returned) {
    switch (SSL_get_error(t->ssl, returned)) {
    case SSL_ERROR_WANT_READ: return 0;
    case SSL_ERROR_ZERO_RETURN: return -1;
    default: t->failed = t->connection->leaving = true; return 0;
    }
}

/* 1: it is over, and the session begins. */
static int shake_hands(hr_tls *t) {
    int done = SSL_do_handshake(t->ssl);
    if (done != 1) return why_not(t, done);
    return hr_connection_greet(t->connection) == 0 ? 1 : -1;
}

/* ---- reading ---- */

/* Everything that came goes to the session, a record at a time. */
static int open_records(hr_tls *t) {
    hr_connection *c = t->connection;
    for (;;) {
        size_t direct = hr_connection_direct_room(c);
        uint8_t *to = direct ? c->direct->in.data + c->direct->in.count : c->io->buffer;
        int bytes = SSL_read(t->ssl, to, direct ? (int)direct : HR_READ);
        if (bytes <= 0) return why_not(t, bytes);
        c->idle_bytes -= (uint32_t)bytes < c->idle_bytes ? (uint32_t)bytes : c->idle_bytes; /* counted as they came */
        if (!hr_connection_give(c, to, (size_t)bytes)) return 0;
    }
}

/* One read: 1 there may be more, 0 not now, -1 the peer is gone. */
int hr_tls_read(hr_connection *c) {
    hr_tls *t = c->tls;
    ssize_t bytes = recv(c->fd, c->io->sealed, HR_SEALED_READ, 0);
    if (bytes < 0 && errno == EINTR) return 1;
    if (bytes < 0) return errno == EAGAIN ? 0 : -1;
    if (bytes == 0) return -1;
    t->in = (hr_view){c->io->sealed, (size_t)bytes};
    c->idle_bytes += (uint32_t)bytes;
    ERR_clear_error();
    int on = c->session ? 1 : shake_hands(t);
    if (on == 1) on = open_records(t);
    if (c->idle_bytes > HR_IDLE_BYTES || c->idle_frames > HR_IDLE_FRAMES) c->leaving = true;
    return on < 0 ? -1 : bytes == HR_SEALED_READ;
}

/* ---- sending ---- */

static void charge(hr_tls *t) {
    size_t now = t->end - t->at;
    hr_count(&t->connection->io->native->answer_bytes, (int64_t)now - (int64_t)t->charged);
    t->charged = t->connection->sealed = now;
}

/* Nothing is sealed: the memory is for the next one who needs some. */
static void give_memory(hr_tls *t) {
    hr_io *io = t->connection->io;
    if (io->spare == NULL && t->room <= 2 * HR_SEALED) {
        io->spare = t->bytes;
        io->spare_room = t->room;
    } else {
        free(t->bytes);
    }
    t->bytes = NULL;
    t->at = t->end = t->room = 0;
}

/* 1: all that is sealed is sent, 0: the socket is full, -1: broken. */
static int send_sealed(hr_tls *t) {
    while (t->at < t->end) {
        ssize_t bytes = send(t->connection->fd, t->bytes + t->at, t->end - t->at, MSG_NOSIGNAL);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return errno == EAGAIN ? 0 : -1;
        t->at += (size_t)bytes;
    }
    if (t->bytes) give_memory(t);
    return 1;
}

/* Makes records of what the connection has to send, until there is enough for a send: 0, or -1. */
static int seal(hr_tls *t) {
    hr_connection *c = t->connection;
    const uint8_t *data;
    while (c->out.pending > 0 && t->end < HR_SEALED) {
        size_t length = hr_output_front(&c->out, c->io->buffer, HR_READ, &data);
        if (t->failed || SSL_write(t->ssl, data, (int)length) != (int)length) return -1;
        hr_output_sent(c->io, &c->out, length);
    }
    return 0;
}

int hr_tls_flush(hr_connection *c) {
    hr_tls *t = c->tls;
    int sent = send_sealed(t);
    ERR_clear_error();
    while (sent == 1 && c->out.pending > 0) sent = seal(t) < 0 ? -1 : send_sealed(t);
    charge(t);
    return sent;
}

/* ---- the end ---- */

void hr_tls_end(hr_connection *c) {
    hr_tls *t = c->tls;
    if (t->connection == NULL) return; /* it never began */
    ERR_clear_error();
    bool said = SSL_get_shutdown(t->ssl) & SSL_SENT_SHUTDOWN;
    if (c->session && !t->failed && !said) (void)SSL_shutdown(t->ssl); /* close_notify */
    (void)send_sealed(t);
}

void hr_tls_free(hr_connection *c) {
    hr_tls *t = c->tls;
    if (t->connection) {
        t->at = t->end;
        charge(t);
    }
    SSL_free(t->ssl);
    free(t->bytes);
    free(t);
    c->tls = NULL;
}
