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
    case 9: return x > a ? (C)1 : (C)0 * x;                                                      // above
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
    default: return (C)((x > 0 ? (double)x : 0 * (double)x) + log1p(exp(x > 0 ? -(double)x : (double)x)));  // softplus
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
