/* hr_encode.h: writes a ModelInferResponse, bare or as one message of a stream's answer.
 *
 * Tensors are always raw: one entry of raw_output_contents for each output, in their order, an empty one too
 * (clients index them without a look). raw_output_contents comes last, so a response is a head and then, for each
 * output, a tag, a length and the payload as it lies in the output arena:
 *
 *   head | tag length | payload 0 | tag length | payload 1 ...
 *
 * Two passes: hr_encoded_bytes says how large the message is, hr_encode writes it. Who sends payloads from where
 * they lie asks hr_head_bytes and hr_encode_head instead: all that is not payload is written in one
 * piece, and `segments` says what to send in which order.
 *
 *   hr_response                       message
 *     stream == false                 ModelInferResponse
 *     stream == true                  ModelStreamInferResponse { infer_response }
 *     stream == true, error is set    ModelStreamInferResponse { error_message, infer_response { names, id } }
 */
#ifndef HR_ENCODE_H
#define HR_ENCODE_H

#include <stdbool.h>

#include "hr_wire.h"

typedef struct hr_output {
    hr_view name;
    hr_view datatype;
    uint32_t rank;
    const int64_t *dims;
    hr_view data;
} hr_output;

/* Whether parameters says triton_final_response, and what. */
enum hr_final { HR_FINAL_UNSAID, HR_FINAL_FALSE, HR_FINAL_TRUE };

typedef struct hr_response {
    bool stream;
    enum hr_final final;
    hr_view error; /* of a request on a stream; length 0: none */
    hr_view model_name;
    hr_view model_version;
    hr_view id;
    uint32_t output_count; /* at most 64; 0 with an error */
    const hr_output *outputs;
} hr_response;

typedef struct hr_segment {
    const uint8_t *data;
    size_t length;
} hr_segment;

enum { HR_MAX_SEGMENTS = 2 * HR_MAX_TENSORS + 1, HR_MAX_RESPONSE = INT32_MAX };

/* Size of the message. Above HR_MAX_RESPONSE no protobuf library reads it: do not encode it. */
uint64_t hr_encoded_bytes(const hr_response *response);

/* Writes it and returns the place behind it. */
uint8_t *hr_encode(const hr_response *response, uint8_t *to);

/* Size of all that is not payload. */
uint64_t hr_head_bytes(const hr_response *response);

/* Writes that to `head`, and what to send to `segments`: their number, at most HR_MAX_SEGMENTS, none of them empty. */
uint32_t hr_encode_head(const hr_response *response, uint8_t *head, hr_segment *segments);

#endif
