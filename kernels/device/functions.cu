// Functions of one value: codes and meaning as in ooc/ops/function.py.

DEVICE C between(C x, C lo, C hi) { x = x < lo ? lo : x; return x > hi ? hi : x; }

DEVICE C function_of(Index of, C a, C b, C x) {
  switch (of) {
    case 0: return between(x, a, b);                                                             // clip
    case 1: { const C ax = a * x; return between(ax + b, (C)0, (C)1); }                          // hard_sigmoid
    case 2: return x * between(x / (C)6 + (C)0.5, (C)0, (C)1);                                   // hard_swish
    case 3: return x * activate(5, 0, x);                                                        // silu
    case 4: return (C)0.5 * x * ((C)1 + (C)erf((double)x * 0.70710678118654752440));             // gelu
    case 5: return (C)0.5 * x * ((C)1 + (C)tanh(0.79788456080286535588 * ((double)x + 0.044715 * x * x * x)));
    case 6: return (C)erf((double)x);
    case 7: return (C)1 / x;
    case 9: return x > a ? (C)1 : x == x ? (C)0 : x;                                                 // above
    case 10: return x <= a || x >= b ? (C)0 : (C)1;                                               // slopes: clip
    case 11: { const C ax = a * x; return ax + b <= (C)0 || ax + b >= (C)1 ? (C)0 : a; }           // hard_sigmoid
    case 12: return x < (C)-3 ? (C)0 : x > (C)3 ? (C)1 : x / (C)3 + (C)0.5;                     // hard_swish
    case 13: { const C s = activate(5, 0, x); return s + x * (s - s * s); }                      // silu
    case 14: return (C)(0.5 * (1 + erf((double)x * 0.70710678118654752440)) +
                        (double)x * exp(-0.5 * (double)x * x) * 0.39894228040143267794);         // gelu
    case 15: {                                                                                   // gelu_tanh
      const double v = x, t = tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v));
      return (C)(0.5 * (1 + t) + 0.5 * v * (1 - t * t) * 0.79788456080286535588 * (1 + 0.134145 * v * v));
    }
    case 16: return (C)(1.12837916709551257390 * exp(-(double)x * x));                           // erf
    case 17: return activate(5, 0, x);                                                           // softplus
    case 18: return x < (C)0 ? -x : x + (C)0;                                                    // abs
    case 19: return x > (C)0 ? (C)1 : x < (C)0 ? (C)-1 : x;                                      // sign
    case 20: return (C)floor((double)x);                                                         // floor
    case 21: return (C)ceil((double)x);                                                          // ceil
    case 22: return (C)rint((double)x);                                                          // round
    case 23: return (C)0;                                                                        // zero
    case 24: return (C)sqrt((double)x);                                                          // sqrt
    case 25: return (C)1 / (C)sqrt((double)x);                                                   // rsqrt
    case 26: return x / ((C)1 + (x < (C)0 ? -x : x));                                            // softsign
    case 27: return x > a ? x - a : x < -a ? x + a : (C)0 * x;                                   // soft_shrink
    case 28: return x >= -a && x <= a ? (C)0 : x;                                                // hard_shrink
    case 29: return (C)exp((double)x);                                                           // exp
    case 30: return (C)log((double)x);                                                           // log
    case 31: return (C)pow((double)x, (double)a);                                                // pow
    case 32: return x > (C)0 ? x : (C)((double)a * expm1((double)x / a));                        // celu
    case 33: return (C)sin((double)x);                                                           // sin
    case 34: return (C)cos((double)x);                                                           // cos
    case 35: return (C)tan((double)x);                                                           // tan
    case 36: return (C)asin((double)x);                                                          // asin
    case 37: return (C)acos((double)x);                                                          // acos
    case 38: return (C)atan((double)x);                                                          // atan
    case 39: return (C)sinh((double)x);                                                          // sinh
    case 40: return (C)cosh((double)x);                                                          // cosh
    case 41: return (C)asinh((double)x);                                                         // asinh
    case 42: return (C)acosh((double)x);                                                         // acosh
    case 43: return (C)atanh((double)x);                                                         // atanh
    case 44: return (C)-1 / (x * x);                                                             // reciprocal_slope
    case 45: return (C)0.5 / (C)sqrt((double)x);                                                 // sqrt_slope
    case 46: return (C)-0.5 / (x * (C)sqrt((double)x));                                          // rsqrt_slope
    case 47: { const C under = (C)1 + (x < (C)0 ? -x : x); return (C)1 / (under * under); }      // softsign_slope
    case 48: return x >= -a && x <= a ? (C)0 : (C)1;                                             // hard_shrink_slope
    case 49: return (C)((double)a * pow((double)x, (double)a - 1));                              // pow_slope
    case 50: return x > (C)0 ? (C)1 : (C)exp((double)x / a);                                     // celu_slope
    case 51: return (C)-sin((double)x);                                                          // cos_slope
    case 52: return (C)(1 / (cos((double)x) * cos((double)x)));                                  // tan_slope
    case 53: return (C)(1 / sqrt(1 - (double)x * x));                                            // asin_slope
    case 54: return (C)(-1 / sqrt(1 - (double)x * x));                                           // acos_slope
    case 55: return (C)1 / ((C)1 + x * x);                                                       // atan_slope
    case 56: return (C)(1 / sqrt(1 + (double)x * x));                                            // asinh_slope
    case 57: return (C)(1 / sqrt((double)x * x - 1));                                            // acosh_slope
    case 58: return (C)1 / ((C)1 - x * x);                                                       // atanh_slope
    default: return (C)((x > 0 ? (double)x : x == x ? 0 : (double)x) + log1p(exp(x > 0 ? -(double)x : (double)x)));  // softplus
  }
}

// t = x y; whole = channels, the integers' type as in convert_out.
KERNEL(argmax) {
  const Tensor &x = a.t[0], &y = a.t[1];
  EACH(at, y) {
    At from = at;
    from.x[1] = 0;
    C most = load(x, from);
    Index where = 0;
    for (Index c = 1; c < number(a, 0); ++c) {
      from.x[1] = c;
      const C v = load(x, from);
      if (v > most || (v != v && most == most)) most = v, where = c;
    }
    const Index to = offset(y, at), code = number(a, 1);
    if (code == 3) value<int>(y, to) = (int)where;
    else if (code == 2) value<short>(y, to) = (short)where;
    else if (code == 1) value<unsigned short>(y, to) = (unsigned short)where;
    else value<unsigned char>(y, to) = (unsigned char)where;
  }
}

// t = x y; whole = the function; real = a b.
KERNEL(function) {
  EACH(at, a.t[1]) store(a.t[1], at, function_of(number(a, 0), (C)a.real[0], (C)a.real[1], load(a.t[0], at)));
}

// Functions of two values: codes and meaning as in ooc/ops/binary.py.
DEVICE C binary_of(Index of, C x, C z) {
  switch (of) {
    case 0: return x / z;
    case 2: return x != x ? x : z != z ? z : x > z ? x : z;
    case 3: return x != x ? x : z != z ? z : x < z ? x : z;
    case 4: return x > z ? (C)1 : (C)0;
    case 5: return x >= z ? (C)1 : (C)0;
    case 6: return x == z ? (C)1 : (C)0;
    case 7: return z != (C)0 ? x : (C)0;
    case 8: return z != (C)0 ? (C)0 : x;
    default: return (C)pow((double)x, (double)z);
  }
}

// t = x z y; whole = the function.
KERNEL(binary) {
  EACH(at, a.t[2]) store(a.t[2], at, binary_of(number(a, 0), load(a.t[0], at), load(a.t[1], at)));
}
