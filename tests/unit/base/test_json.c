/* Claims of json.h. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "tests/unit/base/base_support.h"

static cJSON *parse(const char *text)
{
    cJSON *value = NULL;

    assert_ok(json_parse(text, strlen(text), "a.json", &value));
    return value;
}

static void refuse(const char *text, size_t bytes, const char *says)
{
    cJSON *value = NULL;

    assert_status(json_parse(text, bytes, "a.json", &value), STATUS_CORRUPT);
    cr_assert(value == NULL);
    assert_says("'a.json'");
    assert_says(says);
}

Test(json, what_is_not_json_is_corrupt_with_its_line)
{
    char deep[5000];

    refuse("", 0, "line 1");
    refuse("{\"a\": 1,\n\"b\": }\n", 17, "line 2");
    refuse("{\"a\": 1}\n\n{}", 12, "line 3");
    refuse("{\"a\": 1}\0", 9, "goes on");
    refuse("\xef\xbb\xbf{}", 5, "byte order mark");
    refuse("{\"a\": 1", 7, "line 1");
    memset(deep, '[', sizeof deep);
    refuse(deep, sizeof deep, "line 1");
    cJSON_Delete(parse(" {\"a\": 1} \r\n\t"));
}

Test(json, a_text_is_read_no_further_than_its_length)
{
    char *exact = malloc(2); /* the address sanitizer watches its end */
    cJSON *value = NULL;

    cr_assert(exact != NULL);
    memcpy(exact, "{}", 2);
    assert_ok(json_parse(exact, 2, "a.json", &value));
    cJSON_Delete(value);
    exact[1] = ' ';
    refuse(exact, 2, "line 1");
    free(exact);
}

static void check_round_trip(double value)
{
    cJSON *object = NULL, *back = NULL;
    char *text = NULL;
    double got = 0;

    assert_ok(json_new_object(&object));
    assert_ok(json_add_double(object, "x", value));
    assert_ok(json_print_line(object, &text));
    back = parse(text);
    assert_ok(json_get_double(back, "a.json", "x", &got));
    cr_assert(memcmp(&got, &value, sizeof got) == 0, "%.17g is %.17g in %s", value, got, text);
    mem_free(&text);
    cJSON_Delete(back);
    cJSON_Delete(object);
}

Test(json, doubles_read_back_bit_for_bit)
{
    static const double values[] = {0.0,    -0.0,  0.1,          1.0 / 3,    DBL_MAX,  DBL_MIN,
                                    5e-324, -1e22, 2147483648.0, 1e15 + 0.5, 0.3 - 0.1};
    uint64_t state = support_seed();

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        check_round_trip(values[i]);
    }
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = support_random(&state);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) {
            check_round_trip(value);
        }
        check_round_trip((double)(bits >> 11) * 0x1p-53); /* where losses and rates live */
    }
}

Test(json, doubles_are_printed_no_longer_than_needed)
{
    cJSON *object = NULL;
    char *text = NULL;

    assert_ok(json_new_object(&object));
    assert_ok(json_add_double(object, "x", 0.1));
    assert_ok(json_add_u64(object, "n", 4));
    assert_ok(json_print_line(object, &text));
    cr_assert_str_eq(text, "{\"x\":0.1,\"n\":4}");
    mem_free(&text);
    cJSON_Delete(object);
}

Test(json, integers_are_exact_up_to_2_to_the_53rd)
{
    static const uint64_t values[] = {
        0, 1, INT32_MAX, UINT32_MAX, 999999999999999, 9007199254740991, 9007199254740992};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        cJSON *object = NULL;
        char *text = NULL;
        uint64_t natural = 0;
        int64_t whole = 0;
        assert_ok(json_new_object(&object));
        assert_ok(json_add_u64(object, "n", values[i]));
        assert_ok(json_add_i64(object, "z", -(int64_t)values[i]));
        assert_ok(json_print(object, &text));
        cJSON_Delete(object);
        object = parse(text);
        assert_ok(json_get_u64(object, "a.json", "n", &natural));
        assert_ok(json_get_i64(object, "a.json", "z", &whole));
        cr_assert(natural == values[i] && whole == -(int64_t)values[i], "%s", text);
        mem_free(&text);
        cJSON_Delete(object);
    }
}

