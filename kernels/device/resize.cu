// Resizing: whole = extent(3) size(3) how (0 nearest, 1 linear, 2 aligned). As ooc/ops/resample.py: one axis after the
// other, and the very same positions, from which the regions of tiles were computed.

DEVICE C mix(C near, C far, C share) { return share == 0 ? near : near + share * (far - near); }

// Of resize: whole = extent(3) size(3) how; real = a, m, d, b of each axis. As table() in ooc/ops/resize.py.
DEVICE Sample taken(const Args& a, int s, Index i) {
  const Index extent = number(a, s), how = number(a, 6);
  const i64 last = extent - 1;
  const double* line = a.real + 4 * s;
  if (how == 4) {
    double at = ((double)i + line[0]) * line[1] / line[2] - line[3];
    at = at < 0 ? 0 : at > (double)last ? (double)last : at;
    const i64 first = (i64)at;
    return Sample{(Index)first, (Index)(first + 1 < last ? first + 1 : last), at - (double)first};
  }
  i64 source = i + (i64)line[0];
  if (how == 2 || how == 3) {
    const double at = ((double)i + line[0]) * line[1] / line[2] - line[3];
    source = (i64)(how == 2 ? ceil(at - 0.5) : floor(at + 0.5));
  } else if (how < 2) {
    const float at = ((float)i + (float)line[0]) * (float)line[1] / (float)line[2] - (float)line[3];
    source = (i64)(how == 0 ? floorf(at) : ceilf(at));
  } else if (how == 6 && last > 0) {
    source %= 2 * last;
    if (source < 0) source += 2 * last;
    if (source > last) source = 2 * last - source;
  } else if (how == 7) {
    source %= last + 1;
    if (source < 0) source += last + 1;
  }
  source = source < 0 ? 0 : source > last ? last : source;
  return Sample{(Index)source, (Index)source, 0};
}

// x mixed along each axis.
DEVICE C mixed(const Tensor& x, const At& at, const Sample& d, const Sample& h, const Sample& w) {
  C line[4];  // along d, at the four corners of the other axes
  for (int corner = 0; corner < 4; ++corner) {
    const Index row = corner & 1 ? h.second : h.first, column = corner & 2 ? w.second : w.first;
    line[corner] = mix(load(x, offset(x, at.x[0], at.x[1], d.first, row, column)),
                       load(x, offset(x, at.x[0], at.x[1], d.second, row, column)), (C)d.share);
  }
  return mix(mix(line[0], line[1], (C)h.share), mix(line[2], line[3], (C)h.share), (C)w.share);
}

// t = x y
KERNEL(upsample) {
  EACH(at, a.t[1]) store(a.t[1], at, mixed(a.t[0], at, sample(a, 0, at.x[2]), sample(a, 1, at.x[3]), sample(a, 2, at.x[4])));
}

// t = x y
KERNEL(resize) {
  EACH(at, a.t[1]) store(a.t[1], at, mixed(a.t[0], at, taken(a, 0, at.x[2]), taken(a, 1, at.x[3]), taken(a, 2, at.x[4])));
}

// The first result in a block that is made of a position or of one after it; results rise with positions.
DEVICE Index made_from(const Args& a, const Tensor& dy, int s, Index position) {
  Index lo = begins(dy, s + 2), hi = ends(dy, s + 2);
  while (lo < hi) {
    const Index middle = lo + (hi - lo) / 2;
    if (sample(a, s, middle).second < position) lo = middle + 1;
    else hi = middle;
  }
  return lo;
}

DEVICE C weight(const Sample& from, Index position) {
  return (C)((from.first == position ? 1 - from.share : 0) + (from.second == position ? from.share : 0));
}

// t = dy dx: every position gathers from the results made of it, in ascending order.
KERNEL(upsample_backward) {
  const Tensor &dy = a.t[0], &dx = a.t[1];
  EACH(at, dx) {
    Index from[3], to[3];
    for (int s = 0; s < 3; ++s) {
      from[s] = to[s] = made_from(a, dy, s, at.x[s + 2]);
      while (inside(dy, s + 2, to[s]) && sample(a, s, to[s]).first <= at.x[s + 2]) ++to[s];
    }
    C sum = 0;
    for (Index w = from[2]; w < to[2]; ++w) {
      C plane = 0;
      for (Index h = from[1]; h < to[1]; ++h) {
        C line = 0;
        for (Index d = from[0]; d < to[0]; ++d)
          line += load(dy, offset(dy, at.x[0], at.x[1], d, h, w)) * weight(sample(a, 0, d), at.x[2]);
        plane += line * weight(sample(a, 1, h), at.x[3]);
      }
      sum += plane * weight(sample(a, 2, w), at.x[4]);
    }
    store(dx, at, sum);
  }
}

// Of resize_backward: whether results fall while positions rise.
DEVICE bool falls(const Args& a, int s) { return number(a, 6) < 5 && a.real[4 * s + 1] < 0; }

// The first result of a block, from `i` on, that is made of a position; the block's end: there is none. Those that lie between
// two, of results that rise or fall, are passed by halves; those of mirrored and of wrapped ones come back every `period`.
DEVICE Index made_of(const Args& a, const Tensor& dy, int s, Index i, Index position) {
  const Index end = ends(dy, s + 2), last = number(a, s) - 1;
  if (number(a, 6) == 6 && last > 0) {
    const i64 period = 2 * (i64)last, begin = ((i + (i64)a.real[4 * s]) % period + period) % period;
    const i64 one = (position - begin + period) % period, other = (2 * period - position - begin) % period;
    const i64 next = i + (one < other ? one : other);
    return next < end ? (Index)next : end;
  }
  if (number(a, 6) == 7) {
    const i64 period = (i64)last + 1, begin = ((i + (i64)a.real[4 * s]) % period + period) % period;
    const i64 next = i + (position - begin + period) % period;
    return next < end ? (Index)next : end;
  }
  const bool down = falls(a, s);
  Index lo = i, hi = end;
  while (lo < hi) {
    const Index middle = lo + (hi - lo) / 2;
    const Sample from = taken(a, s, middle);
    if (down ? from.first > position : from.second < position) lo = middle + 1;
    else hi = middle;
  }
  if (lo == end) return end;
  const Sample from = taken(a, s, lo);
  return from.first <= position && position <= from.second ? lo : end;
}

// t = dy dx: every position gathers from the results made of it, in ascending order.
KERNEL(resize_backward) {
  const Tensor &dy = a.t[0], &dx = a.t[1];
  EACH(at, dx) {
    C sum = 0;
    for (Index w = made_of(a, dy, 2, begins(dy, 4), at.x[4]); w < ends(dy, 4); w = made_of(a, dy, 2, w + 1, at.x[4])) {
      C plane = 0;
      for (Index h = made_of(a, dy, 1, begins(dy, 3), at.x[3]); h < ends(dy, 3); h = made_of(a, dy, 1, h + 1, at.x[3])) {
        C line = 0;
        for (Index d = made_of(a, dy, 0, begins(dy, 2), at.x[2]); d < ends(dy, 2); d = made_of(a, dy, 0, d + 1, at.x[2]))
          line += load(dy, offset(dy, at.x[0], at.x[1], d, h, w)) * weight(taken(a, 0, d), at.x[2]);
        plane += line * weight(taken(a, 1, h), at.x[3]);
      }
      sum += plane * weight(taken(a, 2, w), at.x[4]);
    }
    store(dx, at, sum);
  }
}
