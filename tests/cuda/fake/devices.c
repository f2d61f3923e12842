#define _GNU_SOURCE /* dladdr */
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static context contexts[FAKE_DEVICES];

CUresult cuInit(unsigned flags) {
    (void)flags;
    return fake_device_count ? OK : NO_DEVICE;
}

#ifdef FAKE_CUDA_12
enum { VERSION = 12080 };
#else
enum { VERSION = 13000 };
#endif

CUresult cuDriverGetVersion(int *out) {
    *out = VERSION;
    return OK;
}

static int is_device(int device) { return device >= 0 && device < fake_device_count; }

CUresult cuDeviceGetCount(int *out) {
    ENTER(enter);
    *out = fake_device_count;
    return OK;
}

CUresult cuDeviceGet(int *out, int index) {
    ENTER(enter);
    *out = index;
    return is_device(index) ? OK : INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *out, int room, int device) {
    ENTER(enter);
    (void)snprintf(out, (size_t)room, "Fake %d", device);
    return is_device(device) ? OK : INVALID_DEVICE;
}

CUresult cuDeviceGetPCIBusId(char *out, int room, int device) {
    ENTER(enter);
    (void)snprintf(out, (size_t)room, "0000:%02X:00.0", device + 1);
    return is_device(device) ? OK : INVALID_DEVICE;
}

CUresult cuDeviceTotalMem_v2(size_t *out, int device) {
    ENTER(enter);
    *out = fake_bytes;
    return is_device(device) ? OK : INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *out, int attribute, int device) {
    ENTER(enter);
    static const int known[][2] = {
        {16, 132}, /* multiprocessors */ {33, 0}, /* PCI bus: below */ {41, 1},  /* unified addressing */
        {75, 9},   /* compute capability */ {76, 0},                  {102, 1}, /* virtual memory management */
        {115, 1},  /* pools */
    };
    if (!is_device(device)) return INVALID_DEVICE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i][0] != attribute) continue;
        *out = attribute == 33 ? device + 1 : known[i][1];
        return OK;
    }
    return INVALID_VALUE;
}

/* ---- contexts ---- */

CUresult cuDevicePrimaryCtxRetain(context **out, int device) {
    ENTER(enter);
    if (!is_device(device)) return INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    contexts[device].device = device;
    contexts[device].retained++;
    pthread_mutex_unlock(&fake_lock);
    *out = &contexts[device];
    return OK;
}

CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(enter);
    if (device < 0 || device >= FAKE_DEVICES) return INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    int was = contexts[device].retained;
    if (was) contexts[device].retained--;
    pthread_mutex_unlock(&fake_lock);
    return was ? OK : INVALID_CONTEXT;
}

CUresult cuCtxSetCurrent(context *which) {
    ENTER(enter);
    fake_current = which;
    return OK;
}

CUresult cuCtxGetCurrent(context **out) {
    ENTER(enter);
    *out = fake_current;
    return OK;
}

CUresult cuCtxGetDevice(int *out) {
    ENTER(enter_current);
    *out = fake_current->device;
    return OK;
}

void drop_contexts(void) {
    for (int i = 0; i < FAKE_DEVICES; i++) contexts[i].retained = 0;
}

/* How often the device's primary context is retained. */
int fake_contexts(int device) { return contexts[device].retained; }

/* ---- errors ---- */

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
};

static int error_at(CUresult code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return (int)i;
    return -1;
}

CUresult cuGetErrorName(CUresult code, const char **out) {
    int i = error_at(code);
    *out = i < 0 ? NULL : errors[i].name;
    return i < 0 ? INVALID_VALUE : OK;
}

CUresult cuGetErrorString(CUresult code, const char **out) {
    int i = error_at(code);
    *out = i < 0 ? NULL : errors[i].text;
    return i < 0 ? INVALID_VALUE : OK;
}

/* ---- how functions are found ---- */

/* The newest version of a function that this library has. */
CUresult cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    static const char *const endings[] = {"_v3", "_v2", "", "WithFlags"};
    char whole[128];
    Dl_info us;
    *out = NULL;
    if (!dladdr((void *)(uintptr_t)cuGetProcAddress_v2, &us)) return NOT_FOUND;
    void *library = dlopen(us.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; library && i < sizeof endings / sizeof *endings && !*out; i++) {
        (void)snprintf(whole, sizeof whole, "%s%s", name, endings[i]);
        *out = dlsym(library, whole);
    }
    if (library) (void)dlclose(library);
    if (status) *status = *out ? 0 : 1;
    return *out ? OK : NOT_FOUND;
}
