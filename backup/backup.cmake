holdfast_library(holdfast_backup
  SOURCES store.c store_dir.c store_s3.c s3_upload.c s3_client.c s3_config.c s3_journal.c
    s3_sign.c s3_http.c s3_xml.c crc32c.c remote_catalog.c sync_plan.c transfer.c
    progress_line.c say.c remove_step.c push.c pull.c inspect.c
  LINK holdfast_meta PkgConfig::CURL PkgConfig::CRYPTO PkgConfig::EXPAT)
holdfast_program(holdfast-backup SOURCES backup_main.c LINK holdfast_backup)
