/* How long a connection lives, and how it ends.
 *
 * WHAT A CLIENT OWES has its time: handshake_ms from the beginning to its SETTINGS, with a TLS handshake between them, and
 * headers_ms from the first byte of a call's headers to the last. Whoever lets it pass is told so and hung up on.
 *
 * KEEPALIVE. A client that has said nothing for keepalive_ms gets a PING, and is hung up on when it says nothing, be it an
 * acknowledgement or anything else, for keepalive_timeout_ms more. Its own PINGs are counted while nothing of a call goes
 * either way: those that come too soon are strikes, as in gRPC, and too many of them end the connection.
 *
 * AGE. A connection that has max_age_ms, a tenth more or less so that clients which came together do not come back together,
 * is told to go, and has max_age_grace_ms to finish its calls.
 *
 * GOING takes two GOAWAYs. A client that is told at once which of its calls was the last one may have sent more by then, and
 * those would fail for nothing. So it is told first that it shall start no more (a GOAWAY that takes every call), and then
 * asked by a PING whether it has heard: with the acknowledgement have come all the calls that it sent before. Only then, or
 * after notice_ms, does the second GOAWAY name the last call.
 *
 *   HR_STAYS -> HR_NOTICED: GOAWAY 2^31-1, PING -> HR_TOLD: GOAWAY n -> HR_LINGERS: end of the stream of bytes -> closed
 *
 * When the last call is over, or the client has broken HTTP/2's rules, the connection is not closed at once: a client that still
 * writes sends frames, and to bytes that meet a closed socket the kernel answers with a reset, which throws away what is on its
 * way. So our end is shut, and what comes is dropped until the client has shut its own, for linger_ms at most.
 *
 * ITS TIMER is one, for the earliest of what the connection waits for. Times that move on do not move the timer: it goes off
 * early, looks, and is set again. So a request costs none.
 */
#include <sys/socket.h>

#include "native_state.h"

enum { NOTICE = (1u << 31) - 1 }; /* the last stream that there can be */

#define MS 1000000ll
#define WITHOUT_CALLS_NS (2 * 3600 * 1000 * MS) /* between PINGs where a client without calls is to send none, as in gRPC */

static const uint8_t HEARD[8] = "heard?", ALIVE[8] = "alive?";
static const char TOO_MANY[] = "too_many_pings"; /* gRPC's clients know it, and ping half as often from then on */

static const hr_lifetime *times_of(const hr_connection *c) { return &c->io->native->options.lifetime; }

static int64_t in_ms(const hr_connection *c, uint32_t ms) { return c->io->now_ns + ms * MS; }

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* When a client that says nothing is asked to, or is taken to be gone. */
static int64_t silent_at(const hr_connection *c) {
    const hr_lifetime *times = times_of(c);
    if (times->keepalive_ms == 0) return INT64_MAX;
    return c->heard_ns + (c->asked ? times->keepalive_timeout_ms : times->keepalive_ms) * MS;
}

static void set_timer(hr_connection *c) {
    int64_t owed = earlier(c->greeted_by_ns, c->headers_by_ns), own = earlier(c->told_by_ns, c->gone_by_ns);
    int64_t at = earlier(earlier(owed, own), earlier(c->go_at_ns, silent_at(c)));
    if (c->timer.place && c->timer.at_ns <= at) return;
    if (hr_io_set_timer(c->io, &c->timer, at) == 0) return;
    c->broken = true;
    hr_connection_touch(c);
}

/* When it is old: max_age_ms from now, and up to a tenth more or less. */
static int64_t old_at(const hr_connection *c) {
    uint64_t age = times_of(c)->max_age_ms, spread = age / 5;
    uint64_t chance = ((uint64_t)c->io->now_ns + (uint64_t)c->fd) * 0x9e3779b97f4a7c15u >> 32;
    if (age == 0) return INT64_MAX;
    return c->io->now_ns + (int64_t)(age - spread / 2 + (chance * spread >> 32)) * MS;
}

void hr_lifetime_begin(hr_connection *c) {
    c->timer.kind = HR_TIMER_CONNECTION;
    c->told_by_ns = c->gone_by_ns = c->headers_by_ns = INT64_MAX;
    c->greeted_by_ns = in_ms(c, times_of(c)->handshake_ms);
    c->go_at_ns = old_at(c);
    hr_lifetime_heard(c);
    set_timer(c);
}

void hr_lifetime_answered(hr_connection *c) {
    c->asked = false;
    set_timer(c);
}

/* ---- PINGs of the client ---- */

bool hr_lifetime_pinged(hr_connection *c) {
    const hr_lifetime *times = times_of(c);
    bool first = c->pings == 0; /* since something of a call came or went */
    int64_t apart = c->io->now_ns - c->ping_ns;
    int64_t interval = times->keepalive_without_calls || c->stream_count ? times->ping_interval_ms * MS : WITHOUT_CALLS_NS;
    c->ping_ns = c->io->now_ns;
    if (first) c->strikes = 0;
    else if (apart < interval) c->strikes++;
    return times->ping_strikes == 0 || c->strikes <= times->ping_strikes;
}

