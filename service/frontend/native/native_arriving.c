/* Memory for messages on their way in, and what a connection may have of it.
 *
 * WHERE. A request of HR_PLACED bytes or more lies in the thread's input arena from its first bytes on, in one run of pages
 * (hr_dispatch_receive), so that the socket is read into it and its tensors stay where they are. It is one run, and not blocks
 * here and there, because the parser, the checks of strings and a batch of one request all want it in one piece, and because it
 * can be had: a message begins where all of it would fit, and small ones stay out of its way (fq_grow.h). When it must move
 * after all that is one copy of what has come. Blocks anywhere would cost every reader of the message a second way to read it.
 * Smaller requests, compressed ones and what Python answers lie in memory of their own. So does a request of up to 256 KB that
 * the arena has no room for while half of it is there: when it is whole it may have the arena's last quarter, which half-sent
 * messages never touch.
 *
 * HOW MUCH. Room follows what has come and is never more than four times as much (or HR_FIRST_ROOM). What was announced is
 * charged to nobody. Half-sent messages of a connection have at most a quarter of the arena, and of the spill behind it; small
 * ones are not counted. One message of a connection may go beyond, however large it is: so one always gets on, and no two wait
 * for each other. Others then wait, unread, until a message is whole or gone: at most HR_WAITERS at once, each of which has sent
 * no more than its window. Who comes after them is refused, and so is who finds the arena full: they are told to try later. So
 * nobody waits for another connection.
 */
#include "fq_input.h"
#include "native_state.h"

static uint64_t *charged(hr_stream *s) { return &s->connection->arriving[s->in.large]; }

/* Room for `need` bytes, and for some that will come. */
static uint64_t generous(const hr_incoming *in, uint64_t need) {
    uint64_t more = 3 * need;
    if (more > HR_AHEAD) more = need > HR_AHEAD ? need : HR_AHEAD;
    uint64_t room = need + more < HR_FIRST_ROOM ? HR_FIRST_ROOM : need + more;
    return room < in->length ? room : in->length;
}

static bool within_share(hr_stream *s, uint64_t room) {
    if (s->in.length < HR_PLACED || s->connection->beyond == s) return true;
    return *charged(s) - s->in.room + room <= hr_dispatch_share(s->connection->io->dispatch, s->in.length);
}

static void charge(hr_stream *s, uint64_t room) {
    *charged(s) += room - s->in.room;
    s->in.room = (uint32_t)room;
}

/* Room in the arena, or in memory of its own: false when there is none. */
static bool take_room(hr_stream *s, uint64_t room) {
    hr_incoming *in = &s->in;
    uint8_t *data = in->placed ? hr_dispatch_receive(s->connection->io->dispatch, &in->arriving, room, &room)
                               : realloc(in->data, room);
    if (data == NULL) return false;
    in->data = data;
    charge(s, room);
    return true;
}

static bool extend(hr_stream *s, uint64_t need) {
    uint64_t room = generous(&s->in, need);
    if (within_share(s, room) && take_room(s, room)) return true;
    return within_share(s, need) && take_room(s, need);
}

/* From the arena to memory of its own, with what has come. */
static bool leave_arena(hr_stream *s, uint64_t need) {
    hr_incoming *in = &s->in;
    uint64_t room = generous(in, need);
    if (!in->placed || in->length > FQ_LARGE || !within_share(s, room)) return false;
    uint8_t *data = malloc(room);
    if (data == NULL) return false;
    if (in->count > 0) memcpy(data, in->data, in->count);
    hr_dispatch_abandon(s->connection->io->dispatch, &in->arriving);
    in->placed = false;
    in->data = data;
    charge(s, room);
    return true;
}

static bool is_request(const hr_stream *s) { return s->method == HR_METHOD_INFER || s->method == HR_METHOD_STREAM_INFER; }

