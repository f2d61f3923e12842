"""The C codec as Python sees it. For tests, and `Spec` for the front end; nothing here decides anything."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memset

import struct
from itertools import accumulate

from service.codec.errors import RequestError

MAX_TENSORS = HR_MAX_TENSORS
MAX_RANK = HR_MAX_RANK

_KINDS = ("none", "bool", "int64", "string", "double", "uint64")
_CONTENTS = ("", "bool", "int", "int64", "uint", "uint64", "fp32", "fp64", "bytes")


cdef hr_view view(bytes data):
    cdef hr_view v
    v.data = <const uint8_t *>PyBytes_AS_STRING(data)
    v.length = len(data)
    return v


cdef bytes bytes_of(hr_view v):
    return b"" if v.length == 0 else PyBytes_FromStringAndSize(<const char *>v.data, <Py_ssize_t>v.length)


cdef str text_of(hr_view v):
    return bytes_of(v).decode()


cdef object raise_error(hr_error *err):
    raise RequestError(err.code, err.text.decode("utf-8", "replace"))


# ---- specs ----

cdef class Spec:
    """A model as the codec knows it: `service.models.spec.ModelSpec` turned into a C blob.

    Raises RequestError for what is no spec: more than 64 inputs or outputs, more than 8 dimensions with the
    batch axis, an unknown datatype, a name twice, a version that is not a number above 0.
    """

    def __init__(self, model, int id=1, int worker=0):
        cdef hr_error err
        cdef list strings = []
        cdef hr_spec *draft = <hr_spec *>PyMem_Malloc(sizeof(hr_spec))
        if draft == NULL:
            raise MemoryError
        try:
            fill_draft(draft, model, id, worker, strings)
            self.ptr = hr_spec_new(draft, &err)
        finally:
            PyMem_Free(draft)
        if self.ptr == NULL:
            raise_error(&err)

    def __dealloc__(self):
        hr_spec_drop(self.ptr)


cdef class Known:
    """What a table knows besides its specs: (name, version, why) of each version that is not served."""

    def __init__(self, rows):
        self.keep = [[text.encode() for text in row] for row in rows]
        self.count = len(self.keep)
        self.rows = <hr_known *>PyMem_Malloc(max(1, self.count) * sizeof(hr_known))
        if self.rows == NULL:
            raise MemoryError
        for i, (name, version, why) in enumerate(self.keep):
            self.rows[i].name, self.rows[i].version, self.rows[i].why = view(name), view(version), view(why)

    def __dealloc__(self):
        PyMem_Free(self.rows)


cdef int fill_draft(hr_spec *draft, object model, int id, int worker, list strings) except -1:
    memset(draft, 0, sizeof(hr_spec))
    strings += [model.name.encode(), model.version.encode()]
    draft.name, draft.version = view(strings[0]), view(strings[1])
    draft.id, draft.worker, draft.max_batch_size = id, worker, model.max_batch_size
    draft.levels = len(model.scheduling.levels)
    draft.default_level = model.scheduling.default_level - 1
    for i, level in enumerate(model.scheduling.levels):
        draft.fixed_timeouts |= <uint32_t>(not level.override) << i
    draft.input_count = fill_tensors(draft.inputs, model.inputs, strings)
    draft.output_count = fill_tensors(draft.outputs, model.outputs, strings)
    for i, tensor in enumerate(model.outputs[:HR_MAX_TENSORS]):
        fill_labels(&draft.outputs[i], tensor.labels, strings)
    return 0


cdef int fill_labels(hr_tensor_spec *out, object labels, list strings) except -1:
    cdef list encoded = [label.encode("utf-8", "surrogateescape") for label in labels]
    strings += [b"".join(encoded), struct.pack(f"={len(encoded)}I", *accumulate(map(len, encoded)))]
    out.labels, out.label_ends = view(strings[len(strings) - 2]), view(strings[len(strings) - 1])
    return 0


cdef uint32_t fill_tensors(hr_tensor_spec *out, object tensors, list strings) except? 0xffffffff:
    cdef uint32_t i
    for i, tensor in enumerate(tensors):
        if i == HR_MAX_TENSORS:
            break
        strings.append(tensor.name.encode())
        out[i].name = view(strings[len(strings) - 1])
        out[i].datatype = hr_datatype_of(view(tensor.datatype.encode()))
        out[i].rank = fill_dims(out[i].dims, tensor.dims)
        out[i].text = tensor.text
        out[i].reshaped = tensor.model_dims != tensor.dims
        out[i].model.rank = fill_dims(out[i].model.dims, tensor.model_dims)
    return len(tensors)


cdef uint32_t fill_dims(int64_t *out, object dims) except? 0xffffffff:
    cdef uint32_t d
    for d in range(min(HR_MAX_RANK, len(dims))):
        out[d] = dims[d]
    return len(dims)


# ---- scan ----

cdef int kept(uint64_t count, int most):
    return <int>count if count < <uint64_t>most else most


cdef object param_value(hr_param *param):
    if param.kind == HR_KIND_STRING:
        return text_of(param.text)
    if param.kind == HR_KIND_BOOL:
        return bool(param.number)
    if param.kind == HR_KIND_INT64:
        return <int64_t>param.number
    if param.kind == HR_KIND_DOUBLE:
        return struct.pack("<Q", param.number)
    return param.number if param.kind == HR_KIND_UINT64 else None


cdef dict params_of(hr_params walk):
    cdef hr_param param
    found = {}
    while hr_params_next(&walk, &param):
        found[text_of(param.key)] = (_KINDS[<int>param.kind], param_value(&param))
    return found


cdef dict input_of(const hr_input *i):
    return {
        "name": text_of(i.name),
        "datatype": text_of(i.datatype),
        "rank": i.rank,
        "shape": [i.dims[d] for d in range(kept(i.rank, HR_MAX_RANK))],
        "parameters": params_of(hr_input_params(i)),
        "contents": {_CONTENTS[k]: i.typed[k] for k in range(1, 9)} if i.has_contents else None,
    }


cdef dict describe(const hr_request *r):
    return {
        "model_name": text_of(r.model_name),
        "model_version": text_of(r.model_version),
        "id": text_of(r.id),
        "parameters": params_of(hr_request_params(r)),
        "inputs": [input_of(&r.inputs[i]) for i in range(kept(r.input_count, HR_MAX_TENSORS))],
        "input_count": r.input_count,
        "outputs": [
            {"name": text_of(r.outputs[i].name), "parameters": params_of(hr_requested_params(&r.outputs[i]))}
            for i in range(kept(r.output_count, HR_MAX_TENSORS))
        ],
        "output_count": r.output_count,
        "raw": [bytes_of(r.raw[i]) for i in range(kept(r.raw_count, HR_MAX_TENSORS))],
        "raw_count": r.raw_count,
    }


cdef class Scratch:
    """Room for one scanned and bound request."""

    cdef hr_request request
    cdef hr_bound bound
    cdef bytes message

    cdef int scan(self, bytes message) except -1:
        cdef hr_error err
        cdef hr_view v = view(message)
        self.message = message
        if hr_scan(v.data, v.length, &self.request, &err) < 0:
            raise_error(&err)
        return 0

    cdef int validate(self, Spec spec) except -1:
        cdef hr_error err
        if hr_validate(spec.ptr, &self.request, &self.bound, &err) < 0:
            raise_error(&err)
        return 0


def scan(bytes message):
    """What the message says, as the C sees it; RequestError when it is no ModelInferRequest."""
    cdef Scratch scratch = Scratch()
    scratch.scan(message)
    return describe(&scratch.request)


def find_raw(bytes head):
    """Where the first raw contents begin, of a message that begins with `head`; 0 when that cannot be told."""
    return hr_find_raw(view(head))


cdef bytes bound_data(Spec spec, const hr_bound *bound, uint32_t i, size_t piece):
    cdef const hr_bound_input *data = &bound.inputs[i]
    if not data.typed:
        return bytes_of(data.data)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>data.data.length)
    cdef char *to = PyBytes_AS_STRING(out)
    cdef hr_typed walk = hr_typed_at(data.input, spec.ptr.inputs[i].datatype)
    cdef size_t at = 0
    while at < data.data.length:
        hr_typed_write(&walk, to + at, min(piece, data.data.length - at))
        at += piece
    return out


cdef bytes row_ends(const hr_bound *bound, uint32_t i, size_t piece):
    cdef const hr_bound_input *data = &bound.inputs[i]
    cdef size_t at = 0, length = bound.rows * sizeof(uint64_t), whole = (1 + piece // 8) * 8
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>length)
    cdef hr_row_ends walk = hr_row_ends_at(data.input, data.data, data.typed)
    while at < length:
        hr_row_ends_write(&walk, PyBytes_AS_STRING(out) + at, min(whole, length - at))
        at += whole
    return out


def validate(Spec spec not None, bytes message, size_t piece=1 << 20):
    """The request bound to the spec: rows, the data of each input in the spec's order, indexes of the outputs; and by
    index of a BYTES input of a model that batches, where its rows end (8 bytes each).

    Typed contents and ends of rows are written `piece` bytes at a time.
    """
    cdef Scratch scratch = Scratch()
    scratch.scan(message)
    scratch.validate(spec)
    cdef hr_bound *bound = &scratch.bound
    return {
        "rows": bound.rows,
        "inputs": [bound_data(spec, bound, i, piece) for i in range(bound.input_count)],
        "shapes": [[bound.inputs[i].dims[d] for d in range(bound.inputs[i].rank)] for i in range(bound.input_count)],
        "row_ends": {
            i: row_ends(bound, i, piece) for i in range(bound.input_count)
            if spec.ptr.max_batch_size > 0 and spec.ptr.inputs[i].datatype == HR_BYTES_DATATYPE
        },
        "outputs": [bound.outputs[i] for i in range(bound.output_count)],
        "classes": [bound.classes[i] for i in range(bound.output_count)],
        "timeout_us": bound.timeout_us,
        "priority": bound.priority,
        "empty_final": bool(bound.empty_final),
    }


def find(list specs, str name, str version, known=()):
    """The index of the spec that a request for this name and version is for; RequestError when there is none.

    `known`: (name, version, why) of what is not served.
    """
    cdef hr_error err
    cdef Known also = Known(known)
    cdef bytes n = name.encode(), v = version.encode()
    cdef hr_spec **pointers = <hr_spec **>PyMem_Malloc(max(1, len(specs)) * sizeof(void *))
    for i, spec in enumerate(specs):
        pointers[i] = (<Spec>spec).ptr
    cdef hr_table *table = hr_table_new(pointers, len(specs), &err)
    PyMem_Free(pointers)
    if table == NULL:
        raise_error(&err)
    cdef hr_spec *found = NULL
    if hr_table_know(table, also.rows, also.count, &err) == 0:
        found = hr_table_find(table, view(n), view(v), &err)
    hr_table_drop(table)
    if found == NULL:
        raise_error(&err)
    return [(<Spec>spec).ptr == found for spec in specs].index(True)


# ---- encode ----

cdef class Response:
    """A response to encode. `outputs` are (name, datatype, shape, data); `final` is None or a bool."""

    cdef hr_response c
    cdef hr_output outputs[64]
    cdef int64_t dims[64][8]
    cdef list keep

    def __init__(self, *, bint stream=False, final=None, bytes error=b"", bytes model_name=b"",
                 bytes model_version=b"", bytes id=b"", list outputs=[]):
        self.keep = [error, model_name, model_version, id]
        self.c.stream = stream
        self.c.final = HR_FINAL_UNSAID if final is None else HR_FINAL_TRUE if final else HR_FINAL_FALSE
        self.c.error, self.c.model_name = view(error), view(model_name)
        self.c.model_version, self.c.id = view(model_version), view(id)
        self.c.outputs = self.outputs
        for name, datatype, shape, data in outputs:
            self.add(name, datatype, shape, data)

    cdef int add(self, bytes name, bytes datatype, shape, bytes data) except -1:
        cdef uint32_t i = self.c.output_count
        if i == HR_MAX_TENSORS or len(shape) > HR_MAX_RANK:
            raise ValueError(f"expected at most {MAX_TENSORS} outputs of at most {MAX_RANK} dimensions")
        self.keep += [name, datatype, data]
        self.outputs[i].name, self.outputs[i].datatype = view(name), view(datatype)
        self.outputs[i].data = view(data)
        self.outputs[i].rank = len(shape)
        for d, size in enumerate(shape):
            self.dims[i][d] = size
        self.outputs[i].dims = self.dims[i]
        self.c.output_count = i + 1
        return 0

    def encode(self):
        """The whole message."""
        cdef Py_ssize_t size = <Py_ssize_t>hr_encoded_bytes(&self.c)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *start = <uint8_t *>PyBytes_AS_STRING(out)
        cdef uint8_t *end = hr_encode(&self.c, start)
        if end - start != size:
            raise AssertionError(f"announced {size} bytes, wrote {end - start}")
        return out

    def segments(self):
        """The message in pieces, as it would be sent without copying payloads, and how many bytes are head."""
        cdef hr_segment segments[129]
        cdef Py_ssize_t size = <Py_ssize_t>hr_head_bytes(&self.c)
        cdef bytes head = PyBytes_FromStringAndSize(NULL, size)
        cdef uint32_t n = hr_encode_head(&self.c, <uint8_t *>PyBytes_AS_STRING(head), segments)
        return [bytes_of(hr_view(segments[i].data, segments[i].length)) for i in range(n)], size


# ---- how long the C alone takes ----

def repeat(Spec spec, bytes message, int times):
    """Scans (and with a spec validates) the message `times` times, without the GIL. For benchmarks."""
    cdef Scratch scratch = Scratch()
    cdef hr_error err
    cdef hr_view v = view(message)
    cdef int i, bad = 0
    with nogil:
        for i in range(times):
            bad |= hr_scan(v.data, v.length, &scratch.request, &err)
            if spec is not None:
                bad |= hr_validate(spec.ptr, &scratch.request, &scratch.bound, &err)
    if bad:
        raise_error(&err)
