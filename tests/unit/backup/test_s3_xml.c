/* Claims about XML answers, good and hostile (backup/s3_xml). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "backup/s3_xml.h"
#include "tests/unit/meta/meta_support.h"

struct seen {
    char text[512];
};

static enum status note(void *context, const char *path, const char *text)
{
    struct seen *seen = context;
    size_t length = strlen(seen->text);

    (void)snprintf(seen->text + length, sizeof seen->text - length, "%s=%s;", path, text);
    return strcmp(path, "stop") == 0 ? FAIL(STATUS_IO, "planted") : STATUS_OK;
}

static enum status walk(const char *xml, struct seen *seen)
{
    *seen = (struct seen){""};
    return s3_xml_walk(xml, strlen(xml), note, seen);
}

Test(s3_xml, tells_each_element_with_its_path_and_text)
{
    struct seen seen;

    assert_ok(walk("<?xml version=\"1.0\"?><L xmlns=\"http://x/\"><C><K>a&amp;b&#x20;c</K></C>"
                   "<C><K/></C></L>",
                   &seen));
    cr_assert_str_eq(seen.text, "L/C/K=a&b c;L/C=;L/C/K=;L/C=;L=;");
    assert_status(walk("<stop><a/></stop>", &seen), STATUS_IO);
}

Test(s3_xml, refuses_what_is_no_xml)
{
    static const char *const bad[] = {"",      "<a>",         "<a></b>",        "<a/><b/>",
                                      "plain", "<a>\x01</a>", "<a>\xff\xfe</a>"};
    struct seen seen;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_status(walk(bad[i], &seen), STATUS_BAD_DATA);
    }
}

Test(s3_xml, refuses_document_types_and_with_them_entities)
{
    struct seen seen;

    assert_status(
        walk("<!DOCTYPE a [<!ENTITY b \"bbbb\"><!ENTITY c \"&b;&b;&b;\">]><a>&c;</a>", &seen),
        STATUS_BAD_DATA);
    assert_status(walk("<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>", &seen), STATUS_BAD_DATA);
    cr_assert_str_eq(seen.text, "");
}

Test(s3_xml, refuses_what_is_nested_or_long_beyond_measure)
{
    static char deep[3 * 10000 + 1], wide[S3_XML_TEXT_MAX + 64];
    struct seen seen;

    for (size_t i = 0; i < 10000; i++) {
        memcpy(deep + 3 * i, "<a>", 3);
    }
    assert_status(walk(deep, &seen), STATUS_BAD_DATA);
    memset(wide, 'x', sizeof wide - 1);
    memcpy(wide, "<a>", 3);
    memcpy(wide + sizeof wide - 5, "</a>", 4);
    assert_status(walk(wide, &seen), STATUS_BAD_DATA);
}

Test(s3_xml, finds_one_element_below_its_root_or_any)
{
    static const char xml[] = "<Error><Code>NoSuchKey</Code><In><Code>x</Code></In></Error>";
    char text[16];

    s3_xml_find(xml, sizeof xml - 1, "Error/Code", text, sizeof text);
    cr_assert_str_eq(text, "NoSuchKey");
    s3_xml_find(xml, sizeof xml - 1, "*/Code", text, sizeof text);
    cr_assert_str_eq(text, "NoSuchKey");
    s3_xml_find(xml, sizeof xml - 1, "Result/Code", text, sizeof text);
    cr_assert_str_eq(text, "");
    s3_xml_find(xml, sizeof xml - 1, "Error/Code", text, 5);
    cr_assert_str_eq(text, "");
    s3_xml_find(xml, sizeof xml - 8, "Error/Code", text, sizeof text);
    cr_assert_str_eq(text, "", "a document that is cut short counts as empty");
}
