#include "isa.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "calls.hpp"
#include "target.hpp"

namespace ooc {
namespace {

constexpr std::pair<Isa, const char *> kNames[] = {{Isa::avx512, "avx512"}, {Isa::avx2, "avx2"}, {Isa::base, "base"}};  // widest first

bool serves(Isa which) {
#ifdef OOC_WIDER
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (which == Isa::avx2) return avx2;
  if (which == Isa::avx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw");
#endif
  return which == Isa::base;
}

Isa choose() {
  const char *env = std::getenv("OOC_ISA");
  const std::string most = env && *env ? env : "avx512";
  bool allowed = false;
  for (const auto &[which, name] : kNames) {
    allowed = allowed || most == name;
    if (allowed && serves(which)) return which;
  }
  throw std::invalid_argument("OOC_ISA must be avx512, avx2 or base, not " + most);
}

}  // namespace

Isa chosen_isa() {
  static const Isa chosen = choose();
  return chosen;
}

std::string isa() {
  for (const auto &[which, name] : kNames)
    if (which == chosen_isa()) return name;
  return "";
}

}  // namespace ooc
