/* NVML for tests: how much of the fake driver's device is in use (fake_cuda.c, loaded before). */
#include <stddef.h>

size_t fake_used(void);
size_t fake_total(void);

typedef struct nvmlMemory {
    unsigned long long total, free, used;
} nvmlMemory;

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "failed" : "done"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) { (void)bus; *out = (void *)1; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory *out) {
    (void)device;
    *out = (nvmlMemory){fake_total(), fake_total() - fake_used(), fake_used()};
    return 0;
}
