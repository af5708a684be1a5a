// An activation of what lies somewhere already: pointwise.cpp.
#pragma once
#include "numbers.hpp"

namespace ooc {

// On the calling thread. NaN stays NaN.
void activate_in_place(float *at, const Five &shape, const Five &strides, Act act, float coef);

}  // namespace ooc
