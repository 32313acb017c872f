/* Settings and keys for S3; see s3_config.h. */
#include "backup/s3_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define DEFAULT_REGION "us-east-1"

/* The two files of the AWS tools; a section is "[NAME]" in one and "[profile NAME]" in the other,
 * but for "[default]". */
struct aws_file {
    const char *variable;
    const char *path; /* below the home folder */
    const char *section_prefix;
};

static const struct aws_file credentials_file = {"AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials",
                                                 ""};
static const struct aws_file config_file = {"AWS_CONFIG_FILE", ".aws/config", "profile "};

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL ? value : "";
}

/* The first that is not empty. */
static const char *first_of(const char *a, const char *b, const char *c)
{
    if (a != NULL && a[0] != '\0') {
        return a;
    }
    return b[0] != '\0' ? b : c;
}

static enum status find_path(const struct aws_file *file, char out_path[FS_PATH_MAX])
{
    const char *given = variable(file->variable);

    if (given[0] == '\0') {
        return fs_join(out_path, first_of(getenv("HOME"), "/", "/"), file->path);
    }
    int length = snprintf(out_path, FS_PATH_MAX, "%s", given);
    return length < FS_PATH_MAX ? STATUS_OK
                                : FAIL(STATUS_USAGE, "'%s' is too long", file->variable);
}

static void trim(const char **begin, const char **end)
{
    while (*begin < *end && strchr(" \t\r", **begin) != NULL) {
        (*begin)++;
    }
    while (*end > *begin && strchr(" \t\r", (*end)[-1]) != NULL) {
        (*end)--;
    }
}

static bool equals(const char *begin, const char *end, const char *text)
{
    return (size_t)(end - begin) == strlen(text) && memcmp(begin, text, strlen(text)) == 0;
}

/* Looks "key = value" up in a section of an INI text; the last one counts. Indented lines belong to
 * a nested setting and are passed over. */
static void find_value(const char *text, const char *section, const char *key, char *out_value,
                       size_t capacity)
{
    bool inside = false;

    for (const char *line = text; *line != '\0';) {
        const char *end = line + strcspn(line, "\n"), *next = *end == '\n' ? end + 1 : end;
        const char *begin = line;
        bool indented = *line == ' ' || *line == '\t';
        trim(&begin, &end);
        line = next;
        if (begin == end || *begin == '#' || *begin == ';') {
            continue;
        }
        if (*begin == '[') {
            begin++;
            end -= end[-1] == ']';
            trim(&begin, &end);
            inside = equals(begin, end, section);
            continue;
        }
        const char *sign = memchr(begin, '=', (size_t)(end - begin));
        if (!inside || indented || sign == NULL) {
            continue;
        }
        const char *name_end = sign, *value = sign + 1;
        trim(&begin, &name_end);
        trim(&value, &end);
        if (equals(begin, name_end, key) && (size_t)(end - value) < capacity) {
            memcpy(out_value, value, (size_t)(end - value));
            out_value[end - value] = '\0';
        }
    }
}

struct wanted {
    const char *key;
    char *value; /* stays as it is when the file does not tell */
    size_t capacity;
};

/* A missing file tells nothing; one that may not be read is an error. */
static enum status read_profile(const struct aws_file *file, const char *profile,
                                const struct wanted *wanted, size_t count)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX], section[S3_KEY_MAX + 16], *text = NULL;
    size_t bytes = 0;

    (void)snprintf(section, sizeof section, "%s%s",
                   strcmp(profile, "default") == 0 ? "" : file->section_prefix, profile);
    TRY(st, find_path(file, path), done);
    if (!fs_exists(fs_posix(), path)) {
        return STATUS_OK;
    }
    TRY(st, fs_read_file(fs_posix(), path, FILE_BYTES_MAX, &text, &bytes), done);
    for (size_t i = 0; i < count; i++) {
        find_value(text, section, wanted[i].key, wanted[i].value, wanted[i].capacity);
    }
    if (bytes > 0) {
        explicit_bzero(text, bytes);
    }
done:
    mem_free(&text);
    return st;
}

static enum status copy(const char *what, const char *value, char *out_value, size_t capacity)
{
    int length = snprintf(out_value, capacity, "%s", value);

    return length >= 0 && (size_t)length < capacity
               ? STATUS_OK
               : FAIL(STATUS_USAGE, "the %s has %d bytes, %zu are possible", what, length,
                      capacity - 1);
}

/* "https://host:port": what else there could be in a URL would not be signed as it is sent. */
static enum status check_endpoint(char *endpoint)
{
    const char *host = strstr(endpoint, "://");
    size_t length = strlen(endpoint);

