/* Helpers of the data tests; see data_support.h. */
#include "tests/unit/data/data_support.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void support_make_folder(char out_path[SUPPORT_PATH_MAX])
{
    const char *parent = getenv("TMPDIR");

    (void)snprintf(out_path, SUPPORT_PATH_MAX, "%s/data-XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(out_path));
}

void support_remove_folder(const char *path)
{
    cr_assert_eq(fs_remove_tree(fs_posix(), path), STATUS_OK);
}

size_t support_count_files(const char *folder)
{
    struct fs_names names = {0};

    cr_assert_eq(fs_list(fs_posix(), folder, &names), STATUS_OK);
    size_t count = names.count;
    fs_names_deinit(&names);
    return count;
}

const char *support_path(const char *format, ...)
{
    static char paths[64][SUPPORT_PATH_MAX];
    static int next;
    char *path = paths[next++ % 64];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(path, SUPPORT_PATH_MAX, format, args);
    va_end(args);
    return path;
}

const char *support_ref(const char *name)
{
    const char *refs = getenv("HOLDFAST_TEST_REFS");

    cr_assert_not_null(refs, "HOLDFAST_TEST_REFS is not set; run the tests through ctest");
    return support_path("%s/%s", refs, name);
}

const char *support_word(const char *path)
{
    char word[SUPPORT_PATH_MAX];
    size_t used = 0;

    for (; *path != 0 && used + 2 < sizeof(word); path++) {
        if (*path == ' ') {
            word[used++] = '\\';
        }
        word[used++] = *path;
    }
    word[used] = 0;
    return support_path("%s", word);
}

void support_write(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, count, file), count);
    cr_assert_eq(fclose(file), 0);
}

void support_write_text(const char *path, const char *text)
{
    support_write(path, text, strlen(text));
}

char *support_read(const char *path, size_t *out_count)
{
    FILE *file = fopen(path, "rb");

    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    *out_count = (size_t)ftell(file);
    rewind(file);
    char *bytes = calloc(*out_count + 1, 1);
    cr_assert_not_null(bytes);
    cr_assert_eq(fread(bytes, 1, *out_count, file), *out_count);
    (void)fclose(file);
    return bytes;
}

void support_check_same(const char *path, const char *wanted_path)
{
    size_t count = 0, wanted_count = 0;
    char *bytes = support_read(path, &count), *wanted = support_read(wanted_path, &wanted_count);

    cr_assert_eq(count, wanted_count, "%s: %zu bytes, %zu wanted", path, count, wanted_count);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(bytes[i], wanted[i], "%s differs at byte %zu", path, i);
    }
    free(bytes);
    free(wanted);
}

void support_copy_pair(const char *source, const char *target, size_t index_cut, size_t tokens_cut)
{
    size_t cuts[2] = {index_cut, tokens_cut};
    const char *suffixes[2] = {"idx", "bin"};

    for (int i = 0; i < 2; i++) {
        size_t count = 0;
        char *bytes = support_read(support_path("%s.%s", source, suffixes[i]), &count);

        support_write(support_path("%s.%s", target, suffixes[i]), bytes, count - cuts[i]);
        free(bytes);
    }
}

void support_patch(const char *path, size_t offset, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "r+b");

    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, (long)offset, SEEK_SET), 0);
    cr_assert_eq(fwrite(bytes, 1, count, file), count);
    cr_assert_eq(fclose(file), 0);
}

bool support_message_has(const char *part)
{
    if (strstr(status_last()->message, part) != NULL) {
        return true;
    }
    cr_log_error("'%s' is not in: %s", part, status_last()->message);
    return false;
}

void support_write_documents(const char *json_path, const char *prefix)
{
    size_t count = 0;
    char *text = support_read(json_path, &count);
    cJSON *json = cJSON_Parse(text);
    const cJSON *document = NULL, *sequence = NULL, *id = NULL;
    struct token_writer *writer = NULL;
    static int32_t ids[1 << 16];

    cr_assert_not_null(json);
    const char *type = cJSON_GetObjectItem(json, "dtype")->valuestring;
    cr_assert_eq(token_writer_create(fs_posix(), prefix,
                                     strcmp(type, "int32") == 0 ? TOKEN_INT32 : TOKEN_UINT16,
                                     &writer),
                 STATUS_OK);
    cJSON_ArrayForEach(document, cJSON_GetObjectItem(json, "documents"))
    {
        cJSON_ArrayForEach(sequence, document)
        {
            size_t length = 0;

            cJSON_ArrayForEach(id, sequence)
            {
                ids[length++] = id->valueint;
            }
            cr_assert_eq(token_writer_add_sequence(writer, ids, length), STATUS_OK);
        }
        cr_assert_eq(token_writer_end_document(writer), STATUS_OK);
    }
    cr_assert_eq(token_writer_finish(writer), STATUS_OK);
    cr_assert_eq(token_writer_publish(writer), STATUS_OK);
    token_writer_destroy(writer);
    cJSON_Delete(json);
    free(text);
}
