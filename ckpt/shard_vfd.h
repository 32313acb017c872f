/* An HDF5 file driver over struct fs, so that every byte HDF5 writes passes where all others do.
 *
 * It borrows an open fs_file. After the first failed call it only pretends: HDF5 then closes the
 * file and frees everything in order (after a real failure of H5Fclose it would crash at exit), and
 * the caller asks shard_vfd_status for what happened. HDF5 never truncates, syncs or locks through
 * it: the size is set by the caller, once.
 * Threads: as HDF5: one at a time per file.
 */
#ifndef CKPT_SHARD_VFD_H
#define CKPT_SHARD_VFD_H

#include <hdf5.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

struct shard_vfd {
    struct fs_file *file;         /* open for reading and writing, empty */
    uint64_t end;                 /* the file's size as HDF5 sees it: what it has allocated */
    struct status_record failure; /* code OK: none */
};

/* A file access list whose files are `vfd->file`; the caller closes it (H5Pclose). */
enum status shard_vfd_access(struct shard_vfd *vfd, hid_t *out_access) STATUS_MUST_CHECK;
/* The first failure of a driver call, given to this thread; OK when there was none. */
enum status shard_vfd_status(const struct shard_vfd *vfd) STATUS_MUST_CHECK;

#endif
