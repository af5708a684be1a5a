// See fft.hpp. VEC_BYTES, HIGH and WIDE (results of a product in registers) come from the file that includes this.

using direct::Operands;
using direct::Pass;
using direct::Problem;
using fft::Lengths;
using fft::Tables;
#include "../direct/vectors.inl"
#include "../direct/epilogue.inl"
#include "transforms.inl"
#include "products.inl"

// ---------------------------------------------------------------------------- blocks

// Outputs of a block: of which image, from where on, how many.
struct Block {
  i64 n, first[3], size[3];
};

// Blocks of outputs of these extents.
struct Blocks {
  i64 extent[3], inside[3], counts[3], all;

  Blocks(const Sizes &s, const i64 *outputs, i64 batch) : all(batch) {
    for (int d = 0; d < 3; ++d) extent[d] = outputs[d], inside[d] = s.inside[d], counts[d] = ceil_div(outputs[d], s.inside[d]), all *= counts[d];
  }

  Block at(i64 i) const {
    Block b{};
    for (int d = 2; d >= 0; --d) {
      b.first[d] = i % counts[d] * inside[d], i /= counts[d];
      b.size[d] = imin(inside[d], extent[d] - b.first[d]);
    }
    b.n = i;
    return b;
  }
};

// One call, in the terms of all passes.
template <class T>
struct Call {
  const Problem &p;
  const Operands &o;
  const Sizes &s;
  const Plans<T> &plans;
  i64 some, groups, c, k;  // blocks at a time, 0: each channel of each alone; channels of a group
  Rows<T> filters, in, out;
  Spaces spaces;

  // task(transform, number) for all numbers: side by side where there are enough, and room, else by all threads together.
  template <class F>
  void transform(i64 count, const F &task) const {
    const bool each = s.group > 1 || (count >= p.threads && spaces.count >= p.threads);
    share(count, each ? p.threads : 1, [&](i64 i, int member) {
      Transform<T> mine(s, plans, spaces, member, each ? 1 : p.threads);
      task(mine, i);
    });
  }
};

template <class T>
static Part<T> taps_of(const Call<std::remove_const_t<T>> &q, T *w) {
  Part<T> part{w, {}, {}, {}, {}};
  for (int d = 0; d < 3; ++d) part.step[d] = q.p.dilation[d], part.count[d] = q.p.f[d], part.stride[d] = q.o.ws[2 + d];
  return part;
}

// visit(transform, parts, how many, first row) for all filters of `w`, as many at a time as are transformed at once.
template <class T, class F>
static void for_filters(const Call<std::remove_const_t<T>> &q, T *w, const F &visit) {
  const i64 all = q.groups * q.k * q.c;
  q.transform(ceil_div(all, q.s.group), [&](auto &transform, i64 i) {
    Part<T> parts[Vec<std::remove_const_t<T>>::lanes];
    const i64 begin = i * q.s.group, count = imin(q.s.group, all - begin);
    for (i64 f = 0; f < count; ++f) parts[f] = taps_of(q, w + (begin + f) / q.c * q.o.ws[0] + (begin + f) % q.c * q.o.ws[1]);
    visit(transform, parts, count, begin);
  });
}

// What a call cuts into segments, or puts together from them: a tensor of x or of y.
template <class T>
struct Tensor {
  T *at;
  const i64 *strides, *extent;
  i64 channels;
};

// The part of a tensor that a segment from `first` on has; `length`: of the segment.
template <class T>
static Part<T> part_of(const Tensor<T> &x, i64 n, i64 channel, const i64 *first, const i64 *length) {
  Part<T> part{x.at + n * x.strides[0] + channel * x.strides[1], {}, {1, 1, 1}, {}, {}};
  for (int d = 0; d < 3; ++d) {
    const i64 lo = imax(0, first[d]), hi = imin(x.extent[d], first[d] + length[d]);
    part.first[d] = lo - first[d], part.count[d] = imax(0, hi - lo), part.stride[d] = x.strides[2 + d];
    part.at += lo * part.stride[d];
  }
  if (part.count[0] * part.count[1] == 0) part.count[2] = 0;
  return part;
}

