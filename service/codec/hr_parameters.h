/* hr_parameters.h: the parameters a client may send with a request, an input or a requested output.
 *
 *   request  timeout       int64_param, microseconds, 0: none
 *            priority      int64_param or uint64_param, 0: the model's default, 1: the highest
 *            triton_enable_empty_final_response   bool_param
 *            headrace_unordered   bool_param
 *            sequence_id   0 or "": no sequence; another one, and sequence_start or sequence_end: not built
 *            triton_*      any other one: refused, as Triton does
 *            any other key bool_param, int64_param, string_param or double_param
 *   input    shared_memory_region, _byte_size, _offset: not built; others mean nothing
 *   output   the same; classification   int64_param above 0, how many classes; others (binary_data) mean nothing over gRPC
 *
 * What is not built is refused by name with UNIMPLEMENTED: to ignore it would be a wrong answer.
 *
 * Where a key comes twice the last entry counts. Of keys that are not listed above, though, the type of each
 * entry is checked: to know which entries are replaced would take memory in proportion to the message, and no protobuf
 * library writes a key twice.
 */
#ifndef HR_PARAMETERS_H
#define HR_PARAMETERS_H

#include "hr_validate.h"

/* 0, or -1 with *err. Fills in timeout_us, priority, empty_final, unordered, and the classes in the order of the
 * request's outputs. */
int hr_check_parameters(const hr_request *request, hr_bound *out, hr_error *err);

#endif
