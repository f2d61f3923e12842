#include "hr_spec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    uint32_t bytes;
} DATATYPES[HR_DATATYPES] = {
    [HR_NO_DATATYPE] = {"", 0}, [HR_BOOL] = {"BOOL", 1},     [HR_UINT8] = {"UINT8", 1},
    [HR_UINT16] = {"UINT16", 2}, [HR_UINT32] = {"UINT32", 4}, [HR_UINT64] = {"UINT64", 8},
    [HR_INT8] = {"INT8", 1},     [HR_INT16] = {"INT16", 2},   [HR_INT32] = {"INT32", 4},
    [HR_INT64] = {"INT64", 8},   [HR_FP16] = {"FP16", 2},     [HR_FP32] = {"FP32", 4},
    [HR_FP64] = {"FP64", 8},     [HR_BYTES_DATATYPE] = {"BYTES", 0}, [HR_BF16] = {"BF16", 2}};

enum hr_datatype hr_datatype_of(hr_view name) {
    for (int i = HR_BOOL; i < HR_DATATYPES; i++)
        if (hr_view_says(name, DATATYPES[i].name)) return (enum hr_datatype)i;
    return HR_NO_DATATYPE;
}

hr_view hr_datatype_name(enum hr_datatype datatype) { return hr_view_of(DATATYPES[datatype].name); }

uint32_t hr_datatype_bytes(enum hr_datatype datatype) { return DATATYPES[datatype].bytes; }

int hr_tensor_find(const hr_tensor_spec *tensors, uint32_t count, hr_view name, uint32_t hint) {
    if (hint < count && hr_view_is(tensors[hint].name, name)) return (int)hint;
    for (uint32_t i = 0; i < count; i++)
        if (hr_view_is(tensors[i].name, name)) return (int)i;
    return -1;
}

/* A decimal number of at least 1 that 64 bits hold, or 0. */
static uint64_t number_of(hr_view text) {
    uint64_t n = 0;
    if (text.length == 0) return 0;
    for (size_t i = 0; i < text.length; i++) {
        uint8_t digit = (uint8_t)(text.data[i] - '0');
        if (digit > 9 || __builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, digit, &n)) return 0;
    }
    return n;
}

static uint32_t label_end(const hr_tensor_spec *t, uint64_t index) {
    uint32_t end;
    memcpy(&end, t->label_ends.data + index * sizeof end, sizeof end);
    return end;
}

hr_view hr_label(const hr_tensor_spec *t, uint64_t index) {
    if (index >= t->label_ends.length / sizeof(uint32_t)) return (hr_view){0};
    uint32_t start = index ? label_end(t, index - 1) : 0;
    return (hr_view){t->labels.data + start, label_end(t, index) - start};
}

static int check_labels(const hr_spec *spec, const hr_tensor_spec *t, hr_error *err) {
    uint32_t at = 0;
    bool good = true;
    for (uint64_t i = 0; i < t->label_ends.length / sizeof(uint32_t); i++) {
        good &= label_end(t, i) >= at;
        at = label_end(t, i);
    }
    if (good && at == t->labels.length) return 0;
    return hr_fail(err, HR_INVALID_ARGUMENT, "model '%.*s': the labels of output '%.*s' do not end where they should",
                   HR_NAME(spec->name), HR_NAME(t->name));
}

static int check_reshape(const hr_spec *spec, const char *what, const hr_tensor_spec *t, uint32_t most,
                         hr_error *err) {
    hr_form wire = hr_wire_form(t);
    if (!t->reshaped || (t->model.rank <= most && hr_forms_agree(&wire, &t->model))) return 0;
    char here[HR_SHAPE_TEXT], there[HR_SHAPE_TEXT];
    return hr_fail(err, HR_INVALID_ARGUMENT,
                   "model '%.*s': %s '%.*s' has dims %s and reshape %s: expected at most %u dimensions and as many "
                   "elements in both",
                   HR_NAME(spec->name), what, HR_NAME(t->name), hr_shape_text(here, t->dims, t->rank),
                   hr_shape_text(there, t->model.dims, t->model.rank), most);
}

