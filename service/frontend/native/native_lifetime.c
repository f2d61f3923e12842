/* How a connection ends.
 *
 * GOING takes two GOAWAYs. A client that is told at once which of its calls was the last one may have sent more by then, and
 * those would fail for nothing. So it is told first that it shall start no more (a GOAWAY that takes every call), and then
 * asked by a PING whether it has heard: with the acknowledgement have come all the calls that it sent before. Only then, or
 * after notice_ms, does the second GOAWAY name the last call.
 *
 *   HR_STAYS -> HR_NOTICED: GOAWAY 2^31-1, PING -> HR_TOLD: GOAWAY n -> HR_LINGERS: end of the stream of bytes -> closed
 *
 * When the last call is over the connection is not closed at once: a client that still reads sends frames, and to bytes that
 * meet a closed socket the kernel answers with a reset, which throws away what is on its way. So our end is shut, and what comes
 * is dropped until the client has shut its own, for linger_ms at most.
 *
 * A TLS HANDSHAKE that is not over by its time is the end too.
 *
 * ITS TIMER is one, for the earliest of what the connection waits for. Times that move on do not move the timer: it goes off
 * early, looks, and is set again. So a request costs none.
 */
#include <sys/socket.h>

#include "native_state.h"

enum { NOTICE = (1u << 31) - 1 }; /* the last stream that there can be */

static const uint8_t HEARD[8] = {'g', 'o', 'i', 'n', 'g', '?'};

static int64_t in_ms(const hr_connection *c, uint32_t ms) { return c->io->now_ns + ms * 1000000ll; }

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void set_timer(hr_connection *c) {
    int64_t at = earlier(c->shaken_by_ns, earlier(c->told_by_ns, c->gone_by_ns));
    if (c->timer.place && c->timer.at_ns <= at) return;
    if (hr_io_set_timer(c->io, &c->timer, at) < 0) c->broken = true;
}

void hr_lifetime_begin(hr_connection *c) {
    c->timer.kind = HR_TIMER_CONNECTION;
    c->told_by_ns = c->gone_by_ns = c->shaken_by_ns = INT64_MAX;
}

void hr_lifetime_shake(hr_connection *c) {
    c->shaken_by_ns = in_ms(c, c->io->native->options.handshake_ms);
    set_timer(c);
}

void hr_lifetime_shaken(hr_connection *c) { c->shaken_by_ns = INT64_MAX; }

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
    c->told_by_ns = in_ms(c, c->io->native->options.notice_ms);
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
    if (c->stream_count > 0) return false; /* the session is broken off */
    c->going = HR_LINGERS;
    c->told_by_ns = INT64_MAX;
    c->gone_by_ns = earlier(c->gone_by_ns, in_ms(c, c->io->native->options.linger_ms));
    set_timer(c);
    if (c->tls) hr_tls_end(c);
    return shutdown(c->fd, SHUT_WR) == 0 && !c->broken;
}

/* ---- time passes ---- */

void hr_lifetime_expire(hr_connection *c) {
    hr_deadlines_remove(&c->io->deadlines, &c->timer);
    if (c->told_by_ns <= c->io->now_ns) tell_last(c);
    if (earlier(c->shaken_by_ns, c->gone_by_ns) > c->io->now_ns) {
        set_timer(c);
        return;
    }
    c->broken = true;
    hr_connection_touch(c);
}
