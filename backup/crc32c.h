/* CRC32C (Castagnoli): the checksum that S3 servers compare with each part they take. */
#ifndef BACKUP_CRC32C_H
#define BACKUP_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#define CRC32C_TEXT_MAX 9 /* base64 of 4 bytes, big endian, and a 0 */

uint32_t crc32c_bytes(const void *bytes, size_t count);
/* As in the x-amz-checksum-crc32c header. */
void crc32c_format(uint32_t crc, char out_text[CRC32C_TEXT_MAX]);

#endif
