// cuBLASLt is column-major: row-major c = a · b is its cᵀ = bᵀ · aᵀ, so b comes first.
#include <cublasLt.h>

#include <map>
#include <utility>

#include "plan/alignment.h"
#include "worker/backend/cuda/gemm.h"

namespace headrace::cuda {
namespace {

// Owns one of cuBLASLt's handles.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

struct Plan {
  Operation operation;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  std::string error;
};

cudaDataType_t DataType(GemmType type) {
  return type == GemmType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtEpilogue_t LtEpilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kBias:
    case Epilogue::kBiasAdd:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// Remembers the first of a row of calls that failed.
class FirstFailure {
 public:
  void Add(const char* call, cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS || !text_.empty()) return;
    text_ = std::string(call) + ": " + cublasLtGetStatusString(status);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class CublasLtGemm final : public Gemm {
 public:
  CublasLtGemm(Library library, void* workspace, size_t workspace_bytes, bool tf32)
      : library_(std::move(library)),
        workspace_(workspace),
        workspace_bytes_(workspace_bytes),
        tf32_(tf32) {}

  bool Has(const GemmShape& s) override { return FindPlan(s).error.empty(); }

  std::string Run(const GemmShape& s, const void* a, const void* b, void* c, const void* bias,
                  void* aux, cudaStream_t stream) override {
    const Plan& plan = FindPlan(s);
    if (!plan.error.empty()) return plan.error;
    FirstFailure failure;
    const bool adds = s.epilogue == Epilogue::kAdd || s.epilogue == Epilogue::kBiasAdd;
    Set(&failure, plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    Set(&failure, plan.operation.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
        adds ? nullptr : aux);
    const float one = 1, beta = s.accumulate || adds ? 1.0f : 0.0f;
    const void* const added = adds ? aux : c;
    failure.Add("cublasLtMatmul",
                cublasLtMatmul(library_.get(), plan.operation.get(), &one, b, plan.b.get(), a,
                               plan.a.get(), &beta, added, plan.c.get(), c, plan.c.get(),
                               &plan.algorithm, workspace_, workspace_bytes_, stream));
    return failure.text().empty() ? "" : Describe(failure.text() + ",", s);
  }

 private:
  template <typename T>
  static void Set(FirstFailure* failure, cublasLtMatmulDesc_t operation,
                  cublasLtMatmulDescAttributes_t attribute, const T& value) {
    failure->Add("cublasLtMatmulDescSetAttribute",
                 cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }

  // A plan that could not be made has its error.
  const Plan& FindPlan(const GemmShape& s) {
    auto found = plans_.find(s.Key());
    if (found == plans_.end()) {
      Plan plan;
      plan.error = MakePlan(s, &plan);
      found = plans_.emplace(s.Key(), std::move(plan)).first;
    }
    return found->second;
  }

  std::string MakePlan(const GemmShape& s, Plan* plan) const {
    const cudaDataType_t in = DataType(s.in), out = DataType(s.out);
    FirstFailure failure;
    failure.Add(
        "cublasLtMatmulDescCreate",
        cublasLtMatmulDescCreate(
            plan->operation.out(),
            tf32_ && s.in == GemmType::kFloat32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
            CUDA_R_32F));
    if (!failure.text().empty()) return Describe(failure.text() + ",", s);
    const cublasLtMatmulDesc_t operation = plan->operation.get();
    Set(&failure, operation, CUBLASLT_MATMUL_DESC_TRANSA,
        s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(&failure, operation, CUBLASLT_MATMUL_DESC_TRANSB,
        s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(&failure, operation, CUBLASLT_MATMUL_DESC_EPILOGUE, LtEpilogue(s.epilogue));
    Set(&failure, operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
    // Run sets the pointers; the heuristic may want to see that there are some.
    if (s.epilogue != Epilogue::kNone && s.epilogue != Epilogue::kGeluBackward) {
      Set(&failure, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, workspace_);
    }
    if (s.epilogue == Epilogue::kBiasGelu || s.epilogue == Epilogue::kGeluBackward) {
      Set(&failure, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, workspace_);
      Set(&failure, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.n);
    }
    // Rows and columns as cuBLASLt counts them: a row-major [r, c] is its [c, r].
    const auto layout = [&](Layout* to, cudaDataType_t type, int64_t rows, int64_t columns) {
      failure.Add("cublasLtMatrixLayoutCreate",
                  cublasLtMatrixLayoutCreate(to->out(), type, static_cast<uint64_t>(columns),
                                             static_cast<uint64_t>(rows), columns));
    };
    layout(&plan->a, in, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k);
    layout(&plan->b, in, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n);
    layout(&plan->c, out, s.m, s.n);
    if (!failure.text().empty()) return Describe(failure.text() + ",", s);
    return Choose(s, plan);
  }

  // The heuristic's first choice among what adds in a fixed order.
  std::string Choose(const GemmShape& s, Plan* plan) const {
    FirstFailure failure;
    Preference preference;
    failure.Add("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(preference.out()));
    if (!failure.text().empty()) return Describe(failure.text() + ",", s);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      failure.Add(
          "cublasLtMatmulPreferenceSetAttribute",
          cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
    };
    const uint32_t ordered = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                             CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;  // INPLACE adds as they come
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ordered);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_);
    // Unasked, cuBLASLt takes operands to lie at multiples of 256.
    const uint32_t alignment = kAlignment;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, alignment);
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    failure.Add("cublasLtMatmulAlgoGetHeuristic",
                cublasLtMatmulAlgoGetHeuristic(library_.get(), plan->operation.get(), plan->b.get(),
                                               plan->a.get(), plan->c.get(), plan->c.get(),
                                               preference.get(), 1, &result, &found));
    if (!failure.text().empty()) return Describe(failure.text() + ",", s);
    if (found == 0) return Describe("cuBLASLt has no algorithm for", s);
    plan->algorithm = result.algo;
    return "";
  }

  const Library library_;
  void* const workspace_;
  const size_t workspace_bytes_;
  const bool tf32_;
  std::map<decltype(GemmShape().Key()), Plan> plans_;
};

}  // namespace

std::unique_ptr<Gemm> CreateCublasLtGemm(void* workspace, size_t workspace_bytes, bool tf32,
                                         std::string* error) {
  Library library;
  const cublasStatus_t status = cublasLtCreate(library.out());
  if (status != CUBLAS_STATUS_SUCCESS) {
    *error = std::string("cublasLtCreate: ") + cublasLtGetStatusString(status);
    return nullptr;
  }
  return std::make_unique<CublasLtGemm>(std::move(library), workspace, workspace_bytes, tf32);
}

}  // namespace headrace::cuda
