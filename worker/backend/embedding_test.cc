#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

class Embedding : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Embedding, ::testing::Values(1, 2));

struct Case {
  int64_t sequences, length, width, vocabulary;
  int64_t n() const { return sequences * length; }
  std::string Name() const {
    return std::to_string(sequences) + "x" + std::to_string(length) + " width " +
           std::to_string(width) + " vocabulary " + std::to_string(vocabulary);
  }
};
// Few ids: every row of the gradient is hit many times, by both threads were the rows split.
const Case kCases[] = {{1, 1, 1, 1}, {2, 3, 5, 2}, {3, 7, 65, 4}, {1, 17, 129, 11}};

Doubles Reference(const std::vector<int32_t>& ids, const Doubles& wte, const Doubles& wpe,
                  const Case& c) {
  Doubles y(static_cast<size_t>(c.n() * c.width));
  for (int64_t t = 0; t < c.n(); ++t) {
    for (int64_t j = 0; j < c.width; ++j) {
      double v = wte[static_cast<size_t>(ids[static_cast<size_t>(t)] * c.width + j)];
      if (!wpe.empty()) v += wpe[static_cast<size_t>((t % c.length) * c.width + j)];
      y[static_cast<size_t>(t * c.width + j)] = v;
    }
  }
  return y;
}

TEST_P(Embedding, ForwardAddsTokenAndPosition) {
  for (const Case& c : kCases) {
    const auto ids = RandomIds(c.n(), 9, c.vocabulary);
    const Doubles wte = RandomValues(c.vocabulary * c.width, 1);
    const Doubles wpe = RandomValues(c.length * c.width, 2);
    Buffer fwte(wte), fwpe(wpe), y(c.n() * c.width);
    ops_->Embedding(ids.data(), fwte.data(), fwpe.data(), y.data(), c.n(), c.length, c.width);
    ExpectClose(y, Reference(ids, wte, wpe, c), 1e-7, c.Name());
    ops_->Embedding(ids.data(), fwte.data(), nullptr, y.data(), c.n(), c.length, c.width);
    ExpectClose(y, Reference(ids, wte, {}, c), 0, "no positions " + c.Name());
  }
}

TEST_P(Embedding, BackwardMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    const auto ids = RandomIds(c.n(), 9, c.vocabulary);
    const Doubles wte = RandomValues(c.vocabulary * c.width, 1);
    const Doubles wpe = RandomValues(c.length * c.width, 2), dy = RandomValues(c.n() * c.width, 3);
    const Doubles dwte0 = RandomValues(c.vocabulary * c.width, 4);
    const Doubles dwpe0 = RandomValues(c.length * c.width, 5);
    Buffer fdy(dy), dwte(dwte0), dwpe(dwpe0);
    ops_->EmbeddingBackward(ids.data(), fdy.data(), dwte.data(), dwpe.data(), c.n(), c.length,
                            c.width);
    const Doubles want_te =
        NumericGradient([&](const Doubles& v) { return Dot(dy, Reference(ids, v, wpe, c)); }, wte);
    const Doubles want_pe =
        NumericGradient([&](const Doubles& v) { return Dot(dy, Reference(ids, wte, v, c)); }, wpe);
    ExpectClose(dwte, Plus(dwte0, want_te), 1e-6, "dwte " + c.Name());
    ExpectClose(dwpe, Plus(dwpe0, want_pe), 1e-6, "dwpe " + c.Name());
    ops_->EmbeddingBackward(ids.data(), fdy.data(), dwte.data(), nullptr, c.n(), c.length, c.width);
    ExpectClose(dwte, Plus(Plus(dwte0, want_te), want_te), 1e-6, "no positions " + c.Name());
  }
}

}  // namespace
}  // namespace headrace
