/* Where an S3 server is and who we are there: options, then the environment, then the files of the
 * AWS tools, each variable and file read here and nowhere else.
 *
 *     region       --region, AWS_REGION, AWS_DEFAULT_REGION, the profile's, us-east-1
 *     endpoint     --endpoint-url, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, Amazon's
 *     authorities  --ca, AWS_CA_BUNDLE, the profile's ca_bundle, the system's
 *     keys         --profile's; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN;
 *                  AWS_PROFILE's; the profile "default"
 *
 * A profile stands in AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials) and AWS_CONFIG_FILE
 * (~/.aws/config).
 */
#ifndef BACKUP_S3_CONFIG_H
#define BACKUP_S3_CONFIG_H

#include "backup/s3_sign.h"
#include "backup/store.h"
#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define S3_REGION_MAX 64
#define S3_ENDPOINT_MAX 512

struct s3_config {
    char profile[S3_KEY_MAX];
    bool profile_first; /* it was named by an option: goes before keys of the environment */
    char region[S3_REGION_MAX];
    char endpoint[S3_ENDPOINT_MAX]; /* "http://host:port" without a '/' behind; "": Amazon's */
    char ca_file[FS_PATH_MAX];      /* "": the system's */
};

/* STATUS_USAGE: a value that cannot be one. */
enum status s3_config_load(const struct store_options *options, struct s3_config *out_config)
    STATUS_MUST_CHECK;
/* Reads the keys as they are now, so that those renewed by another program are seen.
 * STATUS_NO_PERMISSION: there are none, and where they were looked for. */
enum status s3_config_read_credentials(const struct s3_config *config,
                                       struct s3_credentials *out_credentials) STATUS_MUST_CHECK;

#endif
