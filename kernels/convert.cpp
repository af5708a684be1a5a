// Between integers as they are stored and floating values: pictures, volumes and masks on their way in and out.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. Integers of 32 bits are converted in
// f64, others in the type that is computed in. Every element is computed alone, so results do not depend on the threads.
#include <limits>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

// Codes of ooc.ir.op.INTEGERS, in order.
enum class Stored : int { u8 = 0, u16 = 1, i16 = 2, i32 = 3, b8 = 4 };

struct Bool {
  uint8_t byte;
};

OOC_INLINE int32_t whole(uint8_t x) { return x; }
OOC_INLINE int32_t whole(uint16_t x) { return x; }
OOC_INLINE int32_t whole(int16_t x) { return x; }
OOC_INLINE int32_t whole(int32_t x) { return x; }
OOC_INLINE int32_t whole(Bool x) { return x.byte != 0; }

Stored stored_of(int code) {
  if (code < 0 || code > static_cast<int>(Stored::b8)) throw std::invalid_argument("unknown code of an integer type");
  return static_cast<Stored>(code);
}

// Calls f with a null pointer to the stored type.
template <typename F>
OOC_INLINE void with_stored(Stored s, const F &f) {
  switch (s) {
    case Stored::u8: return f(static_cast<uint8_t *>(nullptr));
    case Stored::u16: return f(static_cast<uint16_t *>(nullptr));
    case Stored::i16: return f(static_cast<int16_t *>(nullptr));
    case Stored::i32: return f(static_cast<int32_t *>(nullptr));
    case Stored::b8: return f(static_cast<Bool *>(nullptr));
  }
}

// ---------------------------------------------------------------------------------------------
// In: y = x * scale + offset
// ---------------------------------------------------------------------------------------------

struct In {
  char *y;
  const char *x;
  Dtype type;
  Stored stored;
  const double *scales, *offsets;  // a value per channel; null: scale and offset
  double scale, offset;
};

template <typename C, typename T>
OOC_INLINE void widen_row(C *out, const T *in, i64 n, i64 step) {
  if (step == 1)
    for (i64 c = 0; c < n; ++c) out[c] = static_cast<C>(whole(in[c]));
  else
    for (i64 c = 0; c < n; ++c) out[c] = static_cast<C>(whole(in[c * step]));
}

template <typename C>
OOC_INLINE void scale_row(C *row, i64 n, C scale, C offset) {
  for (i64 c = 0; c < n; ++c) {
    const C product = row[c] * scale;
    row[c] = product + offset;
  }
}

template <typename C>
OOC_INLINE void in_any(const In &job, C, const Tile<3> &t) {
  alignas(64) C buffer[kTile];
  char *to = job.y + t.at[0] * item_size(job.type);
  const View<C> y = view_out<C>(to, job.type, t.grid(0), buffer);
  with_stored(job.stored, [&](auto *type) OOC_LAMBDA {
    const auto *x = reinterpret_cast<const decltype(type)>(const_cast<char *>(job.x)) + t.at[1];
    for (i64 r = 0; r < t.rows; ++r) widen_row(y.row(r), x + r * t.row.s[1], t.cols, t.col.s[1]);
  });
  for (i64 r = 0; r < t.rows; ++r) {
    C *row = y.row(r);
    if (!job.scales) {
      scale_row(row, t.cols, static_cast<C>(job.scale), static_cast<C>(job.offset));
      continue;
    }
    const i64 at = t.at[2] + r * t.row.s[2], step = t.col.s[2];
    const double *scales = job.scales + at, *offsets = job.offsets + at;
    if (!step) {
      scale_row(row, t.cols, static_cast<C>(*scales), static_cast<C>(*offsets));
      continue;
    }
    for (i64 c = 0; c < t.cols; ++c) {
      const C product = row[c] * static_cast<C>(scales[c * step]);
      row[c] = product + static_cast<C>(offsets[c * step]);
    }
  }
  store_view(to, job.type, t.grid(0), y);
}

OOC_UNFUSED OOC_CLONES void in_tile(const In &job, float c, const Tile<3> &t) { in_any(job, c, t); }
OOC_UNFUSED OOC_CLONES void in_tile(const In &job, double c, const Tile<3> &t) { in_any(job, c, t); }

}  // namespace

