holdfast_library(holdfast_backup
  SOURCES store.c store_dir.c remote_catalog.c sync_plan.c transfer.c progress_line.c say.c
    remove_step.c push.c pull.c inspect.c
  LINK holdfast_meta)
holdfast_program(holdfast-backup SOURCES backup_main.c LINK holdfast_backup)
