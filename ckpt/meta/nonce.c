/* Fresh names; see nonce.h. */
#include "ckpt/meta/nonce.h"

#include <errno.h>
#include <sys/random.h>

#include "ckpt/base/hash.h"

enum status nonce_make(char out_nonce[NONCE_TEXT_MAX])
{
    struct hash128 bits;

    if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
        return FAIL_ERRNO("cannot get random bytes");
    }
    hash128_format(bits, out_nonce);
    return STATUS_OK;
}