    if (length == 0) {
        return STATUS_OK;
    }
    if (strncmp(endpoint, "http://", 7) != 0 && strncmp(endpoint, "https://", 8) != 0) {
        return FAIL(STATUS_USAGE, "endpoint '%s' begins with neither 'http://' nor 'https://'",
                    endpoint);
    }
    if (endpoint[length - 1] == '/') {
        endpoint[length - 1] = '\0';
    }
    host += 3;
    if (*host == '\0' || strpbrk(host, "/?#@ \t\r\n%\\") != NULL) {
        return FAIL(STATUS_USAGE, "endpoint '%s' is not SCHEME://HOST or SCHEME://HOST:PORT",
                    endpoint);
    }
    return STATUS_OK;
}

static enum status check_region(const char *region)
{
    if (region[strspn(
            region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")] != '\0') {
        return FAIL(STATUS_USAGE, "region '%s' has other characters than letters, digits, '-', '_'",
                    region);
    }
    return STATUS_OK;
}

enum status s3_config_load(const struct store_options *options, struct s3_config *out_config)
{
    enum status st = STATUS_OK;
    struct s3_config *config = out_config;
    char region[S3_REGION_MAX] = DEFAULT_REGION, endpoint[S3_ENDPOINT_MAX] = "";
    char ca_file[FS_PATH_MAX] = "";
    const struct wanted wanted[] = {
        {"region", region, sizeof region},
        {"endpoint_url", endpoint, sizeof endpoint},
        {"ca_bundle", ca_file, sizeof ca_file},
    };

    *config = (struct s3_config){.profile_first =
                                     options->profile != NULL && options->profile[0] != '\0'};
    TRY(st,
        copy("profile's name", first_of(options->profile, variable("AWS_PROFILE"), "default"),
             config->profile, sizeof config->profile),
        done);
    TRY(st, read_profile(&config_file, config->profile, wanted, sizeof wanted / sizeof *wanted),
        done);
    const char *of_variable = first_of(variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), "");
    TRY(st,
        copy("region", first_of(options->region, of_variable, region), config->region,
             sizeof config->region),
        done);
    of_variable = first_of(variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"), "");
    TRY(st,
        copy("endpoint", first_of(options->endpoint_url, of_variable, endpoint), config->endpoint,
             sizeof config->endpoint),
        done);
    TRY(st,
        copy("name of the CA file", first_of(options->ca_file, variable("AWS_CA_BUNDLE"), ca_file),
             config->ca_file, sizeof config->ca_file),
        done);
    TRY(st, check_endpoint(config->endpoint), done);
    TRY(st, check_region(config->region), done);
    if (config->ca_file[0] != '\0' && !fs_exists(fs_posix(), config->ca_file)) {
        st = FAIL(STATUS_USAGE, "no CA file '%s'", config->ca_file);
    }
done:
    return st;
}

enum status s3_config_read_credentials(const struct s3_config *config,
                                       struct s3_credentials *out_credentials)
{
    enum status st = STATUS_OK;
    struct s3_credentials *keys = out_credentials;
    const struct wanted wanted[] = {
        {"aws_access_key_id", keys->access_key, sizeof keys->access_key},
        {"aws_secret_access_key", keys->secret_key, sizeof keys->secret_key},
        {"aws_session_token", keys->token, sizeof keys->token},
    };

    memset(keys, 0, sizeof *keys);
    if (!config->profile_first && variable("AWS_ACCESS_KEY_ID")[0] != '\0') {
        TRY(st,
            copy("AWS_ACCESS_KEY_ID", variable("AWS_ACCESS_KEY_ID"), keys->access_key,
                 sizeof keys->access_key),
            done);
        TRY(st,
            copy("AWS_SECRET_ACCESS_KEY", variable("AWS_SECRET_ACCESS_KEY"), keys->secret_key,
                 sizeof keys->secret_key),
            done);
        TRY(st,
            copy("AWS_SESSION_TOKEN", variable("AWS_SESSION_TOKEN"), keys->token,
                 sizeof keys->token),
            done);
    } else {
        TRY(st, read_profile(&config_file, config->profile, wanted, 3), done);
        TRY(st, read_profile(&credentials_file, config->profile, wanted, 3), done);
    }
    if (keys->access_key[0] == '\0' || keys->secret_key[0] == '\0') {
        st = FAIL(STATUS_NO_PERMISSION,
                  "no keys for S3; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them "
                  "for profile '%s' into ~/.aws/credentials",
                  config->profile);
    }
done:
    return st;
}
