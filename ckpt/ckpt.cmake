holdfast_library(holdfast_ckpt
  SOURCES codec.c shard.c shard_vfd.c shard_index.c state_hash.c agree.c tensor_table.c writer.c
    box_reader.c reader.c verify.c safetensors_reader.c gpt2_map.c convert.c
    safetensors_writer.c convert_export.c diff.c
  LINK holdfast_meta PkgConfig::HDF5 PkgConfig::ZSTD)
holdfast_program(holdfast-ckpt SOURCES ckpt_main.c LINK holdfast_ckpt)
