/* Looks at the bytes of a SentencePiece ".model" before the library does.
 *
 * Before it: the file. After it: sentencepiece_model. The library trusts its input: of a file that
 * was cut between two pieces it takes what is left, and quietly gives other ids, without the
 * normaliser; and it follows the tables of a damaged normaliser out of its memory. Both are
 * STATUS_BAD_DATA here, in a message that names `path`. Whether the rest makes a model, the library
 * says.
 *
 * The file is a protobuf, ModelProto of sentencepiece_model.proto. The normaliser's table is a
 * double array of Darts-clone (darts.h, DoubleArrayUnit) and the texts that its values point into
 * (normalizer.cc, DecodePrecompiledCharsMap).
 */
#ifndef TRAIN_DATA_SENTENCEPIECE_CHECK_H
#define TRAIN_DATA_SENTENCEPIECE_CHECK_H

#include <stddef.h>

#include "ckpt/base/status.h"

enum status sentencepiece_check(const char *path, const char *bytes, size_t count)
    STATUS_MUST_CHECK;

#endif
