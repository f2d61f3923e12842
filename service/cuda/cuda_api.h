/* cuda_api.h: the part of the CUDA driver API that is called from C, without CUDA's headers.
 *
 * libcuda.so.1 is opened when the first device is made, never before: a machine without it builds and serves. The
 * types are those of cuda.h, whose ABI does not change; names with _v2 are what its macros make of the plain ones.
 */
#ifndef HR_CUDA_API_H
#define HR_CUDA_API_H

#include <stddef.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUgraphExec;

enum {
    HR_CUDA_SUCCESS = 0,
    HR_CUDA_OUT_OF_MEMORY = 2,
    HR_CUDA_NOT_SUPPORTED = 801,
    HR_EVENT_BLOCKING_SYNC = 1,
    HR_REGISTER_PORTABLE = 1,
    HR_REGISTER_READ_ONLY = 8,
    HR_ACCESS_ORDER_STREAM = 1,
};

typedef struct hr_memcpy_attributes { /* CUmemcpyAttributes; the hints are for managed memory alone */
    int access_order;
    int source_hint[2];
    int target_hint[2];
    unsigned flags;
} hr_memcpy_attributes;

typedef struct hr_cuda {
    CUresult (*cuCtxSetCurrent)(CUcontext);
    CUresult (*cuEventCreate)(CUevent *, unsigned);
    CUresult (*cuEventDestroy)(CUevent);
    CUresult (*cuEventRecord)(CUevent, CUstream);
    CUresult (*cuEventSynchronize)(CUevent);
    CUresult (*cuEventElapsedTime)(float *, CUevent, CUevent);
    CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr, const void *, size_t, CUstream);
    CUresult (*cuMemcpyDtoHAsync)(void *, CUdeviceptr, size_t, CUstream);
    CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char, size_t, CUstream);
    CUresult (*cuGraphLaunch)(CUgraphExec, CUstream);
    CUresult (*cuMemHostRegister)(void *, size_t, unsigned);
    CUresult (*cuMemHostUnregister)(void *);
    /* One or none of these two: CUDA 13's, and 12.8's, which also says which copy failed. */
    CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, hr_memcpy_attributes *, size_t *, size_t, CUstream);
    CUresult (*batch_12)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, hr_memcpy_attributes *, size_t *, size_t, size_t *,
                         CUstream);
} hr_cuda;

extern hr_cuda hr_cuda_table;

/* Fills the table in. NULL, or what is wrong: a sentence that lives until the next call. */
const char *hr_cuda_open(const char *path);

#endif
