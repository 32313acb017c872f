/* The fixed part of PREFIX.idx, shared by reader (token_file.c) and writer (token_writer.c). */
#ifndef TRAIN_DATA_TOKEN_FORMAT_H
#define TRAIN_DATA_TOKEN_FORMAT_H

#define TOKEN_MAGIC "MMIDIDX\0" /* with the string's own 0: 9 bytes */
#define TOKEN_MAGIC_BYTES 9
#define TOKEN_VERSION 1
#define TOKEN_VERSION_AT 9 /* u64 */
#define TOKEN_TYPE_AT 17   /* u8 */
#define TOKEN_COUNTS_AT 18 /* u64 sequences, u64 document entries */
#define TOKEN_HEADER_BYTES 34

#endif
