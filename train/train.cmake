# The trainer proper: options, optimizer, parallelism, state, the loop.
holdfast_library(holdfast_train
  SOURCES train_options.c batch_schedule.c train_data.c train_layout.c train_schedule.c
    train_settings.c config_file.c blame.c spike.c train_state.c train_ckpt.c trainer.c
    optim/lr_schedule.c optim/grads.c optim/optimizer.c
    parallel/topology.c parallel/schedule.c parallel/schedule_view.c parallel/pipeline.c
    metrics/log_line.c metrics/throughput.c
  LINK holdfast_model holdfast_data holdfast_comm holdfast_ckpt PkgConfig::YAML m)

holdfast_program(holdfast-train SOURCES train_main.c LINK holdfast_train)
