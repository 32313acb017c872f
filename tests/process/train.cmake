# Real rank processes of the trainer.
add_library(train_ranks STATIC ${CMAKE_SOURCE_DIR}/tests/support/ranks.c)
target_link_libraries(train_ranks PUBLIC holdfast_build holdfast_base PkgConfig::CRITERION)

add_executable(train_reference_rank train_reference_rank.c
  ${CMAKE_SOURCE_DIR}/tests/support/npy.c ${CMAKE_SOURCE_DIR}/tests/support/safetensors.c)
set_target_properties(train_reference_rank PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(train_reference_rank PRIVATE holdfast_build holdfast_train PkgConfig::CJSON)

holdfast_test(test_train_reference LABEL process TIMEOUT 300
  SOURCES test_train_reference.c LINK train_ranks)
target_compile_definitions(test_train_reference PRIVATE
  REFERENCE_RANK="$<TARGET_FILE:train_reference_rank>")
add_dependencies(test_train_reference train_reference_rank)

holdfast_test(test_train_resume LABEL process TIMEOUT 600
  SOURCES test_train_resume.c LINK train_ranks)
add_dependencies(test_train_resume holdfast-train)

holdfast_test(test_train_layouts LABEL process TIMEOUT 300
  SOURCES test_train_layouts.c LINK train_ranks m)
add_dependencies(test_train_layouts holdfast-train)
