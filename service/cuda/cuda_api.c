#include "cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

hr_cuda hr_cuda_table;

static void find(void *library, const char *name, void *place) {
    void *symbol = dlsym(library, name);
    memcpy(place, &symbol, sizeof symbol); /* ISO C has no cast from an object's pointer to a function's */
}

const char *hr_cuda_open(const char *path) {
    static char text[256];
    hr_cuda found = {0};
    const struct {
        const char *name;
        void *place;
    } needed[] = {
        {"cuCtxSetCurrent", &found.cuCtxSetCurrent},         {"cuEventCreate", &found.cuEventCreate},
        {"cuEventDestroy_v2", &found.cuEventDestroy},        {"cuEventRecord", &found.cuEventRecord},
        {"cuEventSynchronize", &found.cuEventSynchronize},   {"cuEventElapsedTime", &found.cuEventElapsedTime},
        {"cuMemcpyHtoDAsync_v2", &found.cuMemcpyHtoDAsync},  {"cuMemcpyDtoHAsync_v2", &found.cuMemcpyDtoHAsync},
        {"cuMemsetD8Async", &found.cuMemsetD8Async},         {"cuGraphLaunch", &found.cuGraphLaunch},
        {"cuMemHostRegister_v2", &found.cuMemHostRegister},  {"cuMemHostUnregister", &found.cuMemHostUnregister},
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)snprintf(text, sizeof text, "the NVIDIA driver cannot be used: %.200s", dlerror());
        return text;
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        void *symbol;
        find(library, needed[i].name, needed[i].place);
        memcpy(&symbol, needed[i].place, sizeof symbol);
        if (symbol) continue;
        (void)snprintf(text, sizeof text, "the NVIDIA driver (%.60s) has no %s; expected one for CUDA 12 or newer", path,
                       needed[i].name);
        return text;
    }
    find(library, "cuMemcpyBatchAsync_v2", &found.batch);
    if (!found.batch) find(library, "cuMemcpyBatchAsync", &found.batch_12);
    hr_cuda_table = found;
    return NULL;
}
