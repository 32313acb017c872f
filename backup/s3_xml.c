/* Walks over XML by expat; see s3_xml.h. */
#include "backup/s3_xml.h"

#include <expat.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/mem.h"

struct walk {
    XML_Parser parser;
    s3_xml_fn on_element;
    void *context;
    enum status st; /* the first failure; its record is the thread's */
    size_t path_length;
    size_t text_length;
    char path[S3_XML_PATH_MAX];
    char text[S3_XML_TEXT_MAX];
};

static void stop(struct walk *walk, enum status st)
{
    if (walk->st == STATUS_OK) {
        walk->st = st;
    }
    (void)XML_StopParser(walk->parser, XML_FALSE);
}

static void on_start(void *data, const XML_Char *name, const XML_Char **attributes)
{
    struct walk *walk = data;
    size_t left = sizeof walk->path - walk->path_length;

    (void)attributes;
    int length = snprintf(walk->path + walk->path_length, left, "%s%s",
                          walk->path_length > 0 ? "/" : "", name);
    if (length < 0 || (size_t)length >= left) {
        stop(walk, FAIL(STATUS_BAD_DATA, "the server's answer is nested too deep"));
        return;
    }
    walk->path_length += (size_t)length;
    walk->text_length = 0;
}

static void on_end(void *data, const XML_Char *name)
{
    struct walk *walk = data;

    if (walk->st != STATUS_OK) {
        return; /* expat may deliver one more end after a stop */
    }
    walk->text[walk->text_length] = '\0';
    enum status st = walk->on_element(walk->context, walk->path, walk->text);
    size_t length = strlen(name);
    walk->path_length -= length < walk->path_length ? length + 1 : length;
    walk->path[walk->path_length] = '\0';
    walk->text_length = 0;
    if (st != STATUS_OK) {
        stop(walk, st);
    }
}

static void on_text(void *data, const XML_Char *text, int length)
{
    struct walk *walk = data;

    if (walk->st != STATUS_OK) {
        return;
    }
    if ((size_t)length >= sizeof walk->text - walk->text_length) {
        stop(walk,
             FAIL(STATUS_BAD_DATA, "the server's answer has too long a text in '%s'", walk->path));
        return;
    }
    memcpy(walk->text + walk->text_length, text, (size_t)length);
    walk->text_length += (size_t)length;
}

static void on_doctype(void *data, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_subset)
{
    (void)name;
    (void)system_id;
    (void)public_id;
    (void)has_subset;
    stop(data, FAIL(STATUS_BAD_DATA, "the server's answer has a document type"));
}

enum status s3_xml_walk(const char *bytes, size_t count, s3_xml_fn on_element, void *context)
{
    enum status st = STATUS_OK;
    struct walk *walk = NULL;

    TRY(st, mem_alloc(&walk, 1, sizeof *walk), done);
    walk->on_element = on_element;
    walk->context = context;
    walk->parser = XML_ParserCreate(NULL);
    if (walk->parser == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "cannot allocate an XML parser");
        goto done;
    }
    XML_SetUserData(walk->parser, walk);
    XML_SetElementHandler(walk->parser, on_start, on_end);
    XML_SetCharacterDataHandler(walk->parser, on_text);
    XML_SetStartDoctypeDeclHandler(walk->parser, on_doctype);
    CHECK(count <= INT_MAX);
    if (XML_Parse(walk->parser, bytes, (int)count, XML_TRUE) != XML_STATUS_OK) {
        st = walk->st != STATUS_OK
                 ? walk->st
                 : FAIL(STATUS_BAD_DATA, "the server's answer is no XML: %s at byte %lld",
                        XML_ErrorString(XML_GetErrorCode(walk->parser)),
                        (long long)XML_GetCurrentByteIndex(walk->parser));
    }
done:
    if (walk != NULL) {
        XML_ParserFree(walk->parser);
    }
    mem_free(&walk);
    return st;
}

struct search {
    const char *path;
    char *text;
    size_t capacity;
};

static enum status match(void *context, const char *path, const char *text)
{
    struct search *search = context;
    size_t length = strlen(text), root = search->path[0] == '*' ? strcspn(path, "/") : 0;
    const char *wanted = root > 0 ? search->path + 1 : search->path;

    if (search->text[0] == '\0' && strcmp(path + root, wanted) == 0 && length < search->capacity) {
        memcpy(search->text, text, length + 1);
    }
    return STATUS_OK;
}

void s3_xml_find(const char *bytes, size_t count, const char *path, char *out_text, size_t capacity)
{
    struct search search = {path, out_text, capacity};

    out_text[0] = '\0';
    if (s3_xml_walk(bytes, count, match, &search) != STATUS_OK) {
        out_text[0] = '\0';
    }
}
