# The agent sees base and meta only, so that it builds and runs where HDF5, zstd and CUDA are not.
holdfast_library(holdfast_recover
  SOURCES agent.c agent_events.c detector.c evidence.c launcher.c log_merge.c report.c resume_plan.c
          run_dir.c
  LINK holdfast_meta)
holdfast_program(holdfast-recover
  SOURCES recover_main.c
  LINK holdfast_recover)
holdfast_program(holdfast
  SOURCES holdfast_main.c
  LINK holdfast_base)
target_compile_definitions(holdfast PRIVATE HOLDFAST_VERSION="${PROJECT_VERSION}")
