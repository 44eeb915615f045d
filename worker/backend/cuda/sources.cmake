# The kernels, for whoever builds them: nvcc into the module, a host compiler for tests/cuda_emulation.
set(headrace_cuda_kernels
  adamw.cu attention_backward.cu attention_forward.cu attention_fp32.cu bias_gradient.cu
  cross_entropy.cu cuda_ops.cu device_code.cu dropout.cu elementwise.cu embedding.cu fill_normal.cu gelu.cu layer_norm.cu
  rms_norm.cu rmsprop.cu rope.cu sgd.cu squared_norm.cu swiglu.cu reference_gemm.cu)
list(TRANSFORM headrace_cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
# Tests that need the runtime API alone: run by tests/cuda_emulation, and by device_tests on a device.
set(headrace_cuda_kernel_tests
  activations_test.cc attention_test.cc embedding_test.cc gemm_test.cc losses_test.cc norms_test.cc
  updates_test.cc)
list(TRANSFORM headrace_cuda_kernel_tests PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
