/* Waking the workers, and being woken by them; fq_bell.h tells the story. */
#include <unistd.h>

#include "dispatch.h"
#include "dispatch_state.h"

void hr_dispatch_ring(hr_dispatch *d) {
    for (uint32_t i = 0; i < d->lane_count; i++) {
        hr_lane *lane = &d->lanes[i];
        if (!lane->unrung) continue;
        lane->unrung = false;
        fq_bell_ring(lane->front.worker, FQ_WANT_SUBMIT);
    }
}

void hr_dispatch_heard(hr_dispatch *d) {
    uint64_t rings;
    if (read(d->eventfd, &rings, sizeof rings) < 0) rings = 0; /* nobody rang */
}

/* Awake: nobody needs to ring. */
void hr_dispatch_disarm(hr_dispatch *d) {
    for (uint32_t i = 0; i < d->lane_count; i++)
        if (d->lanes[i].open) fq_bell_disarm(&d->lanes[i].front.lane.header->front);
    d->armed = false;
}

int hr_dispatch_arm(hr_dispatch *d) {
    hr_dispatch_ring(d);
    d->armed = true;
    for (uint32_t i = 0; i < d->lane_count; i++) {
        if (!d->lanes[i].attached || fq_front_lane_arm(&d->lanes[i].front)) continue;
        hr_dispatch_disarm(d);
        return 0;
    }
    return 1;
}
