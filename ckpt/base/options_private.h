/* Between options.c and options_print.c only. */
#ifndef CKPT_BASE_OPTIONS_PRIVATE_H
#define CKPT_BASE_OPTIONS_PRIVATE_H

#include "ckpt/base/options.h"

/* Whether 0 stands for "not given" (default ""). */
static inline bool option_is_unset_number(const struct option *option)
{
    return (option->type == OPTION_INT || option->type == OPTION_FLOAT) &&
           option->default_text != NULL && option->default_text[0] == '\0';
}

/* The value as a person would write it: "4", "0.1", "true", "cosine". */
void options_format_value(const struct option *option, const void *values, char *out_text,
                          size_t bytes);

#endif