static int check_tensors(const hr_spec *spec, const char *what, const hr_tensor_spec *tensors, uint32_t count,
                         hr_error *err) {
    uint32_t most = HR_MAX_RANK - (spec->max_batch_size > 0);
    if (count > HR_MAX_TENSORS)
        return hr_fail(err, HR_INVALID_ARGUMENT, "model '%.*s': expected at most %d %ss, got %u", HR_NAME(spec->name),
                       HR_MAX_TENSORS, what, count);
    for (uint32_t i = 0; i < count; i++) {
        const hr_tensor_spec *t = &tensors[i];
        if (t->name.length == 0 || !hr_utf8_valid(t->name))
            return hr_fail(err, HR_INVALID_ARGUMENT, "model '%.*s': expected UTF-8 as name of %s %u, got '%.*s'",
                           HR_NAME(spec->name), what, i, HR_NAME(t->name));
        if (hr_tensor_find(tensors, i, t->name, i) >= 0)
            return hr_fail(err, HR_INVALID_ARGUMENT, "model '%.*s': expected one %s '%.*s', got two",
                           HR_NAME(spec->name), what, HR_NAME(t->name));
        if (t->datatype <= HR_NO_DATATYPE || t->datatype >= HR_DATATYPES)
            return hr_fail(err, HR_INVALID_ARGUMENT, "model '%.*s': %s '%.*s' has no datatype of the protocol",
                           HR_NAME(spec->name), what, HR_NAME(t->name));
        if (t->rank > most)
            return hr_fail(err, HR_INVALID_ARGUMENT,
                           "model '%.*s': %s '%.*s': expected at most %u dimensions without the batch axis, got %u",
                           HR_NAME(spec->name), what, HR_NAME(t->name), most, t->rank);
        for (uint32_t d = 0; d < t->rank; d++)
            if (t->dims[d] < -1)
                return hr_fail(err, HR_INVALID_ARGUMENT,
                               "model '%.*s': %s '%.*s': expected dimensions of -1 or more, got %lld",
                               HR_NAME(spec->name), what, HR_NAME(t->name), (long long)t->dims[d]);
        if (check_reshape(spec, what, t, most, err) < 0 || check_labels(spec, t, err) < 0) return -1;
    }
    return 0;
}

static int check_spec(const hr_spec *spec, hr_error *err) {
    if (spec->name.length == 0 || !hr_utf8_valid(spec->name))
        return hr_fail(err, HR_INVALID_ARGUMENT, "expected UTF-8 as name of a model, got '%.*s'", HR_NAME(spec->name));
    if (number_of(spec->version) == 0)
        return hr_fail(err, HR_INVALID_ARGUMENT, "model '%.*s': expected a number above 0 as version, got '%.*s'",
                       HR_NAME(spec->name), HR_NAME(spec->version));
    if (check_tensors(spec, "input", spec->inputs, spec->input_count, err) < 0) return -1;
    return check_tensors(spec, "output", spec->outputs, spec->output_count, err);
}

/* Every view of a spec, so that its strings can be counted and moved. */
static uint32_t strings_of(hr_spec *spec, hr_view **out) {
    uint32_t n = 0;
    out[n++] = &spec->name;
    out[n++] = &spec->version;
    for (uint32_t i = 0; i < spec->input_count; i++) out[n++] = &spec->inputs[i].name;
    for (uint32_t i = 0; i < spec->output_count; i++) {
        out[n++] = &spec->outputs[i].name;
        out[n++] = &spec->outputs[i].labels;
        out[n++] = &spec->outputs[i].label_ends;
    }
    return n;
}

