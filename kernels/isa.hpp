// The instruction sets that kernels are compiled for. One of them serves the process.
#pragma once
#include <array>

namespace ooc {

enum class Isa : int { base, avx2, avx512 };

// The widest that the processor has and OOC_ISA allows. Throws std::invalid_argument where OOC_ISA names none of them.
Isa chosen_isa();

// What was compiled for the chosen instruction set (tables as Isa counts them, null where the compiler has it not), or for less.
template <typename Table>
const Table &widest(const std::array<const Table *, 3> &tables) {
  int i = static_cast<int>(chosen_isa());
  while (!tables[i]) --i;
  return *tables[i];
}

}  // namespace ooc
