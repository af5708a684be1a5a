// Attention, and its gradients.
#include <algorithm>

#include "../team.hpp"
#include "products.hpp"

namespace ooc {

using namespace products;

void attention(int of, int dtype, const Ten &data, const TenFours &strides, const Three &grouped, const Five &shape, i64 depth,
               double scale, bool more, bool last, int threads) {
  if (of < 0 || of > static_cast<int>(Attend::last)) throw std::invalid_argument("unknown code of attention");
  const i64 samples = shape[0], heads = shape[1], queries = shape[2], keys = shape[3], c = shape[4];
  if (volume(shape) == 0) return;
  const auto operand = [&](int i) { return Rows{reinterpret_cast<const char *>(data[i]), strides[i]}; };
  const auto [inner, bias_step, mask_step] = grouped;
  const Attention job{static_cast<Attend>(of), dtype_of(dtype), operand(0), operand(1), operand(2),
                      {{operand(3), bias_step}, {operand(4), mask_step}}, operand(5), operand(6), operand(7),
                      reinterpret_cast<char *>(data[8]), reinterpret_cast<char *>(data[9]), strides[8], strides[9], heads, inner,
                      queries, keys, c, depth, scale, more, last};
  const bool forward = job.of == Attend::forward, plain = job.of == Attend::scores || job.of == Attend::dots;
  if (!job.acc && !plain && (more || !last)) throw std::invalid_argument("partial sums without a place");
  const bool wide = job.type == Dtype::f64;
  const i64 most = wide ? kColumns<double> : kColumns<float>, kept = job.turned() ? keys : queries;
  const i64 deep = plain ? 1 : forward || job.of == Attend::dv ? depth : c;
  const i64 rows = forward ? std::max(kHigh, least(kKept, kSums / up(depth, most) / kHigh * kHigh)) : kKept;
  const i64 part = forward ? deep : most, down = up(kept, rows), across = up(deep, part);
  const Kernels &widest = kernels();
  const auto body = [&](i64 i, int) {
    const i64 at = i % across * part, row = i / across % down * rows, matrix = i / across / down;
    const AttentionPiece p{matrix / heads, matrix % heads, {row, least(rows, kept - row)}, {at, least(part, deep - at)}};
    widest.attend(job, p);
  };
  const double work = static_cast<double>(samples * heads * queries) * static_cast<double>(keys * (c + depth));
  share(samples * heads * down * across, team_of(work / (4 * kMicrosecond), threads), body);
}

}  // namespace ooc
