# The agent against ranks without a model; fake_rank.c says what they can do.
add_executable(fake_rank fake_rank.c)
set_target_properties(fake_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(fake_rank PRIVATE holdfast_build holdfast_meta)

holdfast_test(test_agent LABEL process TIMEOUT 300 SOURCES test_agent.c drill.c LINK holdfast_meta)
target_compile_definitions(test_agent PRIVATE FAKE_RANK="$<TARGET_FILE:fake_rank>")
add_dependencies(test_agent fake_rank holdfast holdfast-recover)

if(TARGET holdfast-train)
  holdfast_test(test_agent_train LABEL process TIMEOUT 300
    SOURCES test_agent_train.c drill.c LINK holdfast_base)
  add_dependencies(test_agent_train holdfast holdfast-recover holdfast-train)
endif()
