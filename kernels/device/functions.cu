// Functions of one value: codes and meaning as in ooc/ops/function.py.

DEVICE C between(C x, C lo, C hi) { x = x < lo ? lo : x; return x > hi ? hi : x; }

DEVICE C function_of(i64 of, C a, C b, C x) {
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
    i64 where = 0;
    for (i64 c = 1; c < a.whole[0]; ++c) {
      from.x[1] = c;
      const C v = load(x, from);
      if (v > most || (v != v && most == most)) most = v, where = c;
    }
    const i64 to = offset(y, at), code = a.whole[1];
    if (code == 3) value<int>(y, to) = (int)where;
    else if (code == 2) value<short>(y, to) = (short)where;
    else if (code == 1) value<unsigned short>(y, to) = (unsigned short)where;
    else value<unsigned char>(y, to) = (unsigned char)where;
  }
}

// t = x y; whole = the function; real = a b.
KERNEL(function) {
  EACH(at, a.t[1]) store(a.t[1], at, function_of(a.whole[0], (C)a.real[0], (C)a.real[1], load(a.t[0], at)));
}
