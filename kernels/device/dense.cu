// Dense forms: tensors of one shape whose elements lie in one order without gaps, at multiples of 16 bytes, fewer than 2^31 of them.
// The same arithmetic as the kernels of these names without `_dense`; element by element also in the same order.
//
// A pack is 16 bytes of elements. Those of a tensor are seen as an array of three axes, of which the middle one is shared among
// threads: each takes up to UNROLL packs of it, `part` of them apart, so that neighbouring threads have neighbouring packs, and what
// belongs to a channel is made ready once. dense[] = threads, packs of the last axis and how to divide by them, part and how to divide
// by it, packs of the middle axis, packs of a channel that follow each other and how to divide by them, channels and how to.

enum { LANES = 16 / sizeof(E), UNROLL = 4 };
// As many values of another type; loads of them are of 16 bytes at most, as addresses are multiples of that and no more.
template <class V> struct alignas(LANES * sizeof(V) < 16 ? LANES * sizeof(V) : 16) Lanes { V v[LANES]; };
typedef Lanes<E> Pack;

// The packs of a thread: the first, how far apart they are, in all and along the middle axis, of which so many are left; their channel.
struct Share { unsigned first, step, part, left, channel; };

DEVICE unsigned modulo(unsigned n, const unsigned* by) { return n - divided(n, by[1], by[2]) * by[0]; }

DEVICE Share share(const Args& a, unsigned thread, bool by_channel) {
  const unsigned *d = a.dense, part = d[4], whole = d[7];
  const unsigned outer = divided(thread, d[2], d[3]), inner = thread - outer * d[1];
  const unsigned piece = divided(outer, d[5], d[6]), begin = outer - piece * part;
  Share s = {(piece * whole + begin) * d[1] + inner, part * d[1], part, whole - begin, 0};
  if (by_channel) s.channel = modulo(divided(s.first, d[9], d[10]), d + 11);
  return s;
}

#define EACH_SHARE(s, by_channel) \
  Share s;                        \
  for (unsigned i = (unsigned)THREAD; i < a.dense[0] && (s = share(a, i, by_channel), true); i += (unsigned)THREADS)

// All are read before any is written: results may lie where inputs were.
template <class V> DEVICE void fetch(const Tensor& t, const Share& s, Lanes<V>* packs) {
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u)
    if (!u || u * s.part < s.left) packs[u] = ((const Lanes<V>*)t.data)[s.first + u * s.step];
}

template <class V> DEVICE void put(const Tensor& t, const Share& s, const Lanes<V>* packs) {
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u)
    if (!u || u * s.part < s.left) ((Lanes<V>*)t.data)[s.first + u * s.step] = packs[u];
}

#define EACH_LANE(u, j)                             \
  _Pragma("unroll") for (int u = 0; u < UNROLL; ++u) \
    _Pragma("unroll") for (int j = 0; j < LANES; ++j)

// The value of a channel in a vector of them, that of the block's first channel at the beginning.
template <class V> DEVICE V of_channel(const Tensor& t, const Share& s) { return ((const V*)t.data)[s.channel]; }

// A kernel for each activation, whose code is then part of it.
#define ACTIVATED(name)                       \
  KERNEL(name##_identity) { name<0>(a); }     \
  KERNEL(name##_relu) { name<1>(a); }         \
  KERNEL(name##_clipped_relu) { name<2>(a); } \
  KERNEL(name##_elu) { name<3>(a); }          \
  KERNEL(name##_leaky_relu) { name<4>(a); }   \
  KERNEL(name##_sigmoid) { name<5>(a); }      \
  KERNEL(name##_tanh) { name<6>(a); }

// ---- parts of sums: dense[] = packs of the terms of a result, those that follow each other and how to divide by them, how far the next
// ones are

template <class S> DEVICE void take_dense_parts(const Args& a, const Tensor& made) {
  const unsigned *d = a.dense, parts = (unsigned)PARTS, terms = d[0], inner = d[1], outer = d[4];
  for (unsigned i = (unsigned)THREAD, count = (unsigned)elements(made) * parts; i < count; i += (unsigned)THREADS) {
    const unsigned result = i / parts, part = i - result * parts;
    S sum = begin(a, element(made, result), (S*)0);
    for (unsigned m = part; m < terms; m += UNROLL * parts) {
      unsigned at[UNROLL];
      int held = 0;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const unsigned term = m + u * parts, line = divided(term, d[2], d[3]);
        at[u] = line * outer + result * inner + (term - line * inner);
        held += term < terms;
      }
      add_packs(a, at, held, sum);
    }
    keep(part_of<S>(a, result, part), sum);
  }
}

DEVICE void fetch(const Tensor& t, const unsigned* at, int held, Pack* packs) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
    if (u < held) packs[u] = ((const Pack*)t.data)[at[u]];
}
