/* A loop in C over record batches, for benchmarks/decode.py: what a scan costs at least.
 *
 * It verifies each CRC with the processor's instruction, reads each record, and writes the same
 * columns as raftlog's scan: offset, timestamp, leader epoch, and the value bytes with their end
 * offsets. It trusts the bytes: no length is compared with the end of the buffer, keys and headers
 * must be absent, batches uncompressed. cc -O3 -march=native -shared -fPIC
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <nmmintrin.h>

enum { HEADER = 61, CRC_START = 21 };

static inline uint32_t be32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return __builtin_bswap32(value);
}

static inline uint64_t be64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return __builtin_bswap64(value);
}

static inline uint64_t varint(const uint8_t **at) {
    uint64_t byte = *(*at)++, value = byte & 0x7f;
    for (int shift = 7; byte & 0x80; shift += 7) {
        byte = *(*at)++;
        value |= (byte & 0x7f) << shift;
    }
    return value;
}

static inline int64_t zigzag(uint64_t raw) { return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1); }

static uint32_t crc32c(const uint8_t *at, size_t count) {
    uint64_t crc = 0xffffffff;
    for (; count >= 8; at += 8, count -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; count; at++, count--)
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    return ~(uint32_t)crc;
}

/* Return the number of records, or -1 at a batch whose CRC does not match. */
int64_t scan(const uint8_t *data, size_t size, int64_t *offset, int64_t *timestamp, int32_t *epoch,
             int32_t *value_end, uint8_t *values) {
    int64_t rows = 0;
    int32_t used = 0;
    for (const uint8_t *batch = data; batch < data + size;) {
        size_t length = be32(batch + 8) + 12;
        if (crc32c(batch + CRC_START, length - CRC_START) != be32(batch + 17))
            return -1;
        int64_t base_offset = (int64_t)be64(batch), base_timestamp = (int64_t)be64(batch + 27);
        int32_t leader_epoch = (int32_t)be32(batch + 12), count = (int32_t)be32(batch + 57);
        const uint8_t *at = batch + HEADER;
        for (int32_t record = 0; record < count; record++, rows++) {
            varint(&at);
            at++; /* attributes */
            timestamp[rows] = base_timestamp + zigzag(varint(&at));
            offset[rows] = base_offset + zigzag(varint(&at));
            epoch[rows] = leader_epoch;
            at++; /* no key */
            size_t value_bytes = (size_t)(varint(&at) >> 1);
            memcpy(values + used, at, value_bytes);
            used += (int32_t)value_bytes;
            value_end[rows] = used;
            at += value_bytes + 1; /* no headers */
        }
        batch += length;
    }
    return rows;
}
