// Positions of resizing and of even grids: whole = extent(3) size(3) how (0 nearest, 1 linear, 2 aligned). The very same as samples()
// in ooc/ops/resample.py, from which the regions of tiles were computed.

struct Sample { Index first, second; double share; };

// i * times / by
DEVICE Index scaled(Index i, Index times, Index by) {
  const u64 product = (u64)i * (u64)times;
  return product >> 32 ? (Index)(product / (u64)by) : (Index)((unsigned)product / (unsigned)by);
}

DEVICE Sample sample(const Args& a, int s, Index i) {
  const Index extent = number(a, s), out = number(a, 3 + s), how = number(a, 6);
  if (how == 0) {
    const Index from = scaled(i, extent, out);
    return Sample{from, from, 0};
  }
  double at;
  if (how == 2) at = TIMES((double)i, (double)(extent - 1) / (double)(out > 1 ? out - 1 : 1));
  else at = TIMES((double)i + 0.5, (double)extent / (double)out) - 0.5;
  if (at < 0) at = 0;
  const Index floor = (Index)at, first = floor < extent - 1 ? floor : extent - 1;
  return Sample{first, first + 1 < extent - 1 ? first + 1 : extent - 1, at - (double)first};
}

