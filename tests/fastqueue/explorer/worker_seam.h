/* worker_seam.h: the worker's headers on the explorer's threads: its lock, its conditions and the front end's eventfd. */
#ifndef WORKER_SEAM_H
#define WORKER_SEAM_H

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "lane_kit.h"

void kit_write_eventfd(void);

#define pthread_mutex_lock(lock) ex_lock(lock)
#define pthread_mutex_unlock(lock) ex_unlock(lock)
#define pthread_cond_wait(condition, lock) ex_condition_wait(condition, lock)
#define pthread_cond_signal(condition) ex_condition_wake(condition)
#define pthread_cond_broadcast(condition) ex_condition_wake(condition)
#define write(fd, from, bytes) (kit_write_eventfd(), (long)(bytes))

#include "fq_control.h"

#endif
