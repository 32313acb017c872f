/* Entries of the index cache; see index_cache.h. */
#include "train/data/index_cache.h"

#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"

#define CONTENTS "contents.json"
#define DESCRIPTION "description.txt"

/* The common start of an entry's paths: "FOLDER/HASH-CLASS-SPLIT-". */
static enum status make_start(const char *folder, const struct index_entry *entry, const char *key,
                              char **out_start)
{
    char hash[HASH_TEXT_MAX];

    hash128_format(hash_bytes128(key, strlen(key)), hash);
    return mem_format(out_start, "%s/%s-%s-%s-", folder, hash, entry->class_name,
                      entry->split_name);
}

static enum status map_array(const char *start, const cJSON *contents, struct array_file *array)
{
    enum status st = STATUS_OK;
    char *path = NULL, hash[HASH_TEXT_MAX];
    const char *wanted = NULL;

    TRY(st, mem_format(&path, "%s%s.npy", start, array->name), done);
    TRY(st, json_get_string(contents, path, array->name, &wanted), done);
    TRY(st, array_file_map(array, path), done);
    hash128_format(hash_bytes128(array->bytes, array->byte_count), hash);
    if (strcmp(hash, wanted) != 0) {
        st = FAIL(STATUS_BAD_DATA, "'%s' has the hash %s, wanted %s", path, hash, wanted);
    }
done:
    mem_free(&path);
    return st;
}

static enum status load(const char *start, const char *contents_path,
                        const struct index_entry *entry)
{
    enum status st = STATUS_OK;
    cJSON *contents = NULL;

    TRY(st, json_read_file(fs_posix(), contents_path, &contents), done);
    for (int i = 0; i < entry->array_count; i++) {
        TRY(st, map_array(start, contents, &entry->arrays[i]), done);
    }
    if (entry->ids != NULL) {
        TRY(st, json_get_i64(contents, contents_path, "least_id", &entry->ids->min), done);
        TRY(st, json_get_i64(contents, contents_path, "greatest_id", &entry->ids->max), done);
    }
done:
    cJSON_Delete(contents);
    for (int i = 0; st != STATUS_OK && i < entry->array_count; i++) {
        array_file_deinit(&entry->arrays[i]);
    }
    return st;
}

bool index_cache_load(const char *folder, const struct index_entry *entry)
{
    enum status st = STATUS_OK;
    char *key = NULL, *start = NULL, *contents_path = NULL;
    bool found = false;

    TRY(st, json_print(entry->key, &key), done);
    TRY(st, make_start(folder, entry, key, &start), done);
    TRY(st, mem_format(&contents_path, "%s" CONTENTS, start), done);
    found = fs_exists(fs_posix(), contents_path);
    if (found) {
        TRY(st, load(start, contents_path, entry), done);
    }
done:
    if (st != STATUS_OK) {
        log_warn("a kept index is made anew: %s", status_last()->message);
        found = false;
    }
    mem_free(&contents_path);
    mem_free(&start);
    mem_free(&key);
    return found;
}

static enum status write_array(const char *start, const struct array_file *array, cJSON *contents)
{
    enum status st = STATUS_OK;
    char *path = NULL, hash[HASH_TEXT_MAX];

    TRY(st, mem_format(&path, "%s%s.npy", start, array->name), done);
    TRY(st, fs_replace_file(fs_posix(), path, array->bytes, array->byte_count), done);
    hash128_format(hash_bytes128(array->bytes, array->byte_count), hash);
    TRY(st, json_add_string(contents, array->name, hash), done);
done:
    mem_free(&path);
    return st;
}

void index_cache_store(const char *folder, const struct index_entry *entry)
{
    enum status st = STATUS_OK;
    char *key = NULL, *start = NULL, *path = NULL;
    cJSON *contents = NULL;

    TRY(st, fs_make_dirs(fs_posix(), folder), done);
    TRY(st, json_print(entry->key, &key), done);
    TRY(st, make_start(folder, entry, key, &start), done);
    TRY(st, mem_format(&path, "%s" DESCRIPTION, start), done);
    TRY(st, fs_replace_file(fs_posix(), path, key, strlen(key)), done);
    TRY(st, json_new_object(&contents), done);
    for (int i = 0; i < entry->array_count; i++) {
        TRY(st, write_array(start, &entry->arrays[i], contents), done);
    }
    if (entry->ids != NULL) {
        TRY(st, json_add_i64(contents, "least_id", entry->ids->min), done);
        TRY(st, json_add_i64(contents, "greatest_id", entry->ids->max), done);
    }
    mem_free(&path);
    TRY(st, mem_format(&path, "%s" CONTENTS, start), done);
    TRY(st, json_write_file(fs_posix(), path, contents), done);
done:
    if (st != STATUS_OK) {
        log_warn("the index of split '%s' is not kept in '%s', each rank makes its own: %s",
                 entry->split_name, folder, status_last()->message);
    }
    cJSON_Delete(contents);
    mem_free(&path);
    mem_free(&start);
    mem_free(&key);
}
