# The C of hr_*.h, for Cython modules that use it. Declarations, and the one class that others hold.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "hr_wire.h" nogil:
    ctypedef struct hr_view:
        const uint8_t *data
        size_t length
    enum:
        HR_MAX_RANK
        HR_MAX_TENSORS


cdef extern from "hr_error.h" nogil:
    ctypedef struct hr_error:
        int code
        bint transient
        char text[512]


cdef extern from "hr_spec.h" nogil:
    cdef enum hr_datatype:
        HR_NO_DATATYPE
        HR_BYTES_DATATYPE
        HR_DATATYPES
    ctypedef struct hr_form:
        uint32_t rank
        int64_t dims[8]
    ctypedef struct hr_tensor_spec:
        hr_view name
        hr_datatype datatype
        uint32_t rank
        int64_t dims[8]
        bint text
        bint reshaped
        hr_form model
        hr_view labels
        hr_view label_ends
    ctypedef struct hr_spec:
        hr_view name
        hr_view version
        uint64_t number
        uint32_t id
        uint32_t worker
        uint32_t max_batch_size
        uint32_t levels
        uint32_t default_level
        uint32_t fixed_timeouts
        uint32_t input_count
        uint32_t output_count
        hr_tensor_spec inputs[64]
        hr_tensor_spec outputs[64]
    ctypedef struct hr_known:
        hr_view name
        hr_view version
        hr_view why
    ctypedef struct hr_table:
        uint32_t count
    hr_datatype hr_datatype_of(hr_view name) noexcept
    hr_view hr_datatype_name(hr_datatype datatype) noexcept
    hr_spec *hr_spec_new(const hr_spec *draft, hr_error *err) noexcept
    hr_spec *hr_spec_hold(hr_spec *spec) noexcept
    void hr_spec_drop(hr_spec *spec) noexcept
    hr_table *hr_table_new(hr_spec **specs, uint32_t count, hr_error *err) noexcept
    void hr_table_drop(hr_table *table) noexcept
    int hr_table_know(hr_table *table, const hr_known *known, uint32_t count, hr_error *err) noexcept
    hr_spec *hr_table_find(const hr_table *table, hr_view name, hr_view version, hr_error *err) noexcept


cdef extern from "hr_scan.h" nogil:
    cdef enum hr_kind:
        HR_KIND_NONE
        HR_KIND_BOOL
        HR_KIND_INT64
        HR_KIND_STRING
        HR_KIND_DOUBLE
        HR_KIND_UINT64
    ctypedef struct hr_input:
        hr_view name
        hr_view datatype
        hr_view body
        uint32_t rank
        bint has_contents
        uint64_t parameters
        uint64_t typed[9]
        int64_t dims[8]
    ctypedef struct hr_requested:
        hr_view name
        hr_view body
        uint64_t parameters
    ctypedef struct hr_request:
        hr_view body
        hr_view model_name
        hr_view model_version
        hr_view id
        uint64_t parameters
        uint64_t input_count
        uint64_t output_count
        uint64_t raw_count
        hr_input inputs[64]
        hr_requested outputs[64]
        hr_view raw[64]
    ctypedef struct hr_param:
        hr_view key
        hr_kind kind
        hr_view text
        uint64_t number
    ctypedef struct hr_params:
        uint32_t field
    size_t hr_find_raw(hr_view head) noexcept
    int hr_scan(const uint8_t *message, size_t length, hr_request *out, hr_error *err) noexcept
    hr_params hr_request_params(const hr_request *request) noexcept
    hr_params hr_input_params(const hr_input *input) noexcept
    hr_params hr_requested_params(const hr_requested *output) noexcept
    bint hr_params_next(hr_params *walk, hr_param *out) noexcept


cdef extern from "hr_validate.h" nogil:
    ctypedef struct hr_bound_input:
        const hr_input *input
        hr_view data
        bint typed
        uint32_t rank
        const int64_t *dims
    ctypedef struct hr_bound:
        uint32_t rows
        uint32_t input_count
        uint32_t output_count
        uint32_t priority
        int64_t timeout_us
        bint empty_final
        hr_bound_input inputs[64]
        uint8_t outputs[64]
        uint32_t classes[64]
    int hr_validate(const hr_spec *spec, const hr_request *request, hr_bound *out, hr_error *err) noexcept


cdef extern from "hr_typed.h" nogil:
    ctypedef struct hr_typed:
        pass
    hr_typed hr_typed_at(const hr_input *input, hr_datatype datatype) noexcept
    void hr_typed_write(void *walk, void *to, uint64_t length) noexcept


cdef extern from "hr_strings.h" nogil:
    ctypedef struct hr_row_ends:
        pass
    hr_row_ends hr_row_ends_at(const hr_input *input, hr_view raw, bint is_typed) noexcept
    void hr_row_ends_write(void *walk, void *to, uint64_t length) noexcept


cdef extern from "hr_encode.h" nogil:
    cdef enum hr_final:
        HR_FINAL_UNSAID
        HR_FINAL_FALSE
        HR_FINAL_TRUE
    ctypedef struct hr_output:
        hr_view name
        hr_view datatype
        uint32_t rank
        const int64_t *dims
        hr_view data
    ctypedef struct hr_response:
        bint stream
        hr_final final
        hr_view error
        hr_view model_name
        hr_view model_version
        hr_view id
        uint32_t output_count
        const hr_output *outputs
    ctypedef struct hr_segment:
        const uint8_t *data
        size_t length
    uint64_t hr_encoded_bytes(const hr_response *response) noexcept
    uint8_t *hr_encode(const hr_response *response, uint8_t *to) noexcept
    uint64_t hr_head_bytes(const hr_response *response) noexcept
    uint32_t hr_encode_head(const hr_response *response, uint8_t *head, hr_segment *segments) noexcept


cdef class Spec:
    cdef hr_spec *ptr


cdef class Known:
    cdef hr_known *rows
    cdef uint32_t count
    cdef list keep
