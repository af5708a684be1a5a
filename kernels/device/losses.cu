// Losses, and their gradients, in f64.

DEVICE i64 label_at(const Tensor& labels, const At& at) { return value<i64>(labels, offset(labels, at)); }
DEVICE double number_of(const Tensor& t) { return value<double>(t, 0); }  // the one that it has
DEVICE double weight_of(const Tensor& weights, Index channel) {
  return weights.data ? value<double>(weights, offset(weights, 0, channel, 0, 0, 0)) : 1.0;
}

// What is there of a sum, or all of it.
DEVICE void put_sum(const Args& a, const Tensor& loss, const At& at, double sum) {
  if (a.last) wide(loss, at) = (C)sum;
  else exact(ACC, at) = sum;
}

// ---- cross-entropy: real = 1 - smoothing, smoothing / k, k; a negative label leaves its position out.

// t = x labels sums loss weights
KERNEL(cross_entropy) {
  const Tensor &x = a.t[0], &sums = a.t[2], &weights = a.t[4];
  EACH(made, a.t[3]) {
    At at = made;
    double sum = start_exact(a, made);
    const i64 label = label_at(a.t[1], made);
    const bool all = a.real[1] != 0;  // whether channels count that are not the label
    const Index lo = all ? begins(x, 1) : (Index)label, hi = all ? ends(x, 1) : (Index)label + 1;
    if (label >= 0 && (all || inside(x, 1, lo)))
      for (at.x[1] = lo; at.x[1] < hi; ++at.x[1]) {
        const double q = (a.real[0] * (label == at.x[1]) + a.real[1]) * weight_of(weights, at.x[1]);
        if (q != 0) sum += q * (log(relative(sums, made)) - (load(x, at) - largest(sums, made)));
      }
    put_sum(a, a.t[3], made, sum);
  }
}

// t = x labels sums dloss dx weights
KERNEL(cross_entropy_backward) {
  const Tensor &sums = a.t[2], &dloss = a.t[3], &dx = a.t[4], &weights = a.t[5];
  EACH(at, dx) {
    const i64 label = label_at(a.t[1], at);
    if (label < 0) {
      store(dx, at, (C)0);
      continue;
    }
    const double one = weight_of(weights, (Index)label), every = weights.data ? weight_of(weights, (Index)a.whole[0]) : a.real[2];
    const double q = (a.real[0] * (label == at.x[1]) + a.real[1]) * weight_of(weights, at.x[1]);
    const double own = exp(load(a.t[0], at) - largest(sums, at)) / relative(sums, at);
    store(dx, at, (C)((own * (a.real[0] * one + a.real[1] * every) - q) * wide(dloss, at)));
  }
}

// ---- distances: whole = which of DISTANCES in ooc/ops/distance.py

