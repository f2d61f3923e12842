"""y = 2x + 1 as a kernel, for any NVIDIA device; no compiler is needed."""

from __future__ import annotations

import ctypes

from service.cuda.driver import api, check
from service.cuda.model import Place

THREADS = 256
SOURCE = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry affine(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p;
    .reg .f32 %f<3>;
    .reg .b32 %r<6>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %d3, %d1;
    cvta.to.global.u64 %d4, %d2;
    mul.wide.u32 %d5, %r5, 4;
    add.s64 %d6, %d3, %d5;
    add.s64 %d7, %d4, %d5;
    ld.global.f32 %f1, [%d6];
    fma.rn.f32 %f2, %f1, 0f40000000, 0f3F800000;
    st.global.f32 [%d7], %f2;
DONE:
    ret;
}
\0"""


class PtxCompute:
    """`nowhere`: it writes to address 16, which no program may."""

    def __init__(self, nowhere: bool = False) -> None:
        self._nowhere = nowhere
        self._module = check(api().cuModuleLoadData(SOURCE), "loading the kernel")
        self._kernel = check(api().cuModuleGetFunction(self._module, b"affine"), "finding the kernel")

    def enqueue(self, stream: int, x: int, y: int, count: int, place: Place) -> None:
        values = (x, 16 if self._nowhere else y, count)
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        grid = (-(-count // THREADS), 1, 1)
        launched = api().cuLaunchKernel(self._kernel, *grid, THREADS, 1, 1, 0, stream, (values, types), 0)
        check(launched, "launching the kernel")

    def close(self) -> None:
        check(api().cuModuleUnload(self._module), "unloading the kernel")
