// Between integers as they are stored and floating values. Codes of the integers: 0 u8, 1 u16, 2 i16, 3 i32, 4 bool.

DEVICE int whole(const Tensor& t, Index at, Index code) {
  if (code == 3) return value<int>(t, at);
  if (code == 2) return value<short>(t, at);
  if (code == 1) return value<unsigned short>(t, at);
  const int byte = value<unsigned char>(t, at);
  return code == 4 ? byte != 0 : byte;
}

DEVICE double per_channel(const Tensor& t, const At& at, double all) {
  return t.data ? value<double>(t, offset(t, 0, at.x[1], 0, 0, 0)) : all;
}

// Integers of 32 bits need f64.
DEVICE C floating(int v, Index code, double scale, double plus) {
  return code == 3 ? (C)(TIMES((double)v, scale) + plus) : (C)TIMES((double)v, (double)(C)scale) + (C)plus;
}

// t = x scale offset y; whole = code; real = scale, offset where these are no tensors.
KERNEL(convert_in) {
  const Tensor &x = a.t[0], &y = a.t[3];
  EACH(at, y) {
    const double scale = per_channel(a.t[1], at, a.real[0]), plus = per_channel(a.t[2], at, a.real[1]);
    store(y, at, floating(whole(x, offset(x, at), number(a, 0)), number(a, 0), scale, plus));
  }
}

template <class V> DEVICE void convert_in_packs(const Args& a, Index code) {
  const bool scaled = a.t[1].data, moved = a.t[2].data;
  EACH_SHARE(s, scaled || moved) {
    const double scale = scaled ? of_channel<double>(a.t[1], s) : a.real[0];
    const double plus = moved ? of_channel<double>(a.t[2], s) : a.real[1];
    Lanes<V> x[UNROLL];
    Pack y[UNROLL];
    fetch(a.t[0], s, x);
    EACH_LANE(u, j) y[u].v[j] = narrow(floating(code == 4 ? (int)(x[u].v[j] != 0) : (int)x[u].v[j], code, scale, plus));
    put(a.t[3], s, y);
  }
}

KERNEL(convert_in_dense) {
  const Index code = number(a, 0);
  if (code == 3) convert_in_packs<int>(a, 3);
  else if (code == 2) convert_in_packs<short>(a, 2);
  else if (code == 1) convert_in_packs<unsigned short>(a, 1);
  else if (code == 4) convert_in_packs<unsigned char>(a, 4);
  else convert_in_packs<unsigned char>(a, 0);
}

// Rounds half to even; NaN gives 0.
DEVICE double saturated(const Args& a, double v) {
  return v != v ? 0.0 : v < a.real[0] ? a.real[0] : v > a.real[1] ? a.real[1] : rint(v);
}

// t = x y; whole = code; real = the least and the largest integer.
KERNEL(convert_out) {
  const Tensor &x = a.t[0], &y = a.t[1];
  EACH(at, y) {
    const double v = saturated(a, load(x, at));
    const Index to = offset(y, at), code = number(a, 0);
    if (code == 3) value<int>(y, to) = (int)v;
    else if (code == 2) value<short>(y, to) = (short)v;
    else if (code == 1) value<unsigned short>(y, to) = (unsigned short)v;
    else value<unsigned char>(y, to) = (unsigned char)v;
  }
}

template <class V> DEVICE void convert_out_packs(const Args& a) {
  EACH_SHARE(s, false) {
    Pack x[UNROLL];
    Lanes<V> y[UNROLL];
    fetch(a.t[0], s, x);
    EACH_LANE(u, j) y[u].v[j] = (V)saturated(a, widen(x[u].v[j]));
    put(a.t[1], s, y);
  }
}

KERNEL(convert_out_dense) {
  const Index code = number(a, 0);
  if (code == 3) convert_out_packs<int>(a);
  else if (code == 2) convert_out_packs<short>(a);
  else if (code == 1) convert_out_packs<unsigned short>(a);
  else convert_out_packs<unsigned char>(a);
}
