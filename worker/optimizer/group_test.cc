#include "worker/optimizer/group.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

ParameterSpec Matrix(const std::string& name) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {4, 4};
  return spec;
}

ParameterSpec Vector(const std::string& name) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {4};
  return spec;
}

TEST(GroupTest, ByDefaultMatricesDecayAndVectorsDoNot) {
  v1::OptimizerSpec spec;
  spec.set_weight_decay(0.1);
  EXPECT_EQ(ConstantsFor(spec, Matrix("h.0.attn.c_attn.weight")).weight_decay, 0.1);
  EXPECT_EQ(ConstantsFor(spec, Vector("h.0.attn.c_attn.bias")).weight_decay, 0);
  EXPECT_EQ(ConstantsFor(spec, Matrix("x")).learning_rate_scale, 1);
}

TEST(GroupTest, TheFirstMatchingGlobDecides) {
  v1::OptimizerSpec spec;
  spec.set_weight_decay(0.1);
  v1::ParameterGroup* first = spec.add_groups();
  first->set_match("*.wte.*");
  first->set_weight_decay(0.5);
  v1::ParameterGroup* second = spec.add_groups();
  second->set_match("transformer.*");
  second->set_weight_decay(0.7);
  second->set_learning_rate_scale(0.25);
  const GroupConstants wte = ConstantsFor(spec, Matrix("transformer.wte.weight"));
  EXPECT_EQ(wte.weight_decay, 0.5);
  EXPECT_EQ(wte.learning_rate_scale, 1);
  const GroupConstants bias = ConstantsFor(spec, Vector("transformer.h.0.ln_1.bias"));
  EXPECT_EQ(bias.weight_decay, 0.7);
  EXPECT_EQ(bias.learning_rate_scale, 0.25);
  EXPECT_EQ(ConstantsFor(spec, Matrix("lm_head.weight")).weight_decay, 0.1);
}

TEST(GroupTest, WhatAGroupLeavesUnsaidIsAsWithoutIt) {
  v1::OptimizerSpec spec;
  spec.set_weight_decay(0.1);
  v1::ParameterGroup* group = spec.add_groups();
  group->set_match("*");
  group->set_learning_rate_scale(2);
  EXPECT_EQ(ConstantsFor(spec, Matrix("w")).weight_decay, 0.1);
  EXPECT_EQ(ConstantsFor(spec, Vector("b")).weight_decay, 0);
  EXPECT_EQ(ConstantsFor(spec, Vector("b")).learning_rate_scale, 2);
}

TEST(GroupTest, AZeroSaidIsAZero) {
  v1::OptimizerSpec spec;
  spec.set_weight_decay(0.1);
  v1::ParameterGroup* group = spec.add_groups();
  group->set_match("w?");
  group->set_weight_decay(0);
  group->set_learning_rate_scale(0);
  EXPECT_EQ(ConstantsFor(spec, Matrix("w1")).weight_decay, 0);
  EXPECT_EQ(ConstantsFor(spec, Matrix("w1")).learning_rate_scale, 0);
  EXPECT_EQ(ConstantsFor(spec, Matrix("w12")).weight_decay, 0.1);
}

}  // namespace
}  // namespace headrace
