// Normalisation: over a batch, by sums in f64 (whole = bits of the summed axes), and over neighbouring channels.

// bn_moments: t = x mean var; real = values behind each. v = count, mean, sum of squared deviations (Welford; Chan et al.).
struct Moments { typedef double V; enum { rows = 3, along = 0 }; At pin; int summed; V v[3]; };

DEVICE Moments begin(const Args& a, const At& at, Moments*) { return Moments{at, (int)a.whole[0], {0, 0, 0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Moments& sum) {
  const double term = load(a.t[0], x), shift = term - sum.v[1];
  sum.v[0] += 1;
  sum.v[1] += shift / sum.v[0];
  sum.v[2] += shift * (term - sum.v[1]);
}
DEVICE void join(const double* part, Moments& sum) {
  if (part[0] == 0) return;
  const double total = sum.v[0] + part[0], shift = part[1] - sum.v[1];
  sum.v[1] += shift * part[0] / total;
  sum.v[2] += part[2] + shift * shift * sum.v[0] * part[0] / total;
  sum.v[0] = total;
}
DEVICE void finish(const Args& a, const At& at, const Moments& sum) {
  exact(a.t[1], at) = sum.v[1];
  exact(a.t[2], at) = sum.v[2] / a.real[0];
}

SUM(bn_moments, Moments, a.t[0], a.t[1])

// Of all of these terms first, then joined: one division for each element would take longer than to read it.
DEVICE void add_packs(const Args& a, const unsigned* at, int held, Moments& sum) {
  Pack x[UNROLL];
  fetch(a.t[0], at, held, x);
  double own[3] = {(double)(held * LANES), 0, 0};
  EACH_LANE(u, j)
    if (u < held) own[1] += widen(x[u].v[j]);
  own[1] /= own[0];
  EACH_LANE(u, j)
    if (u < held) {
      const double shift = widen(x[u].v[j]) - own[1];
      own[2] += shift * shift;
    }
  join(own, sum);
}

KERNEL(bn_moments_dense_parts) { take_dense_parts<Moments>(a, a.t[1]); }

// bn_sums: t = x dy mean var dscale db; real = eps. v = dscale, db.
struct NormSums { typedef double V; enum { rows = 2, along = 0 }; At pin; int summed; V v[2], mean, rstd; };

DEVICE NormSums begin(const Args& a, const At& at, NormSums*) {
  return NormSums{at, (int)a.whole[0], {0, 0}, exact(a.t[2], at), 1 / sqrt(exact(a.t[3], at) + a.real[0])};
}
DEVICE void add(const Args& a, const At&, const At& x, NormSums& sum) {
  const double dy = load(a.t[1], x);
  sum.v[0] += dy * ((load(a.t[0], x) - sum.mean) * sum.rstd);
  sum.v[1] += dy;
}
DEVICE void finish(const Args& a, const At& at, const NormSums& sum) {
  exact(a.t[4], at) = sum.v[0];
  exact(a.t[5], at) = sum.v[1];
}

SUM(bn_sums, NormSums, a.t[0], a.t[4])

DEVICE void add_packs(const Args& a, const unsigned* at, int held, NormSums& sum) {
  Pack x[UNROLL], dy[UNROLL];
  fetch(a.t[0], at, held, x);
  fetch(a.t[1], at, held, dy);
  EACH_LANE(u, j)
    if (u < held) {
      const double v = widen(dy[u].v[j]);
      sum.v[0] += v * ((widen(x[u].v[j]) - sum.mean) * sum.rstd);
      sum.v[1] += v;
    }
}

KERNEL(bn_sums_dense_parts) { take_dense_parts<NormSums>(a, a.t[4]); }

// t = x mean var scale b y; whole = act; real = coef eps.
KERNEL(bn_apply) {
  const Tensor& y = a.t[5];
  EACH(at, y) {
    const C factor = (C)(exact(a.t[3], at) / sqrt(exact(a.t[2], at) + a.real[1]));
    const C z = (load(a.t[0], at) - (C)exact(a.t[1], at)) * factor + (C)exact(a.t[4], at);
    store(y, at, activate(number(a, 0), a.real[0], z));
  }
}

template <int ACT> DEVICE void bn_apply_dense(const Args& a) {
  EACH_SHARE(s, true) {
    const C factor = (C)(of_channel<double>(a.t[3], s) / sqrt(of_channel<double>(a.t[2], s) + a.real[1]));
    const C middle = (C)of_channel<double>(a.t[1], s), plus = (C)of_channel<double>(a.t[4], s);
    Pack x[UNROLL];
    fetch(a.t[0], s, x);
    EACH_LANE(u, j) {
      const C z = (widen(x[u].v[j]) - middle) * factor + plus;
      x[u].v[j] = narrow(activate(ACT, (C)a.real[0], z));
    }
    put(a.t[5], s, x);
  }
}
ACTIVATED(bn_apply_dense)

// t = x dy mean var scale dscale db dx; real = eps, values behind each statistic.
KERNEL(bn_pull) {
  EACH(at, a.t[7]) {
    const double rstd = 1 / sqrt(exact(a.t[3], at) + a.real[0]), unit = (load(a.t[0], at) - exact(a.t[2], at)) * rstd;
    const double spread = (exact(a.t[6], at) + unit * exact(a.t[5], at)) / a.real[1];
    store(a.t[7], at, (C)(exact(a.t[4], at) * rstd * (load(a.t[1], at) - spread)));
  }
}

KERNEL(bn_pull_dense) {
  EACH_SHARE(s, true) {
    const double rstd = 1 / sqrt(of_channel<double>(a.t[3], s) + a.real[0]), mean = of_channel<double>(a.t[2], s);
    const double factor = of_channel<double>(a.t[4], s) * rstd;
    const double dscale = of_channel<double>(a.t[5], s), db = of_channel<double>(a.t[6], s);
    Pack x[UNROLL], dy[UNROLL];
    fetch(a.t[0], s, x);
    fetch(a.t[1], s, dy);
    EACH_LANE(u, j) {
      const double unit = (widen(x[u].v[j]) - mean) * rstd, spread = (db + unit * dscale) / a.real[1];
      x[u].v[j] = narrow((C)(factor * (widen(dy[u].v[j]) - spread)));
    }
    put(a.t[7], s, x);
  }
}

// ---- local response normalisation, in f64: whole = size before; real = alpha beta base

// What the channel at `at` is divided by, before the power: from the squares of the channels around it, those that exist.
DEVICE double lrn_scale(const Args& a, const Tensor& x, At at) {
  const Index from = at.x[1] - number(a, 1);
  double sum = 0;
  for (at.x[1] = from; at.x[1] < from + number(a, 0); ++at.x[1])
    if (inside(x, 1, at.x[1])) {
      const double v = load(x, at);
      sum += v * v;
    }
  return a.real[2] + a.real[0] / (double)a.whole[0] * sum;
}

// t = x y
KERNEL(lrn) {
  EACH(at, a.t[1]) store(a.t[1], at, (C)(load(a.t[0], at) * pow(lrn_scale(a, a.t[0], at), -a.real[1])));
}

// t = x dy dx: channel j counts channel i when i lies in j's window.
KERNEL(lrn_backward) {
  const Tensor &x = a.t[0], &dy = a.t[1], &dx = a.t[2];
  EACH(made, dx) {
    At at = made;
    const double alpha = a.real[0], beta = a.real[1];
    double sum = 0;
    for (at.x[1] = made.x[1] + number(a, 1) - number(a, 0) + 1; at.x[1] <= made.x[1] + number(a, 1); ++at.x[1])
      if (inside(dy, 1, at.x[1])) sum += (double)load(dy, at) * load(x, at) * pow(lrn_scale(a, x, at), -beta - 1);
    const double own = load(dy, made) * pow(lrn_scale(a, x, made), -beta);
    store(dx, made, (C)(own - 2 * alpha * beta / (double)a.whole[0] * load(x, made) * sum));
  }
}