static void begin(hr_stream *s, hr_view first) {
    hr_incoming *in = &s->in;
    hr_dispatch *d = s->connection->io->dispatch;
    in->large = hr_dispatch_spills(d, in->length);
    in->placed = is_request(s) && !in->compressed && in->length >= HR_PLACED && hr_dispatch_can_receive(d, in->length);
    if (in->placed) hr_dispatch_arrive(&in->arriving, in->length, first);
}

static void say_why(hr_stream *s, uint64_t need, hr_error *err) {
    const hr_dispatch *d = s->connection->io->dispatch;
    if (within_share(s, need) && s->in.placed) {
        hr_dispatch_no_room(d, &s->in.arriving, err);
        return;
    }
    if (within_share(s, need))
        hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for a message of this size now, try later");
    else
        hr_fail(err, HR_RESOURCE_EXHAUSTED,
                "half-sent messages of this connection have all of the %llu MB that they may have, a quarter of %s: try "
                "later, or send fewer at once",
                (unsigned long long)hr_dispatch_share(d, s->in.length) >> 20, s->in.large ? "--spill-mb" : "--arena-mb");
    err->transient = true;
}

/* On a stream a request is refused in its turn: what comes of it until then is dropped. */
static int refuse(hr_stream *s, uint64_t need) {
    hr_error err;
    say_why(s, need, &err);
    if (s->method == HR_METHOD_STREAM_INFER) {
        hr_incoming rest = {.prefix_count = HR_PREFIX, .length = s->in.length, .count = s->in.count, .refused = true};
        rest.why = malloc(sizeof err);
        if (rest.why) *rest.why = err;
        hr_incoming_forget(s);
        s->in = rest;
        if (rest.why) return 0;
    }
    if (s->method == HR_METHOD_INFER) hr_infer_refused(s, s->in.length, &err);
    else hr_stream_fail(s, err.code, err.text);
    return -1;
}

int hr_incoming_room(hr_stream *s, hr_view more) {
    hr_incoming *in = &s->in;
    uint64_t need = (uint64_t)in->count + more.length;
    if (need <= in->room || in->refused) return 0;
    if (in->data == NULL) begin(s, more);
    if (!within_share(s, need) && s->connection->beyond == NULL) s->connection->beyond = s;
    if (extend(s, need) || leave_arena(s, need)) return 0;
    if (within_share(s, need) || s->connection->waiters >= HR_WAITERS) return refuse(s, need);
    in->waits = true;
    s->connection->waiters++;
    return 0;
}

/* Memory was given back: those that wait may have it, the oldest first. */
static void wake_waiters(hr_connection *c) {
    for (hr_stream *s = c->streams; s && c->waiters > 0; s = s->older) {
        if (!s->in.waits) continue;
        s->in.waits = false;
        c->waiters--;
        hr_stream_wants_reading(s);
    }
}

void hr_incoming_ahead(hr_stream *s) {
    hr_incoming *in = &s->in;
    if (in->data && in->room < in->length && in->room - in->count < HR_DIRECT) (void)extend(s, (uint64_t)in->room + 1);
}

hr_incoming hr_incoming_take(hr_stream *s) {
    hr_incoming in = s->in;
    hr_connection *c = s->connection;
    if (in.data) charge(s, 0);
    if (in.waits) c->waiters--;
    s->in = (hr_incoming){0};
    if (c->direct == s) c->direct = NULL;
    bool gave = in.data != NULL || c->beyond == s;
    if (c->beyond == s) c->beyond = NULL;
    if (gave) wake_waiters(c);
    return in;
}

void hr_incoming_drop(hr_io *io, hr_incoming *in) {
    if (in->placed) hr_dispatch_abandon(io->dispatch, &in->arriving);
    else free(in->data);
    free(in->why);
}

void hr_incoming_forget(hr_stream *s) {
    hr_incoming in = hr_incoming_take(s);
    hr_incoming_drop(s->connection->io, &in);
}
