/* Between options.c and options_print.c only. */
#ifndef CKPT_BASE_OPTIONS_PRIVATE_H
#define CKPT_BASE_OPTIONS_PRIVATE_H

#include "ckpt/base/options.h"

/* The value as a person would write it: "4", "0.1", "true", "cosine". */
void options_format_value(const struct option *option, const void *values, char *out_text,
                          size_t bytes);

#endif
