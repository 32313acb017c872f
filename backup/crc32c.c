/* CRC32C by the processor's instruction where it has one, else bit by bit from a table; see
 * crc32c.h. */
#include "backup/crc32c.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL UINT32_C(0x82f63b78) /* reflected */

static uint32_t add_portable(uint32_t crc, const unsigned char *bytes, size_t count)
{
    uint32_t table[16]; /* of half bytes: small enough to be made anew */

    for (uint32_t i = 0; i < 16; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 4; bit++) {
            value = (value & 1) != 0 ? value >> 1 ^ POLYNOMIAL : value >> 1;
        }
        table[i] = value;
    }
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t
add_by_instruction(uint32_t crc, const unsigned char *bytes, size_t count)
{
    uint64_t wide = crc;

    for (; count >= 8; count -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; count > 0; count--, bytes++) {
        crc = __builtin_ia32_crc32qi(crc, *bytes);
    }
    return crc;
}

static uint32_t add(uint32_t crc, const unsigned char *bytes, size_t count)
{
    return __builtin_cpu_supports("sse4.2") != 0 ? add_by_instruction(crc, bytes, count)
                                                 : add_portable(crc, bytes, count);
}
#else
static uint32_t add(uint32_t crc, const unsigned char *bytes, size_t count)
{
    return add_portable(crc, bytes, count);
}
#endif

uint32_t crc32c_bytes(const void *bytes, size_t count)
{
    return ~add(UINT32_MAX, bytes, count);
}

void crc32c_format(uint32_t crc, char out_text[CRC32C_TEXT_MAX])
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    /* 32 bits are five letters of six bits and one of two bits, padded to a multiple of four. */
    for (int i = 0; i < 5; i++) {
        out_text[i] = letters[crc >> (26 - 6 * i) & 63];
    }
    out_text[5] = letters[crc << 4 & 63];
    memcpy(out_text + 6, "==", 3);
}
