#include "hr_parameters.h"

/* The request's own parameters that this server knows. The last entry of each is kept. */
enum known { TIMEOUT, PRIORITY, EMPTY_FINAL, UNORDERED, SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END, KNOWN };

static const char *const NAMES[KNOWN] = {
    [TIMEOUT] = "timeout",         [PRIORITY] = "priority",
    [EMPTY_FINAL] = "triton_enable_empty_final_response",
    [UNORDERED] = "headrace_unordered",
    [SEQUENCE_ID] = "sequence_id", [SEQUENCE_START] = "sequence_start",
    [SEQUENCE_END] = "sequence_end"};

static bool came(const hr_param *param) { return param->key.data != NULL; }

static const char *kind_name(enum hr_kind kind) {
    static const char *const names[] = {"no value",     "bool_param",   "int64_param",
                                        "string_param", "double_param", "uint64_param"};
    return names[kind];
}

static int wrong_kind(const hr_param *param, const char *expected, hr_error *err) {
    return hr_fail(err, HR_INVALID_ARGUMENT, "invalid value type for '%.*s' parameter, expected %s, got %s",
                   HR_NAME(param->key), expected, kind_name(param->kind));
}

static int not_built(const hr_param *param, const char *what, hr_error *err) {
    return hr_fail(err, HR_UNIMPLEMENTED, "parameter '%.*s' asks for %s, which this server does not have",
                   HR_NAME(param->key), what);
}

static int check_unknown(const hr_param *param, hr_error *err) {
    if (hr_view_starts(param->key, "triton_"))
        return hr_fail(err, HR_INVALID_ARGUMENT,
                       "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
                       "specified: expected a key of your own, got '%.*s'",
                       HR_NAME(param->key));
    if (param->kind == HR_KIND_NONE || param->kind == HR_KIND_UINT64)
        return wrong_kind(param, "int64_param, bool_param, string_param or double_param", err);
    return 0;
}

static int check_timeout(const hr_param *param, hr_bound *out, hr_error *err) {
    if (!came(param)) return 0;
    if (param->kind != HR_KIND_INT64) return wrong_kind(param, "int64_param (microseconds)", err);
    out->timeout_us = (int64_t)param->number;
    if (out->timeout_us >= 0) return 0;
    return hr_fail(err, HR_INVALID_ARGUMENT, "parameter 'timeout': expected 0 or more microseconds, got %lld",
                   (long long)out->timeout_us);
}

static int check_priority(const hr_param *param, hr_bound *out, hr_error *err) {
    if (!came(param)) return 0;
    if (param->kind != HR_KIND_INT64 && param->kind != HR_KIND_UINT64)
        return wrong_kind(param, "int64_param or uint64_param", err);
    if (param->kind == HR_KIND_INT64 && (int64_t)param->number < 0)
        return hr_fail(err, HR_INVALID_ARGUMENT, "parameter 'priority': expected 0 or more, got %lld",
                       (long long)param->number);
    out->priority = param->number > UINT32_MAX ? UINT32_MAX : (uint32_t)param->number; /* as low as can be */
    return 0;
}

static int check_flag(const hr_param *param, bool *out, hr_error *err) {
    if (!came(param)) return 0;
    if (param->kind != HR_KIND_BOOL) return wrong_kind(param, "bool_param", err);
    *out = param->number != 0;
    return 0;
}

static int check_sequence(const hr_param *known, hr_error *err) {
    const hr_param *id = &known[SEQUENCE_ID];
    bool start = false, end = false;
    if (check_flag(&known[SEQUENCE_START], &start, err) < 0) return -1;
    if (check_flag(&known[SEQUENCE_END], &end, err) < 0) return -1;
    if (came(id) && id->kind != HR_KIND_INT64 && id->kind != HR_KIND_STRING)
        return wrong_kind(id, "int64_param or string_param", err);
    if ((id->kind == HR_KIND_INT64 && id->number != 0) || (id->kind == HR_KIND_STRING && id->text.length > 0))
        return not_built(id, "sequence batching", err);
    if (start) return not_built(&known[SEQUENCE_START], "sequence batching", err);
    if (end) return not_built(&known[SEQUENCE_END], "sequence batching", err);
    return 0;
}

static int check_request(const hr_request *request, hr_bound *out, hr_error *err) {
    hr_param known[KNOWN] = {0}, param; /* a key that did not come has no data */
    hr_params walk = hr_request_params(request);
    while (hr_params_next(&walk, &param)) {
        int i = 0;
        while (i < KNOWN && !hr_view_says(param.key, NAMES[i])) i++;
        if (i < KNOWN) known[i] = param;
        else if (check_unknown(&param, err) < 0) return -1;
    }
    if (check_timeout(&known[TIMEOUT], out, err) < 0 || check_priority(&known[PRIORITY], out, err) < 0) return -1;
    if (check_flag(&known[EMPTY_FINAL], &out->empty_final, err) < 0) return -1;
    if (check_flag(&known[UNORDERED], &out->unordered, err) < 0) return -1;
    return check_sequence(known, err);
}

/* Of the known parameters of a tensor, *classes is the last one of that name; it may be NULL. */
static int check_tensor(hr_params walk, const char *what, hr_view name, hr_param *classes, hr_error *err) {
    hr_param param;
    while (hr_params_next(&walk, &param)) {
        if (hr_view_starts(param.key, "shared_memory_"))
            return hr_fail(err, HR_UNIMPLEMENTED,
                           "parameter '%.*s' of %s '%.*s' asks for shared memory, which this server does not have",
                           HR_NAME(param.key), what, HR_NAME(name));
        if (classes != NULL && hr_view_says(param.key, "classification")) *classes = param;
    }
    return 0;
}

static int check_output(const hr_requested *output, uint32_t *classes, hr_error *err) {
    hr_param asked = {0};
    if (check_tensor(hr_requested_params(output), "output", output->name, &asked, err) < 0) return -1;
    if (!came(&asked)) return 0;
    if (asked.kind != HR_KIND_INT64) return wrong_kind(&asked, "int64_param (how many classes)", err);
    int64_t count = (int64_t)asked.number;
    if (count < 1)
        return hr_fail(err, HR_INVALID_ARGUMENT,
                       "parameter 'classification' of output '%.*s': expected 1 class or more, got %lld",
                       HR_NAME(output->name), (long long)count);
    *classes = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count; /* no output has as many */
    return 0;
}

int hr_check_parameters(const hr_request *request, hr_bound *out, hr_error *err) {
    out->timeout_us = 0;
    out->priority = 0;
    out->empty_final = false;
    out->unordered = false;
    memset(out->classes, 0, sizeof out->classes);
    if (request->parameters > 0 && check_request(request, out, err) < 0) return -1;
    for (uint64_t i = 0; i < request->input_count && i < HR_MAX_TENSORS; i++) {
        const hr_input *input = &request->inputs[i];
        if (input->parameters == 0) continue;
        if (check_tensor(hr_input_params(input), "input", input->name, NULL, err) < 0) return -1;
    }
    for (uint64_t i = 0; i < request->output_count && i < HR_MAX_TENSORS; i++) {
        const hr_requested *output = &request->outputs[i];
        if (output->parameters > 0 && check_output(output, &out->classes[i], err) < 0) return -1;
    }
    return 0;
}