// visit(transform, parts, how many, first row) for the parts of a tensor that segments of blocks have: all channels of `count`
// blocks from a number on. shift: from the first output to the first number; length: of a segment, or null: of its block.
template <class T, class F>
static void for_segments(const Call<std::remove_const_t<T>> &q, const Tensor<T> &x, const Blocks &blocks, i64 begin, i64 count,
                         const i64 *shift, const i64 *length, const F &visit) {
  const i64 runs = ceil_div(count, q.s.group);
  q.transform(x.channels * runs, [&](auto &transform, i64 number) {
    const i64 channel = number / runs, from = number % runs * q.s.group, some = imin(q.s.group, count - from);
    Part<T> parts[Vec<std::remove_const_t<T>>::lanes];
    for (i64 i = 0; i < some; ++i) {
      const Block b = blocks.at(begin + from + i);
      i64 first[3];
      for (int d = 0; d < 3; ++d) first[d] = b.first[d] + shift[d];
      parts[i] = part_of(x, b.n, channel, first, length ? length : b.size);
    }
    visit(transform, parts, some, channel * q.some + from, channel);
  });
}

// ---------------------------------------------------------------------------- passes

template <class T>
static Epilogue<T> epilogue_of(const Operands &o) {
  return {static_cast<const T *>(o.bias), o.act, static_cast<T>(o.coef), o.accumulate};
}

// What a call convolves, and where results go.
template <class T>
struct Convolved {
  Tensor<const T> x;
  Tensor<T> y;
  Blocks blocks;
  i64 shift[3], valid[3];  // from a block's first output to its segment's first number; to its first output that has not wrapped around
  Epilogue<T> epilogue;

  void store(Transform<T> &transform, Part<T> *parts, i64 count, const Rows<T> &rows, i64 row, i64 channel) const {
    for (i64 i = 0; i < count; ++i)
      for (int d = 0; d < 3; ++d) parts[i].first[d] += valid[d];
    const T bias = epilogue.bias ? epilogue.bias[channel] : T(0);
    transform.backward(parts, count, rows, row, [&](T *to, const Part<T> &part, const T *line) {
      store_row(line + part.first[2], to, part.count[2], part.stride[2], bias, epilogue);
    });
  }
};

// Where each channel has one filter: a block at a time, there and back in the same place.
template <bool CONJUGATE, class T>
static void each_channel(const Call<T> &q, const Convolved<T> &z) {
  q.transform(q.groups * z.blocks.all, [&](Transform<T> &transform, i64 i) {
    const i64 channel = i / z.blocks.all;
    const Block b = z.blocks.at(i % z.blocks.all);
    i64 first[3];
    for (int d = 0; d < 3; ++d) first[d] = b.first[d] + z.shift[d];
    const Part<const T> segment = part_of(z.x, b.n, channel, first, q.s.segment);
    const Rows<T> spectrum = transform.passing();
    transform.forward(&segment, 1, spectrum, 0);
    share_runs(q.s.lines, transform.team, [&](i64 lo, i64 hi, int) {
      for (i64 line = lo; line < hi; ++line)
        multiply_line<CONJUGATE>(q.filters.at(line, channel), spectrum.at(line, 0));
    });
    Part<T> result = part_of(z.y, b.n, channel, b.first, b.size);
    z.store(transform, &result, 1, spectrum, 0, channel);
  });
}

