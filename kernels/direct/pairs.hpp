// Convolution of bf16 numbers by the processor's dot products of pairs of them, summed in f32: fprop, and dgrad at stride 1.
//
// What is summed over, channels of a group, comes in pairs, each in the place of one f32, so that gathers of f32 (gather.inl) copy and
// pack them as they do numbers, and multiply two at a time. Subnormal numbers count as zeros, sums that would be subnormal are zeros.
//
// x and w (dgrad: y and w) are bf16, the bias f32, the result f32 or, where nothing accumulates, bf16. Workspace: packed weights and
// tiles as direct_workspace has them for half the channels, then w and x in pairs, where they do not lie so.
#pragma once
#include "direct.hpp"

namespace ooc {
namespace direct {

// Whether it computed, else nothing was written since the workspace is too small; whether packed weights are left in the workspace.
struct Paired {
  bool served, packed;
};

// Null where compiler or processor lacks the instruction.
using PairedConv = Paired (*)(const Problem &, const Operands &, bool rounded);
PairedConv paired_conv();

}  // namespace direct
}  // namespace ooc