void hr_lifetime_too_many_pings(hr_connection *c) {
    c->leaving = true;
    nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->session),
                          NGHTTP2_ENHANCE_YOUR_CALM, (const uint8_t *)TOO_MANY, sizeof TOO_MANY - 1);
}

/* ---- what a client owes ---- */

void hr_lifetime_heading(hr_connection *c) {
    if (c->heading == c->streams->id) return;
    c->heading = c->streams->id;
    c->headers_by_ns = in_ms(c, times_of(c)->headers_ms);
    set_timer(c);
}

/* HTTP/2's code for what has not come in its time; NGHTTP2_NO_ERROR: nothing. */
static uint32_t overdue(hr_connection *c) {
    int64_t now = c->io->now_ns;
    if (c->greeted_by_ns <= now) return NGHTTP2_SETTINGS_TIMEOUT;
    if (c->headers_by_ns > now) return NGHTTP2_NO_ERROR;
    c->headers_by_ns = INT64_MAX; /* those that have come since did not stop it */
    bool half = c->streams && c->streams->method == HR_METHOD_NONE && c->streams->id == c->heading;
    return half ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_NO_ERROR;
}

static void hang_up(hr_connection *c, uint32_t code) {
    if (code == NGHTTP2_NO_ERROR || c->session == NULL || c->going == HR_LINGERS) {
        c->broken = true;
    } else {
        c->leaving = true;
        nghttp2_session_terminate_session(c->session, code);
    }
    hr_connection_touch(c);
}

/* ---- going ---- */

void hr_lifetime_go(hr_connection *c) {
    if (c->going != HR_STAYS) return;
    hr_connection_touch(c);
    if (!c->greeted) {
        c->broken = true; /* it has no calls */
        return;
    }
    c->going = HR_NOTICED;
    nghttp2_submit_shutdown_notice(c->session);
    c->told_by_ns = in_ms(c, times_of(c)->notice_ms);
    set_timer(c);
}

/* nghttp2 would send a PING before a GOAWAY, and its acknowledgement would say nothing. */
void hr_lifetime_goaway_sent(hr_connection *c, int32_t last) {
    if (c->going == HR_NOTICED && last == NOTICE) nghttp2_submit_ping(c->session, NGHTTP2_FLAG_NONE, HEARD);
}

static void tell_last(hr_connection *c) {
    c->going = HR_TOLD;
    c->told_by_ns = INT64_MAX;
    nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->session),
                          NGHTTP2_NO_ERROR, NULL, 0);
    hr_connection_touch(c);
}

void hr_lifetime_acknowledged(hr_connection *c, const uint8_t *payload) {
    if (c->going == HR_NOTICED && memcmp(payload, HEARD, sizeof HEARD) == 0) tell_last(c);
}

bool hr_lifetime_linger(hr_connection *c) {
    while (c->streams) hr_stream_close(c->streams); /* there are some when the session was broken off */
    c->going = HR_LINGERS;
    c->greeted_by_ns = c->headers_by_ns = c->go_at_ns = c->told_by_ns = INT64_MAX; /* nothing else is waited for */
    c->gone_by_ns = earlier(c->gone_by_ns, in_ms(c, times_of(c)->linger_ms));
    set_timer(c);
    if (c->tls) hr_tls_end(c);
    return shutdown(c->fd, SHUT_WR) == 0 && !c->broken;
}

/* ---- time passes ---- */

static void grow_old(hr_connection *c) {
    uint32_t grace = times_of(c)->max_age_grace_ms;
    c->go_at_ns = INT64_MAX;
    if (grace) c->gone_by_ns = earlier(c->gone_by_ns, in_ms(c, grace));
    hr_lifetime_go(c);
}

/* False: it was asked, and has not answered. */
static bool ask(hr_connection *c) {
    if (c->asked) return false;
    c->heard_ns = c->io->now_ns; /* for as long nothing is asked again */
    if (!c->greeted || c->going == HR_LINGERS) return true;
    if (c->stream_count == 0 && !times_of(c)->keepalive_without_calls) return true;
    c->asked = true;
    nghttp2_submit_ping(c->session, NGHTTP2_FLAG_NONE, ALIVE);
    hr_connection_touch(c);
    return true;
}

void hr_lifetime_expire(hr_connection *c) {
    int64_t now = c->io->now_ns;
    hr_deadlines_remove(&c->io->deadlines, &c->timer);
    if (c->go_at_ns <= now) grow_old(c);
    if (c->told_by_ns <= now) tell_last(c);
    uint32_t code = overdue(c);
    bool on = code == NGHTTP2_NO_ERROR && c->gone_by_ns > now && (silent_at(c) > now || ask(c));
    if (on) set_timer(c);
    else hang_up(c, code);
}