void convert_in(int dtype, uintptr_t y, const Five &y_strides, int stored, uintptr_t x, const Five &x_strides,
                const Five &shape, uintptr_t scales, uintptr_t offsets, double scale, double offset, int threads) {
  const In job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), dtype_of(dtype), stored_of(stored),
               reinterpret_cast<const double *>(scales), reinterpret_cast<const double *>(offsets), scale, offset};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  const auto nest = make_nest<3>(shape, {y_strides, x_strides, Five{0, scales != 0, 0, 0, 0}}, 2);
  for_tiles(nest, kTile, kTile, threads, [&](const Tile<3> &t) {
    if (job.type == Dtype::f64 || job.stored == Stored::i32)
      in_tile(job, 0.0, t);
    else
      in_tile(job, 0.0f, t);
  });
}

namespace {

// ---------------------------------------------------------------------------------------------
// Out: the nearest integer in range
// ---------------------------------------------------------------------------------------------

struct Out {
  char *y;
  const char *x;
  Dtype type;
  Stored stored;
};

// Adding it rounds to an integer, half to even, and leaves that in the low bits.
OOC_INLINE int32_t nearest(float x) {
  return static_cast<int32_t>(bit_cast<uint32_t>(x + 0x1.8p23f) - bit_cast<uint32_t>(0x1.8p23f));
}
OOC_INLINE int32_t nearest(double x) {
  return static_cast<int32_t>(static_cast<uint32_t>(bit_cast<uint64_t>(x + 0x1.8p52)));
}

template <typename T>
struct Range {
  static constexpr double lo = static_cast<double>(std::numeric_limits<T>::min());
  static constexpr double hi = static_cast<double>(std::numeric_limits<T>::max());
};
template <>
struct Range<Bool> {
  static constexpr double lo = 0, hi = 1;
};

template <typename T>
OOC_INLINE T stored_as(int32_t x, T *) {
  return static_cast<T>(x);
}
OOC_INLINE Bool stored_as(int32_t x, Bool *) { return {static_cast<uint8_t>(x)}; }

template <typename C, typename T>
OOC_INLINE void narrow_row(T *out, const C *in, i64 n, i64 step) {
  const C lo = static_cast<C>(Range<T>::lo), hi = static_cast<C>(Range<T>::hi);
  for (i64 c = 0; c < n; ++c) {
    const C x = choose(in[c] == in[c], in[c], C(0));
    const C low = choose(x > lo, x, lo);
    const C held = choose(low < hi, low, hi);
    out[c * step] = stored_as(nearest(held), static_cast<T *>(nullptr));
  }
}

template <typename C>
OOC_INLINE void out_any(const Out &job, C, const Tile<2> &t) {
  alignas(64) C buffer[kTile];
  const View<const C> x = view_in<C>(job.x + t.at[1] * item_size(job.type), job.type, t.grid(1), buffer);
  with_stored(job.stored, [&](auto *type) OOC_LAMBDA {
    auto *y = reinterpret_cast<decltype(type)>(job.y) + t.at[0];
    for (i64 r = 0; r < t.rows; ++r) {
      if (t.col.s[0] == 1)
        narrow_row(y + r * t.row.s[0], x.row(r), t.cols, 1);
      else
        narrow_row(y + r * t.row.s[0], x.row(r), t.cols, t.col.s[0]);
    }
  });
}

OOC_CLONES void out_tile(const Out &job, float c, const Tile<2> &t) { out_any(job, c, t); }
OOC_CLONES void out_tile(const Out &job, double c, const Tile<2> &t) { out_any(job, c, t); }

}  // namespace

void convert_out(int stored, uintptr_t y, const Five &y_strides, int dtype, uintptr_t x, const Five &x_strides,
                 const Five &shape, int threads) {
  const Out job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), dtype_of(dtype), stored_of(stored)};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  for_tiles(make_nest<2>(shape, {y_strides, x_strides}, 2), kTile, kTile, threads, [&](const Tile<2> &t) {
    if (job.type == Dtype::f64 || job.stored == Stored::i32)
      out_tile(job, 0.0, t);
    else
      out_tile(job, 0.0f, t);
  });
}

}  // namespace ooc