// fprop of x, or dgrad of dy.
template <class T>
static void sum_channels(const Call<T> &q) {
  const bool fprop = q.p.pass == Pass::fprop;
  const i64 cin = fprop ? q.c : q.k, cout = fprop ? q.k : q.c;
  const Tensor<const T> x{static_cast<const T *>(fprop ? q.o.x : q.o.y), fprop ? q.o.xs : q.o.ys, fprop ? q.p.x : q.p.y, q.groups * cin};
  const Tensor<T> y{static_cast<T *>(fprop ? q.o.y : q.o.x), fprop ? q.o.ys : q.o.xs, fprop ? q.p.y : q.p.x, q.groups * cout};
  Convolved<T> z{x, y, Blocks(q.s, y.extent, q.p.n), {}, {}, epilogue_of<T>(q.o)};
  const Blocks &blocks = z.blocks;
  const i64 none[3] = {0, 0, 0};
  for (int d = 0; d < 3; ++d) z.valid[d] = fprop ? 0 : q.s.reach[d] - 1, z.shift[d] = fprop ? -q.p.pad[d] : q.p.pad[d] - z.valid[d];
  if (!q.o.packed)
    for_filters<const T>(q, static_cast<const T *>(q.o.w), [&](Transform<T> &transform, const Part<const T> *parts, i64 count, i64 row) {
      transform.forward(parts, count, q.filters, row);
    });
  if (q.some == 0) return fprop ? each_channel<true>(q, z) : each_channel<false>(q, z);
  for (i64 begin = 0; begin < blocks.all; begin += q.some) {
    const i64 count = imin(q.some, blocks.all - begin);
    for_segments(q, x, blocks, begin, count, z.shift, q.s.segment,
                 [&](Transform<T> &transform, const Part<const T> *parts, i64 some, i64 row, i64) { transform.forward(parts, some, q.in, row); });
    share(q.s.lines * q.groups, q.p.threads, [&](i64 i, int) {
      const i64 line = i / q.groups, g = i % q.groups;
      Product<T> m{q.filters.at(line, g * q.k * q.c), q.in.at(line, g * cin * q.some), q.out.at(line, g * cout * q.some), cout, count, cin,
                   fprop ? q.c : 1, fprop ? 1 : q.c, q.some, 1, q.some, 1, false};
      if (fprop) multiply<true>(m);
      else multiply<false>(m);
    });
    for_segments(q, y, blocks, begin, count, none, nullptr, [&](Transform<T> &transform, Part<T> *parts, i64 some, i64 row, i64 channel) {
      z.store(transform, parts, some, q.out, row, channel);
    });
  }
}

template <class T>
static void sum_blocks(const Call<T> &q) {
  const Blocks blocks(q.s, q.p.y, q.p.n);
  const Tensor<const T> x{static_cast<const T *>(q.o.x), q.o.xs, q.p.x, q.groups * q.c};
  const Tensor<const T> dy{static_cast<const T *>(q.o.y), q.o.ys, q.p.y, q.groups * q.k};
  i64 shift[3];
  const i64 none[3] = {0, 0, 0};
  for (int d = 0; d < 3; ++d) shift[d] = -q.p.pad[d];
  for (i64 begin = 0; begin < blocks.all; begin += q.some) {
    const i64 count = imin(q.some, blocks.all - begin);
    for_segments(q, x, blocks, begin, count, shift, q.s.segment,
                 [&](Transform<T> &transform, const Part<const T> *parts, i64 some, i64 row, i64) { transform.forward(parts, some, q.in, row); });
    for_segments(q, dy, blocks, begin, count, none, nullptr,
                 [&](Transform<T> &transform, const Part<const T> *parts, i64 some, i64 row, i64) { transform.forward(parts, some, q.out, row); });
    share(q.s.lines * q.groups, q.p.threads, [&](i64 i, int) {
      const i64 line = i / q.groups, g = i % q.groups;
      multiply<true>(Product<T>{q.out.at(line, g * q.k * q.some), q.in.at(line, g * q.c * q.some), q.filters.at(line, g * q.k * q.c), q.k,
                                q.c, count, q.some, 1, 1, q.some, q.c, 1, begin > 0});
    });
  }
  for_filters<T>(q, static_cast<T *>(q.o.w), [&](Transform<T> &transform, const Part<T> *parts, i64 count, i64 row) {
    transform.backward(parts, count, q.filters, row, [&](T *to, const Part<T> &part, const T *line) {
      for (i64 i = 0; i < part.count[2]; ++i) {
        T &tap = to[i * part.stride[2]];
        tap = line[part.first[2] + i * part.step[2]] + (q.o.accumulate ? tap : T(0));
      }
    });
  });
}

// ---------------------------------------------------------------------------- a call

// The largest size of a number, infinite where one is none.
template <class T>
static double largest(const T *x, const i64 *shape, const i64 *strides, int threads) {
  std::vector<double> each(size_t(threads), 0.0);
  share(shape[0] * shape[1], threads, [&](i64 i, int member) {
    T top = 0, odd = 0;  // odd: not zero where a number is none
    for (i64 d = 0; d < shape[2]; ++d)
      for (i64 h = 0; h < shape[3]; ++h) {
        const T *row = x + i / shape[1] * strides[0] + i % shape[1] * strides[1] + d * strides[2] + h * strides[3];
        for (i64 j = 0; j < shape[4]; ++j) {
          const T size = std::fabs(row[j * strides[4]]);
          top = size > top ? size : top;
          odd += size != size ? T(1) : T(0);
        }
      }
    each[size_t(member)] = odd != 0 ? HUGE_VAL : each[size_t(member)] > top ? each[size_t(member)] : double(top);
  });
  return *std::max_element(each.begin(), each.end());
}

