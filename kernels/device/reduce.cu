// Sums over a batch, in f64. whole = bits of the summed axes.
struct Sum { typedef double V; enum { rows = 1, along = 0 }; At pin; int summed; V v[1]; };

// reduce: t = x y; whole = summed axes, whether y has the computed type; real = alpha.
DEVICE Sum begin(const Args& a, const At& at, Sum*) { return Sum{at, (int)a.whole[0], {0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Sum& sum) { sum.v[0] += a.real[0] * load(a.t[0], x); }
DEVICE void finish(const Args& a, const At& at, const Sum& sum) {
  if (a.whole[1]) wide(a.t[1], at) = (C)sum.v[0];
  else store(a.t[1], at, (C)sum.v[0]);
}

SUM(reduce, Sum, a.t[0], a.t[1])

DEVICE void add_packs(const Args& a, const unsigned* at, int held, Sum& sum) {
  Pack x[UNROLL];
  fetch(a.t[0], at, held, x);
  EACH_LANE(u, j)
    if (u < held) sum.v[0] += a.real[0] * widen(x[u].v[j]);
}

KERNEL(reduce_dense_parts) { take_dense_parts<Sum>(a, a.t[1]); }
