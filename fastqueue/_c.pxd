"""The C core as Cython sees it: declarations, and nothing else."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "fq_fork.h" nogil:
    unsigned fq_generation
    int fq_fork_watch() noexcept

cdef extern from "fq_layout.h" nogil:
    ctypedef struct fq_bell:
        pass
    const int FQ_MAX_RANK, FQ_MAX_TENSORS, FQ_MAX_EXTENTS, FQ_MAX_MODELS, FQ_MAX_SIZES, FQ_REASONS, FQ_TEXT, FQ_ENGINE_COUNTS
    const uint32_t FQ_ABI_VERSION, FQ_FINAL, FQ_AGAIN, FQ_UNLAUNCHED
    const uint64_t FQ_MAGIC_LANE, FQ_MAGIC_INPUT, FQ_MAGIC_OUTPUT, FQ_MAGIC_WORKER

    ctypedef struct fq_a32:
        pass
    ctypedef struct fq_a64:
        pass
    uint64_t fq_load_rlx(const fq_a64 *counter, int label) noexcept
    int S2

    ctypedef struct fq_extent:
        uint64_t offset, length
    ctypedef struct fq_slot:
        uint32_t model, rows, priority
        int64_t arrival_ns, deadline_ns
        fq_extent header
    ctypedef struct fq_completion:
        uint32_t slot, flags, status, text_bytes, batch_rows, reason
        fq_extent answer
        uint64_t batch
        int64_t queue_ns, input_ns, compute_ns, output_ns, done_ns
    ctypedef struct fq_slice:
        uint32_t index, rank
        fq_extent data
        int64_t *dims
    ctypedef struct fq_answer:
        uint32_t slice_count
    ctypedef struct fq_arena_header:
        uint64_t magic, bytes, head_bytes
        uint32_t version
    ctypedef struct fq_lane_header:
        uint64_t magic, bytes
        uint32_t version, slots, completions
    uint64_t fq_lane_bytes(uint32_t slots, uint32_t completions) noexcept

    ctypedef struct fq_count:
        fq_a64 count, ns
    ctypedef struct fq_size_stats:
        fq_a64 rows, compute_ns, output_ns
        fq_count input
    ctypedef struct fq_model_stats:
        fq_a64 model, rows, executions, last_unix_ms, cancelled, expired, slow, pending_rows, padding_rows
        fq_count success, fail, queue, input, compute, output
        fq_a64 *batches
        fq_a64 *engine
        fq_size_stats *sizes
    ctypedef struct fq_worker_page:
        uint64_t magic, bytes
        uint32_t version
        fq_bell bell
        fq_model_stats *models

cdef extern from "fq_bell.h" nogil:
    const int64_t FQ_NEVER
    int64_t fq_monotonic_ns() noexcept
    void fq_bell_wake(fq_bell *) noexcept
    void fq_bell_kick(fq_bell *) noexcept

cdef extern from "fq_map.h" nogil:
    int fq_map_create(const char *label, uint64_t size) noexcept
    void fq_map_punch(int fd, uint64_t offset, uint64_t size) noexcept
    void *fq_map_open(int fd, int writable, uint64_t *size) noexcept

cdef extern from "fq_lane.h" nogil:
    ctypedef struct fq_lane:
        fq_lane_header *header
        uint32_t slot_count
    ctypedef struct fq_front_lane:
        fq_lane lane
        fq_bell *worker
        uint32_t free_count
    void fq_lane_format(void *memory, uint32_t slots, uint32_t completions) noexcept
    int fq_lane_check_header(const fq_lane_header *copy, uint64_t mapped) noexcept
    void fq_lane_attach(fq_lane *, void *memory, uint32_t slots, uint32_t completions, int front) noexcept
    char *fq_lane_text(const fq_lane *, uint32_t slot) noexcept
    void fq_front_lane_init(fq_front_lane *, uint32_t *free_slots, unsigned char *states) noexcept
    fq_slot *fq_lane_claim(fq_front_lane *, uint32_t *number) noexcept
    void fq_lane_free(fq_front_lane *, uint32_t number) noexcept
    int fq_lane_publish(fq_front_lane *, uint32_t number) noexcept
    int fq_lane_cancel(fq_front_lane *, uint32_t number) noexcept
    int fq_lane_poll(fq_front_lane *, fq_completion *) noexcept
    int fq_lane_retire(fq_front_lane *, uint32_t number, int answered) noexcept
    int fq_front_lane_arm(fq_front_lane *) noexcept

cdef extern from "fq_fill.h" nogil:
    const int FQ_FILL_BLOCKS
    ctypedef struct fq_source:
        uint32_t index, rank
        const int64_t *dims
        const void *data
        uint64_t length
        const uint64_t *row_ends
        uint32_t rows
    ctypedef struct fq_input:
        uint32_t blocks
        uint64_t used_bytes
    size_t fq_input_private_bytes(uint32_t blocks) noexcept
    uint64_t fq_input_arena_bytes(uint32_t blocks) noexcept
    void fq_input_init(fq_input *, uint32_t blocks, void *private_memory) noexcept
    ctypedef void fq_punch(int fd, uint64_t offset, uint64_t size) noexcept
    size_t fq_spill_private_bytes(uint64_t size) noexcept
    void fq_input_add_spill(fq_input *, uint64_t size, int fd, fq_punch *, void *private_memory) noexcept
    uint64_t fq_input_used(const fq_input *) noexcept
    void fq_input_free(fq_input *, const fq_extent *, uint32_t count) noexcept
    int fq_input_check(const fq_input *) noexcept
    uint32_t fq_fill(fq_input *, unsigned char *base, const fq_source *, uint32_t count, fq_extent *blocks,
                     fq_slot *) noexcept

cdef extern from "fq_control.h" nogil:
    enum:
        FQ_MAX_RUNNING
    const int FQ_MAX_STREAMS
    ctypedef struct fq_policy:
        uint32_t max_batch
        int64_t max_wait_ns, head_start_ns
    ctypedef struct fq_pending:
        uint32_t rows, requests
        int full
        int64_t oldest_ns, deadline_ns, predicted_ns
    ctypedef struct fq_free_slots:
        uint32_t idle, behind
        int64_t end_ns
    ctypedef struct fq_step:
        int kind, reason
        int64_t until_ns
        uint32_t rows
    ctypedef struct fq_level:
        int64_t timeout_ns
        uint32_t delay, max_queue
    const int FQ_STEP_CLOSE, FQ_MAX_LEVELS
    fq_step fq_next_step(int64_t now, const fq_pending *, const fq_free_slots *, const fq_policy *) noexcept

    ctypedef struct fq_signature:
        uint32_t inputs, batched
        uint32_t *element_bytes
    ctypedef struct fq_model_config:
        uint32_t id, group, max_streams, outputs
        fq_policy policy
        fq_signature signature
        int64_t *output_row_bytes
        uint32_t level_count, default_level
        fq_level *levels
    ctypedef struct fq_running:
        uint32_t model, rows
        uint64_t number
        int64_t age_ns, slow_after_ns
        int slow
    ctypedef struct fq_model:
        uint32_t id, outputs
        fq_signature signature
    ctypedef struct fq_stream:
        pass
    ctypedef struct fq_part:
        uint32_t row, rows
    ctypedef struct fq_batch:
        fq_model *model
        uint64_t number
        uint32_t rows, padding, part_count
        uint64_t *counts
        int reason, reserved
        int64_t closed_ns, launched_ns, input_ns, compute_ns
        fq_part *parts
    ctypedef struct fq_output:
        uint64_t granules, free_granules, head
    ctypedef struct fq_former:
        fq_output output
        fq_worker_page *page
        int64_t fixed_ns
        fq_stream *streams
    ctypedef struct fq_shape:
        uint32_t rank
        int64_t *dims
    ctypedef struct pthread_mutex_t:
        pass
    const int FQ_RESERVED, FQ_RESERVE_FULL, FQ_RESERVE_NEVER, FQ_RESERVE_VAIN, FQ_RESERVE_CHANGED, FQ_MAX_PARTS

    size_t fq_output_private_bytes(uint64_t granules) noexcept
    uint64_t fq_output_most(const fq_output *, uint64_t share) noexcept
    void fq_former_set_spill(fq_former *, uint64_t size, int fd, fq_punch *) noexcept
    int fq_output_check(const fq_output *) noexcept
    void fq_former_init(fq_former *, fq_worker_page *, void *output, uint64_t size, void *private_memory) noexcept
    size_t fq_attached_private_bytes(uint32_t slots) noexcept
    int fq_former_attach(fq_former *, void *lane, uint32_t slots, uint32_t completions, const void *arena,
                         uint64_t arena_bytes, int eventfd, void *private_memory) noexcept
    void fq_former_detach(fq_former *, uint32_t number) noexcept
    int fq_former_add_model(fq_former *, const fq_model_config *) noexcept
    void fq_former_remove_model(fq_former *, uint32_t id) noexcept
    int fq_former_add_stream(fq_former *, uint32_t group) noexcept
    void fq_former_remove_stream(fq_former *, uint32_t number) noexcept
    int64_t fq_former_step_now(fq_former *) noexcept
    fq_batch *fq_stream_try(fq_former *, uint32_t number) noexcept
    fq_batch *fq_stream_next(fq_former *, uint32_t number) noexcept
    uint32_t fq_former_watch(fq_former *, fq_running *) noexcept
    void fq_former_run(fq_former *) noexcept
    void fq_former_close(fq_former *) noexcept
    int64_t fq_now(const fq_former *) noexcept

    int fq_batch_check(fq_batch *) noexcept
    int fq_batch_shape(const fq_batch *, uint32_t input, int64_t *dims) noexcept
    uint64_t fq_batch_input_bytes(const fq_batch *, uint32_t input) noexcept
    const void *fq_batch_view(const fq_batch *, uint32_t input) noexcept
    int fq_batch_gather(const fq_batch *, uint32_t input, void *to, uint64_t capacity) noexcept
    int fq_batch_gather_rows(const fq_batch *, uint32_t input, uint32_t first, uint32_t rows, void *to, uint64_t capacity) noexcept
    ctypedef struct fq_sizes:
        uint64_t row_bytes
        const uint64_t *row_ends
    int fq_batch_reserve(fq_batch *, const fq_sizes *sizes, int wait) noexcept
    unsigned char *fq_batch_output(const fq_batch *, uint32_t output) noexcept
    int fq_batch_complete(fq_batch *, const fq_shape *) noexcept
    void fq_batch_fail(fq_batch *, uint32_t status, uint32_t flags, const char *text) noexcept