hr_spec *hr_spec_new(const hr_spec *draft, hr_error *err) {
    hr_view *strings[2 + 4 * HR_MAX_TENSORS];
    size_t bytes = sizeof(hr_spec);
    if (check_spec(draft, err) < 0) return NULL;
    hr_spec copy = *draft;
    uint32_t count = strings_of(&copy, strings);
    for (uint32_t i = 0; i < count; i++) bytes += strings[i]->length;
    hr_spec *spec = malloc(bytes);
    if (spec == NULL) {
        hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for the spec of model '%.*s'", HR_NAME(draft->name));
        return NULL;
    }
    *spec = copy;
    spec->number = number_of(draft->version);
    spec->holders = 1;
    uint8_t *at = (uint8_t *)(spec + 1);
    count = strings_of(spec, strings);
    for (uint32_t i = 0; i < count; i++) {
        if (strings[i]->length > 0) memcpy(at, strings[i]->data, strings[i]->length);
        strings[i]->data = at;
        at += strings[i]->length;
    }
    return spec;
}

hr_spec *hr_spec_hold(hr_spec *spec) {
    spec->holders++;
    return spec;
}

void hr_spec_drop(hr_spec *spec) {
    if (spec != NULL && --spec->holders == 0) free(spec);
}

/* ---- the table ---- */

static int name_order(hr_view a, hr_view b) {
    size_t n = a.length < b.length ? a.length : b.length;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int spec_order(const hr_spec *a, const hr_spec *b) {
    int order = name_order(a->name, b->name);
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

hr_table *hr_table_new(hr_spec *const *specs, uint32_t count, hr_error *err) {
    hr_table *table = malloc(sizeof(hr_table) + count * sizeof(hr_spec *));
    if (table == NULL) {
        hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for a table of %u models", count);
        return NULL;
    }
    table->count = table->known_count = 0;
    table->known = NULL;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = table->count++;
        for (; at > 0 && spec_order(table->specs[at - 1], specs[i]) > 0; at--) table->specs[at] = table->specs[at - 1];
        table->specs[at] = hr_spec_hold(specs[i]);
        if (at > 0 && spec_order(table->specs[at - 1], specs[i]) == 0) {
            hr_fail(err, HR_INVALID_ARGUMENT, "expected one model '%.*s' of version %.*s, got two",
                    HR_NAME(specs[i]->name), HR_NAME(specs[i]->version));
            hr_table_drop(table);
            return NULL;
        }
    }
    return table;
}

void hr_table_drop(hr_table *table) {
    if (table == NULL) return;
    for (uint32_t i = 0; i < table->count; i++) hr_spec_drop(table->specs[i]);
    free(table->known);
    free(table);
}

static hr_view copied(unsigned char **at, hr_view v) {
    hr_view copy = {*at, v.length};
    if (v.length > 0) memcpy(*at, v.data, v.length);
    *at += v.length;
    return copy;
}

int hr_table_know(hr_table *table, const hr_known *known, uint32_t count, hr_error *err) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += known[i].name.length + known[i].version.length + known[i].why.length;
    if (count == 0) return 0;
    table->known = malloc(count * sizeof(hr_known) + bytes);
    if (table->known == NULL) return hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for %u names of models", count);
    unsigned char *at = (unsigned char *)(table->known + count);
    for (uint32_t i = 0; i < count; i++) {
        table->known[i].name = copied(&at, known[i].name);
        table->known[i].version = copied(&at, known[i].version);
        table->known[i].why = copied(&at, known[i].why);
    }
    table->known_count = count;
    return 0;
}

/* How many specs come before every version of `name`, or with `after` behind them. */
static uint32_t bound_of(const hr_table *table, hr_view name, int after) {
    uint32_t low = 0, high = table ? table->count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (name_order(table->specs[middle]->name, name) < after) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* With so many names and so much of each, what is served fits, and with it the longest message of say_not_found. */
enum { SERVED_SHOWN = 8, SERVED_NAME = 24, SERVED_TEXT = 256 };

static void __attribute__((format(printf, 2, 3))) append(char text[SERVED_TEXT], const char *format, ...) {
    size_t at = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + at, SERVED_TEXT - at, format, arguments);
    va_end(arguments);
}

