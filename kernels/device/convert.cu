// Between integers as they are stored and floating values. Codes of the integers: 0 u8, 1 u16, 2 i16, 3 i32, 4 bool.

DEVICE int whole(const Tensor& t, i64 at, i64 code) {
  if (code == 3) return value<int>(t, at);
  if (code == 2) return value<short>(t, at);
  if (code == 1) return value<unsigned short>(t, at);
  const int byte = value<unsigned char>(t, at);
  return code == 4 ? byte != 0 : byte;
}

DEVICE double per_channel(const Tensor& t, const At& at, double all) {
  return t.data ? value<double>(t, offset(t, 0, at.x[1], 0, 0, 0)) : all;
}

// t = x scale offset y; whole = code; real = scale, offset where these are no tensors. Integers of 32 bits need f64.
KERNEL(convert_in) {
  const Tensor &x = a.t[0], &y = a.t[3];
  EACH(at, y) {
    const double v = whole(x, offset(x, at), a.whole[0]);
    const double scale = per_channel(a.t[1], at, a.real[0]), plus = per_channel(a.t[2], at, a.real[1]);
    if (a.whole[0] == 3) store(y, at, (C)(TIMES(v, scale) + plus));
    else store(y, at, (C)TIMES(v, (double)(C)scale) + (C)plus);
  }
}

// t = x y; whole = code; real = the least and the largest integer. Rounds half to even; NaN gives 0.
KERNEL(convert_out) {
  const Tensor &x = a.t[0], &y = a.t[1];
  EACH(at, y) {
    double v = load(x, at);
    v = v != v ? 0.0 : v < a.real[0] ? a.real[0] : v > a.real[1] ? a.real[1] : rint(v);
    const i64 to = offset(y, at), code = a.whole[0];
    if (code == 3) value<int>(y, to) = (int)v;
    else if (code == 2) value<short>(y, to) = (short)v;
    else if (code == 1) value<unsigned short>(y, to) = (unsigned short)v;
    else value<unsigned char>(y, to) = (unsigned char)v;
  }
}
