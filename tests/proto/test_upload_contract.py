"""What clients generated from proto/upload.proto rely on: nothing there is ever renamed or renumbered."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from service._pb import POOL, upload

FIELDS = """
UploadRequest: options=1 chunk=2
UploadOptions: model_name=1 model_version=2 inputs=3 outputs=4 total_rows=5 first_row=6 \
priority=7 timeout_us=8
UploadOptions.Input: name=1 datatype=2 shape=3
UploadChunk: rows=1 raw_input_contents=2
UploadResponse: acknowledged_row=1 accepted=2 result=3 error=4 summary=5
UploadAccepted: model_name=1 model_version=2 outputs=3 batch_rows=4 first_row=5
UploadAccepted.Output: name=1 datatype=2 shape=3
UploadResult: first_row=1 rows=2 model_version=3 outputs=5 raw_output_contents=6
UploadResult.Output: name=1 datatype=2 shape=3
UploadError: first_row=1 rows=2 code=3 message=4
UploadSummary: rows=1 failed_rows=2 batches=3 mean_batch_rows=4 seconds=5 rows_per_second=6
"""


def lines_of(message: Descriptor) -> Iterator[str]:
    fields = " ".join(f"{field.name}={field.number}" for field in message.fields)
    yield f"{message.full_name.removeprefix('headrace.v1.')}: {fields}"
    for nested in message.nested_types:
        yield from lines_of(nested)


def test_messages_are_those_of_the_table() -> None:
    file = upload.DESCRIPTOR
    ours = [line for message in file.message_types_by_name.values() for line in lines_of(message)]
    assert ours == FIELDS.strip().splitlines()


def test_the_service_has_one_call_that_streams_both_ways() -> None:
    (method,) = POOL.FindServiceByName("headrace.v1.BatchInference").methods
    assert (method.name, method.client_streaming, method.server_streaming) == ("Upload", True, True)
