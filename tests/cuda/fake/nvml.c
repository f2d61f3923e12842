/* nvml.c: NVML for tests, of the devices that libcuda.so.1 has (fake.h), which was loaded before. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

size_t fake_used_of(int device);
size_t fake_total(void);
int cuDeviceGetCount(int *out);

enum { OK = 0, INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7 };

typedef struct memory {
    unsigned long long total, free, used;
} memory;

typedef struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

typedef struct utilization {
    unsigned gpu, memory;
} utilization;

typedef struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process;

/* A device's handle is its index and 1. */
static int index_of(const void *device) { return (int)(uintptr_t)device - 1; }

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code ? "failed" : "done"; }

int nvmlDeviceGetCount_v2(unsigned *out) {
    int count = 0;
    int code = cuDeviceGetCount(&count);
    *out = (unsigned)count;
    return code ? INVALID : OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    unsigned count;
    if (nvmlDeviceGetCount_v2(&count) || index >= count) return INVALID;
    *out = (void *)(uintptr_t)(index + 1);
    return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) {
    unsigned domain, number;
    if (sscanf(bus, "%x:%x:00.0", &domain, &number) != 2 || !number) return INVALID;
    return nvmlDeviceGetHandleByIndex_v2(number - 1, out) ? NOT_FOUND : OK;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *out) {
    size_t used = fake_used_of(index_of(device));
    *out = (memory){fake_total(), fake_total() - used, used};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *out) {
    size_t used = fake_used_of(index_of(device));
    if (out->version != (sizeof *out | 2u << 24)) return INVALID;
    *out = (memory_v2){out->version, fake_total(), 0, fake_total() - used, used};
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization *out) {
    *out = (utilization){0, (unsigned)(100 * fake_used_of(index_of(device)) / fake_total())};
    return OK;
}

/* This process, where it has memory. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *out) {
    unsigned room = *count;
    size_t used = fake_used_of(index_of(device));
    *count = used != 0;
    if (*count > room) return TOO_SMALL;
    if (*count) out[0] = (process){(unsigned)getpid(), used, ~0u, ~0u};
    return OK;
}