template <class T>
static bool sums_hold(const Problem &p, const Operands &o, const Sizes &s, i64 blocks) {
  const bool wgrad = p.pass == Pass::wgrad, dgrad = p.pass == Pass::dgrad;
  const i64 x[5] = {p.n, p.c, p.x[0], p.x[1], p.x[2]}, y[5] = {p.n, p.k, p.y[0], p.y[1], p.y[2]};
  const i64 w[5] = {p.k, p.c / p.groups, p.f[0], p.f[1], p.f[2]};
  const double one = dgrad ? largest(static_cast<const T *>(o.y), y, o.ys, p.threads) : largest(static_cast<const T *>(o.x), x, o.xs, p.threads);
  const double other = wgrad ? largest(static_cast<const T *>(o.y), y, o.ys, p.threads) : largest(static_cast<const T *>(o.w), w, o.ws, p.threads);
  const double terms = double(s.reals) * double(s.reals) * double(imax(p.c, p.k)) * double(blocks + 1);
  return one * other * terms < double(std::numeric_limits<T>::max());
}

template <class T>
static bool run_as(const Problem &p, const Operands &o, const Lengths &lengths, const Plans<T> &plans) {
  const Sizes s = sizes_of<T>(p, lengths);
  for (int d = 0; d < 3; ++d)
    if (s.inside[d] < 1) return false;
  const i64 groups = p.groups, c = p.c / groups, k = p.k / groups, threads = p.threads;
  const i64 spectrum = s.lines * ROW<T> * i64(sizeof(T)), filters = groups * k * c;
  const Blocks blocks(s, p.pass == Pass::dgrad ? p.x : p.y, p.n);
  const bool alone = c * k == 1 && s.group == 1 && p.pass != Pass::wgrad;
  const auto room_for = [&](i64 spaces) { return o.workspace_bytes - filters * spectrum - spaces_bytes<T>(s, threads, spaces); };
  const i64 least = alone ? 0 : (p.c + p.k) * spectrum, spaces = room_for(threads) < least ? 1 : threads;
  const i64 some = alone ? 0 : imin(blocks.all, room_for(spaces) / least);
  if (room_for(spaces) < least || !sums_hold<T>(p, o, s, blocks.all)) return false;
  char *at = static_cast<char *>(o.workspace);
  const auto rows = [&](i64 count) {
    const Rows<T> r{reinterpret_cast<T *>(at), count};
    at += count * spectrum;
    return r;
  };
  const Rows<T> kept = rows(filters), in = rows(some * (p.pass == Pass::dgrad ? p.k : p.c)), out = rows(some * (p.pass == Pass::dgrad ? p.c : p.k));
  const Spaces room{at, at + threads * buffer_bytes(s), spaces};
  const Call<T> q{p, o, s, plans, some, groups, c, k, kept, in, out, room};
  if (p.pass == Pass::wgrad) sum_blocks(q);
  else sum_channels(q);
  return true;
}

// The axis that comes last, since real numbers are transformed along it: one along which segments are longer than a number.
static int last_axis(const Lengths &lengths) {
  for (int d = 2; d > 0; --d)
    if (lengths.axis[d] > 1) return d;
  return 0;
}

static void exchange(i64 *of, int d) {
  const i64 kept = of[d];
  of[d] = of[2], of[2] = kept;
}

static std::shared_ptr<const void> prepare(Dtype dtype, const Lengths &lengths) {
  Lengths turned = lengths;
  exchange(turned.axis, last_axis(lengths));
  if (dtype == Dtype::f64) return std::make_shared<const Plans<double>>(turned);
  return std::make_shared<const Plans<float>>(turned);
}

static bool run(const Problem &problem, const Operands &operands, const Tables &tables) {
  Problem p = problem;
  Operands o = operands;
  Lengths lengths = tables.lengths;
  const int last = last_axis(lengths);
  for (i64 *of : {p.x, p.f, p.y, p.stride, p.dilation, p.pad, o.xs + 2, o.ws + 2, o.ys + 2, lengths.axis}) exchange(of, last);
  if (p.dtype == Dtype::f64) return run_as(p, o, lengths, *static_cast<const Plans<double> *>(tables.plans.get()));
  return run_as(p, o, lengths, *static_cast<const Plans<float> *>(tables.plans.get()));
}