DEVICE double logistic(double x) {
  const double e = exp(x < 0 ? x : -x);
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

// t = x target loss weights
KERNEL(distance) {
  EACH(made, a.t[2]) {
    double sum = start_exact(a, made);
    At at = made;
    for (at.x[1] = begins(a.t[0], 1); at.x[1] < ends(a.t[0], 1); ++at.x[1]) {
      const double x = load(a.t[0], at), t = load(a.t[1], at), apart = x - t, w = weight_of(a.t[3], at.x[1]);
      if (a.whole[0] == 0) sum += apart * apart;
      else if (a.whole[0] == 1) sum += apart < 0 ? -apart : apart;
      else sum += (1 - t) * x + (1 + (w - 1) * t) * (log1p(exp(x < 0 ? x : -x)) + (x > 0 ? 0 : -x));
    }
    put_sum(a, a.t[2], made, sum);
  }
}

// t = x target share dx weights
KERNEL(distance_backward) {
  EACH(at, a.t[3]) {
    const double x = load(a.t[0], at), t = load(a.t[1], at), apart = x - t, w = weight_of(a.t[4], at.x[1]);
    double slope = (1 + (w - 1) * t) * logistic(x) - w * t;
    if (a.whole[0] == 0) slope = 2 * apart;
    if (a.whole[0] == 1) slope = apart > 0 ? 1 : apart < 0 ? -1 : apart;
    store(a.t[3], at, (C)(slope * number_of(a.t[2])));
  }
}

// ---- Dice: whole = whether there is one channel, the first channel that counts; real = smooth. What has a label alone counts.

struct Guess { double p, t; };

DEVICE Guess guess(const Args& a, const Tensor& sums, const At& at) {
  const i64 label = label_at(a.t[1], at);
  const double x = load(a.t[0], at);
  if (label < 0) return Guess{0, 0};
  if (a.whole[0]) return Guess{logistic(x), label == 1 ? 1.0 : 0.0};
  return Guess{exp(x - largest(sums, at)) / relative(sums, at), label == at.x[1] ? 1.0 : 0.0};
}

// Totals have two numbers along the last axis: of p * t, and of p + t.
DEVICE double& overlap_of(const Tensor& totals, const At& at) { return value<double>(totals, row(totals, 4, 0, at)); }
DEVICE double& mass_of(const Tensor& totals, const At& at) { return value<double>(totals, row(totals, 4, 1, at)); }

DEVICE Tensor classes(Tensor totals) {  // each is one result, of both numbers
  totals.extent[4] = 1, totals.by[4] = 1u << 31, totals.shift[4] = 31;
  return totals;
}

// dice_sums: t = x labels sums totals; whole = ..., ..., bits of the summed axes.
struct Overlaps { typedef double V; enum { rows = 2, along = 4 }; At pin; int summed; V v[2]; };

DEVICE Overlaps begin(const Args& a, const At& at, Overlaps*) { return Overlaps{at, (int)a.whole[2], {0, 0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Overlaps& sum) {
  const Guess own = guess(a, a.t[2], x);
  sum.v[0] += own.p * own.t;
  sum.v[1] += own.p + own.t;
}
DEVICE void finish(const Args& a, const At& at, const Overlaps& sum) {
  overlap_of(a.t[3], at) = sum.v[0];
  mass_of(a.t[3], at) = sum.v[1];
}

SUM(dice_sums, Overlaps, a.t[0], classes(a.t[3]))

// t = totals loss
KERNEL(dice_score) {
  const Tensor& totals = a.t[0];
  EACH(made, a.t[1]) {
    At at = made;
    double sum = start_exact(a, made);
    for (at.x[0] = begins(totals, 0); at.x[0] < ends(totals, 0); ++at.x[0])
      for (at.x[1] = begins(totals, 1); at.x[1] < ends(totals, 1); ++at.x[1])
        if (at.x[1] >= number(a, 1)) sum += 1 - (2 * overlap_of(totals, at) + a.real[0]) / (mass_of(totals, at) + a.real[0]);
    exact(a.t[1], made) = sum;
  }
}

// The gradient of the loss by p.
DEVICE double pulled(const Args& a, const Tensor& totals, const Tensor& share, const At& at, double t) {
  const double mass = mass_of(totals, at) + a.real[0];
  return at.x[1] < number(a, 1) ? 0 : ((2 * overlap_of(totals, at) + a.real[0]) / mass - 2 * t) / mass * number_of(share);
}

// t = x labels sums totals share s
KERNEL(dice_dot) {
  EACH(made, a.t[5]) {
    double sum = start_exact(a, made);
    At at = made;
    for (at.x[1] = begins(a.t[0], 1); at.x[1] < ends(a.t[0], 1); ++at.x[1]) {
      const Guess own = guess(a, a.t[2], at);
      sum += own.p * pulled(a, a.t[3], a.t[4], at, own.t);
    }
    exact(a.last ? a.t[5] : ACC, made) = sum;
  }
}

// t = x labels sums totals share s dx
KERNEL(dice_pull) {
  EACH(at, a.t[6]) {
    const Guess own = guess(a, a.t[2], at);
    const double g = pulled(a, a.t[3], a.t[4], at, own.t);
    const double dx = a.whole[0] ? own.p * (1 - own.p) * g : own.p * (g - exact(a.t[5], at));
    store(a.t[6], at, label_at(a.t[1], at) < 0 ? (C)0 : (C)dx);
  }
}
