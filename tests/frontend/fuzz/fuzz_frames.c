/* Bytes of a connection, as they are: frames, HPACK and everything behind them. The first byte says how they are cut. */
#include "fuzz_rig.h"

static const char HELLO[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    size_t cut = data[0] & 1 ? 1 + (data[0] >> 2) : size;
    fuzz_peer peer = fuzz_connect();
    if (!(data[0] & 2)) fuzz_send(&peer, (const uint8_t *)HELLO, sizeof HELLO - 1);
    for (size_t at = 1; at < size; at += cut) fuzz_send(&peer, data + at, size - at < cut ? size - at : cut);
    fuzz_hang_up(&peer);
    fuzz_end();
    return 0;
}
