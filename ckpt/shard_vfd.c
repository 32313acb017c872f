/* HDF5's file driver over struct fs; see shard_vfd.h. */
#include "ckpt/shard_vfd.h"

#include "ckpt/base/mem.h"

/* HDF5 allocates through malloc and frees what open returned through close, so the layout is ours
 * behind its head. */
struct driver_file {
    H5FD_t head; /* filled in by HDF5 */
    struct shard_vfd *vfd;
    haddr_t allocated, written;
};

struct access_info { /* copied by HDF5 by its bytes */
    struct shard_vfd *vfd;
};

static struct driver_file *file_of(const H5FD_t *file)
{
    return (struct driver_file *)file;
}

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t access, haddr_t address_max)
{
    const struct access_info *info = H5Pget_driver_info(access);
    struct driver_file *file = NULL;

    (void)name;
    (void)flags;
    (void)address_max;
    if (info == NULL || mem_alloc(&file, 1, sizeof *file) != STATUS_OK) {
        return NULL;
    }
    file->vfd = info->vfd;
    return &file->head;
}

static herr_t driver_close(H5FD_t *base)
{
    struct driver_file *file = file_of(base);

    file->vfd->end = file->allocated;
    mem_free(&file);
    return 0;
}

static herr_t driver_query(const H5FD_t *base, unsigned long *out_flags)
{
    (void)base;
    *out_flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *base, H5FD_mem_t type)
{
    (void)type;
    return file_of(base)->allocated;
}

static herr_t driver_set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t address)
{
    (void)type;
    file_of(base)->allocated = address;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *base, H5FD_mem_t type)
{
    (void)type;
    return file_of(base)->written;
}

/* Notes the first failure and pretends success from then on. */
static void note(struct shard_vfd *vfd, enum status st)
{
    if (st != STATUS_OK) {
        status_take(&vfd->failure);
    }
}

static herr_t driver_read(H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t address,
                          size_t bytes, void *buffer)
{
    struct driver_file *file = file_of(base);

    (void)type;
    (void)transfer;
    if (file->vfd->failure.code == STATUS_OK) {
        note(file->vfd, fs_pread(file->vfd->file, buffer, bytes, address));
    }
    return 0;
}

static herr_t driver_write(H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t address,
                           size_t bytes, const void *buffer)
{
    struct driver_file *file = file_of(base);

    (void)type;
    (void)transfer;
    if (file->vfd->failure.code == STATUS_OK) {
        note(file->vfd, fs_pwrite(file->vfd->file, buffer, bytes, address));
    }
    if (address + bytes > file->written) {
        file->written = address + bytes;
    }
    return 0;
}

static herr_t driver_truncate(H5FD_t *base, hid_t transfer, hbool_t closing)
{
    struct driver_file *file = file_of(base);

    (void)transfer;
    (void)closing;
    file->written = file->allocated;
    return 0;
}

static const H5FD_class_t driver = {
    .name = "holdfast",
    .maxaddr = HADDR_MAX / 2,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(struct access_info),
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_SINGLE,
};

enum status shard_vfd_access(struct shard_vfd *vfd, hid_t *out_access)
{
    struct access_info info = {vfd};
    hid_t id = H5FDregister(&driver);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    bool good = id >= 0 && access >= 0 && H5Pset_driver(access, id, &info) >= 0;

    if (id >= 0) {
        (void)H5FDunregister(id); /* the list holds it */
    }
    if (!good) {
        if (access >= 0) {
            (void)H5Pclose(access);
        }
        return FAIL(STATUS_FAILED, "cannot set up HDF5's file driver");
    }
    *out_access = access;
    return STATUS_OK;
}

enum status shard_vfd_status(const struct shard_vfd *vfd)
{
    return vfd->failure.code == STATUS_OK ? STATUS_OK : status_give(&vfd->failure);
}