Test(json, numbers_that_are_no_counts_are_refused)
{
    cJSON *object = parse("{\"a\": -1, \"b\": 1.5, \"c\": 1e300, \"d\": \"7\"}");
    uint64_t value = 99;
    int64_t whole = 99;

    assert_status(json_get_u64(object, "a.json", "a", &value), STATUS_CORRUPT);
    assert_status(json_get_u64(object, "a.json", "b", &value), STATUS_CORRUPT);
    assert_status(json_get_u64(object, "a.json", "c", &value), STATUS_CORRUPT);
    assert_status(json_get_u64(object, "a.json", "d", &value), STATUS_CORRUPT);
    assert_says("'a.json': no number 'd'");
    cr_assert(value == 99);
    assert_ok(json_get_i64(object, "a.json", "a", &whole));
    cr_assert(whole == -1);
    cJSON_Delete(object);
}

Test(json, members_of_each_type_are_found_or_named_as_missing)
{
    cJSON *object = parse("{\"s\": \"x\", \"h\": \"0x0123456789abcdef\", \"t\": true, \"o\": {}, "
                          "\"l\": [1], \"bad\": \"0x12\"}");
    const char *text = NULL;
    uint64_t word = 0;
    double number;
    bool flag = false;
    cJSON *item = NULL;

    assert_ok(json_get_string(object, "a.json", "s", &text));
    cr_assert_str_eq(text, "x");
    assert_ok(json_get_hex64(object, "a.json", "h", &word));
    cr_assert(word == UINT64_C(0x0123456789abcdef));
    assert_ok(json_get_bool(object, "a.json", "t", &flag));
    cr_assert(flag);
    assert_ok(json_get_object(object, "a.json", "o", &item));
    assert_ok(json_get_array(object, "a.json", "l", &item));
    assert_status(json_get_string(object, "a.json", "S", &text), STATUS_CORRUPT);
    assert_says("'a.json': no string 'S'");
    assert_status(json_get_hex64(object, "a.json", "bad", &word), STATUS_CORRUPT);
    assert_says("'bad' is '0x12'");
    assert_status(json_get_bool(object, "a.json", "s", &flag), STATUS_CORRUPT);
    assert_status(json_get_object(object, "a.json", "l", &item), STATUS_CORRUPT);
    assert_status(json_get_array(object, "a.json", "o", &item), STATUS_CORRUPT);
    assert_status(json_get_double(NULL, "a.json", "x", &number), STATUS_CORRUPT);
    cJSON_Delete(object);
}

Test(json, a_file_is_written_whole_and_read_back)
{
    char folder[FS_PATH_MAX], path[FS_PATH_MAX];
    cJSON *object = NULL, *list = NULL, *back = NULL;
    char *text = NULL;
    size_t count = 0;

    support_make_folder(folder);
    assert_ok(fs_join(path, folder, "a.json"));
    assert_ok(json_new_object(&object));
    assert_ok(json_add_string(object, "name", "a \"b\"\n\xc3\xa9"));
    assert_ok(json_add_bool(object, "flag", false));
    assert_ok(json_add_hex64(object, "hash", UINT64_MAX));
    assert_ok(json_new_array(&list));
    assert_ok(json_append(list, cJSON_CreateNumber(0.1)));
    assert_ok(json_add_item(object, "list", list));
    assert_ok(json_write_file(fs_posix(), path, object));
    assert_ok(fs_read_file(fs_posix(), path, 1000, &text, &count));
    cr_assert(count > 2 && text[count - 1] == '\n' && strchr(text, '\t') != NULL);
    mem_free(&text);
    assert_ok(json_read_file(fs_posix(), path, &back));
    cr_assert(cJSON_Compare(object, back, true));
    cJSON_Delete(back);
    cJSON_Delete(object);
    support_write(folder, "a.json", "{", 1);
    assert_status(json_read_file(fs_posix(), path, &back), STATUS_CORRUPT);
    assert_says(path);
    support_remove_folder(folder);
}

Test(json, printing_survives_each_failing_allocation)
{
    cJSON *object = parse("{\"a\": [0.1, 1e300, {\"b\": 9007199254740991}]}");
    char *text = NULL;
    size_t before = mem_used_bytes();

    mem_fail_at(1);
    assert_status(json_print(object, &text), STATUS_NO_MEMORY);
    cr_assert(text == NULL && mem_used_bytes() == before);
    assert_status(json_add_item(object, "x", NULL), STATUS_NO_MEMORY);
    assert_status(json_append(object, NULL), STATUS_NO_MEMORY);
    cJSON_Delete(object);
}
