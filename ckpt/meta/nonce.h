/* Fresh names: 128 random bits as text, for what must never meet a name of another process. */
#ifndef CKPT_META_NONCE_H
#define CKPT_META_NONCE_H

#include "ckpt/base/status.h"

#define NONCE_TEXT_MAX 33 /* 32 hexadecimal digits and a 0 */

enum status nonce_make(char out_nonce[NONCE_TEXT_MAX]) STATUS_MUST_CHECK;

#endif