/* "; served: 'a', 'b' and 3 more": the names in the table. */
static const char *served_names(char text[SERVED_TEXT], const hr_table *table) {
    uint32_t shown = 0, more = 0;
    text[0] = '\0';
    for (uint32_t i = 0; table != NULL && i < table->count; i++) {
        hr_view name = table->specs[i]->name;
        if (i > 0 && name_order(table->specs[i - 1]->name, name) == 0) continue;
        if (shown == SERVED_SHOWN) more++;
        else append(text, "%s'%.*s'", shown++ ? ", " : "; served: ", hr_shown_up_to(name, SERVED_NAME), (const char *)name.data);
    }
    if (more) append(text, " and %" PRIu32 " more", more);
    return shown ? text : "; no model is served";
}

/* "; served: 1, 2": the versions of one model. */
static const char *served_versions(char text[SERVED_TEXT], const hr_table *table, uint32_t first, uint32_t end) {
    text[0] = '\0';
    for (uint32_t i = first; i < end && i < first + SERVED_SHOWN; i++)
        append(text, "%s%" PRIu64, i > first ? ", " : "; served: ", table->specs[i]->number);
    if (end - first > SERVED_SHOWN) append(text, " and %" PRIu32 " more", end - first - SERVED_SHOWN);
    return text;
}

/* What is known of a version that is not served, or of any version of the model when `number` is 0; or NULL. A row without
 * a number stands for any. */
static const hr_known *known_of(const hr_table *table, hr_view name, uint64_t number) {
    for (uint32_t i = 0; table != NULL && i < table->known_count; i++) {
        const hr_known *known = &table->known[i];
        if (name_order(known->name, name) != 0) continue;
        if (number == 0 || known->version.length == 0 || number_of(known->version) == number) return known;
    }
    return NULL;
}

/* Why no spec is there for it: the specs of its name, if any, are those from `first` to `end`. */
static void say_not_found(const hr_table *table, hr_view name, hr_view version, uint32_t first, uint32_t end, hr_error *err) {
    char served[SERVED_TEXT];
    const hr_known *known = known_of(table, name, number_of(version));
    if (version.length > 0 && known != NULL)
        hr_fail(err, HR_UNAVAILABLE, "Request for unknown model: '%.*s' version %.*s is not at ready state: %.*s",
                HR_NAME(name), HR_NAME(version), HR_NAME(known->why));
    else if (first < end)
        hr_fail(err, HR_NOT_FOUND, "Request for unknown model: '%.*s' version %.*s is not found%s", HR_NAME(name),
                HR_NAME(version), served_versions(served, table, first, end));
    else if (known != NULL)
        hr_fail(err, HR_NOT_FOUND, "Request for unknown model: '%.*s' has no available versions: %.*s%s", HR_NAME(name),
                HR_NAME(known->why), served_names(served, table));
    else
        hr_fail(err, HR_NOT_FOUND, "Request for unknown model: '%.*s' is not found%s", HR_NAME(name),
                served_names(served, table));
}

hr_spec *hr_table_find(const hr_table *table, hr_view name, hr_view version, hr_error *err) {
    uint32_t first = bound_of(table, name, 0), end = bound_of(table, name, 1);
    uint64_t number = number_of(version);
    if (version.length > 0 && number == 0) {
        hr_fail(err, HR_INVALID_ARGUMENT,
                "failed to get model version from specified version string '%.*s' for model '%.*s': expected a whole "
                "number above 0, or an empty string for the highest version",
                HR_NAME(version), HR_NAME(name));
        return NULL;
    }
    if (version.length == 0 && first < end) return table->specs[end - 1];
    for (uint32_t i = first; i < end; i++)
        if (table->specs[i]->number == number) return table->specs[i];
    say_not_found(table, name, version, first, end, err);
    return NULL;
}
