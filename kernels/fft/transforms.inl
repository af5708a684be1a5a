// Transforms of segments to and from rows of spectra: real numbers along the last axis, complex ones along the others, several lines
// in the lanes of vectors. Lines of which nothing is given, or nothing wanted, are left out.

constexpr i64 LINE_BYTES = 64;  // of real parts, and of imaginary ones, in a row
template <class T>
constexpr i64 LINE = LINE_BYTES / i64(sizeof(T));
template <class T>
constexpr i64 ROW = 2 * LINE<T>;

// Vectors as PocketFFT's templates take them: aligned, of a size that no template has to find.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float type __attribute__((vector_size(VEC_BYTES)));
};
template <>
struct Lanes<double> {
  typedef double type __attribute__((vector_size(VEC_BYTES)));
};

// Sizes that all transforms share.
struct Sizes {
  i64 segment[3], reach[3], inside[3];  // of a segment, of filters, outputs of a block
  i64 axis[3];                          // of the transforms: a segment's, or those of the plane it is folded into
  i64 reals, across, lines;          // numbers of a segment; lines of the frequencies of a row, and of all
  i64 group;                         // segments that are transformed at once: those of one line take a lane each
  i64 buffer;                        // vectors that one transform works in, twice
  bool folded;
};

// Rows of spectra: of each line of frequencies, all rows.
template <class T>
struct Rows {
  T *data;
  i64 count;
  T *at(i64 line, i64 row) const { return data + (line * count + row) * ROW<T>; }
};

// Numbers of a tensor at the places first + i * step of a segment.
template <class T>
struct Part {
  T *at;
  i64 first[3], step[3], count[3], stride[3];
};

template <class T>
static Sizes sizes_of(const Problem &p, const Lengths &lengths) {
  Sizes s{};
  s.reals = 1;
  for (int d = 0; d < 3; ++d) {
    s.segment[d] = s.axis[d] = lengths.axis[d];
    s.reach[d] = (p.f[d] - 1) * p.dilation[d] + 1;
    s.inside[d] = s.segment[d] - s.reach[d] + 1;
    s.reals *= s.segment[d];
  }
  s.folded = lengths.folded > 1;
  if (s.folded) s.axis[1] = lengths.folded, s.axis[2] /= lengths.folded;
  s.across = ceil_div(s.axis[2] / 2 + 1, LINE<T>);
  s.lines = s.axis[0] * s.axis[1] * s.across;
  s.group = s.axis[0] * s.axis[1] == 1 ? Vec<T>::lanes : 1;
  s.buffer = round_up(s.axis[2], Vec<T>::lanes);
  for (int d = 0; d < 2; ++d) s.buffer = imax(s.buffer, s.axis[d] > 1 ? 2 * s.axis[d] : 0);
  return s;
}

// Bytes that a thread works in, and of a spectrum that a segment of several lines passes through.
static i64 buffer_bytes(const Sizes &s) { return 2 * s.buffer * VEC_BYTES; }
template <class T>
static i64 passing_bytes(const Sizes &s) {
  return s.group == 1 ? s.lines * ROW<T> * i64(sizeof(T)) : 0;
}

// What all threads work in: as many spectra as segments are transformed at once, by a thread each, or one by all threads together.
struct Spaces {
  char *buffers, *spectra;
  i64 count;
};

template <class T>
static i64 spaces_bytes(const Sizes &s, i64 threads, i64 count) {
  return threads * buffer_bytes(s) + count * passing_bytes<T>(s);
}

// What PocketFFT prepares for some lengths.
template <class T>
struct Plans {
  std::shared_ptr<pocketfft::detail::pocketfft_r<T>> real;
  std::shared_ptr<pocketfft::detail::pocketfft_c<T>> complex[2];

  // Where segments are folded, roots of unity: for each line those of the first frequencies, and of the first of each of their lines.
  pocketfft::detail::arr<T> turns;
  pocketfft::detail::arr<pocketfft::detail::cmplx<T>> starts;

  explicit Plans(const Lengths &l) : real(std::make_shared<pocketfft::detail::pocketfft_r<T>>(size_t(l.axis[2] / l.folded))) {
    const i64 axis[2] = {l.axis[0], l.folded > 1 ? l.folded : l.axis[1]};
    for (int d = 0; d < 2; ++d)
      if (axis[d] > 1) complex[d] = std::make_shared<pocketfft::detail::pocketfft_c<T>>(size_t(axis[d]));
    if (l.folded > 1) turn_by(l.axis[2], l.folded);
  }

 private:
  void turn_by(i64 reals, i64 folded) {
    const i64 across = ceil_div(reals / folded / 2 + 1, LINE<T>);
    const pocketfft::detail::sincos_2pibyn<T> roots{size_t(reals)};
    turns.resize(size_t(folded * ROW<T>)), starts.resize(size_t(folded * across));
    for (i64 j = 0; j < folded; ++j) {
      for (i64 k = 0; k < LINE<T>; ++k) {
        const auto root = roots[size_t(j * k % reals)];
        turns[size_t(j * ROW<T> + k)] = root.r, turns[size_t(j * ROW<T> + LINE<T> + k)] = root.i;
      }
      for (i64 a = 0; a < across; ++a) starts[size_t(j * across + a)] = roots[size_t(j * a * LINE<T> % reals)];
    }
  }
};

// Transforms of a thread, or of a team where there are fewer of them than threads.
template <class T>
class Transform {
  typedef typename Lanes<T>::type V;
  typedef pocketfft::detail::cmplx<V> Pair;
  static constexpr i64 L = Vec<T>::lanes;

 public:
  // member: the first of the team.
  Transform(const Sizes &sizes, const Plans<T> &plans, const Spaces &spaces, int member, int team)
      : team(team), s(sizes), plans(plans), first(spaces.buffers + member * buffer_bytes(sizes)) {
    spectrum = reinterpret_cast<T *>(spaces.spectra + member * passing_bytes<T>(s));
  }

  const int team;

  // The spectrum that segments of several lines pass through.
  Rows<T> passing() const { return {spectrum, 1}; }

  // Spectra of `count` segments, one for each row from `row` on: what they have of a tensor. Several where they are lines.
  void forward(const Part<const T> *parts, i64 count, const Rows<T> &rows, i64 row) {
    if (s.group > 1) {
      T *to[L];
      for (i64 i = 0; i < count; ++i) to[i] = rows.at(0, row + i);
      forward_lines(parts, to, count, rows.count * ROW<T>, buffers(0));
      return;
    }
    const Part<const T> &part = *parts;
    if (part.count[0] * part.count[1] == 0) {  // all of it is padding
      for (i64 line = 0; line < s.lines; ++line) std::memset(rows.at(line, row), 0, ROW<T> * sizeof(T));
      return;
    }
    if (s.folded) return forward_folded(part, rows, row);
    for_lines(part, [&](const i64 *at, const i64 *places, i64 lines, const Buffers &b) {
      Part<const T> each[L];
      T *to[L];
      for (i64 i = 0; i < lines; ++i) each[i] = part, each[i].at += at[i], to[i] = of_line(places[i]);
      forward_lines(each, to, lines, ROW<T>, b);
    });
    const bool deep = s.axis[0] > 1;
    if (s.axis[1] > 1)
      for_planes(part, [&](i64 depth, i64 a, const Buffers &b) {
        across(1, part, a, inner(depth, a), deep ? inner(depth, a) : outer(1, 0, a, rows, row), b);
      });
    if (deep) for_depths([&](i64 j, i64 a, const Buffers &b) { across(0, part, a, beneath(j, a), outer(0, j, a, rows, row), b); });
  }

  // What `count` rows are the spectra of, line by line: store(where the line goes, its part, its numbers).
  template <class Store>
  void backward(const Part<T> *parts, i64 count, const Rows<T> &rows, i64 row, const Store &store) {
    if (s.group > 1) {
      const T *from[L];
      for (i64 i = 0; i < count; ++i) from[i] = rows.at(0, row + i);
      backward_lines(from, count, rows.count * ROW<T>, buffers(0), [&](i64 i, const T *line) { store(parts[i].at, parts[i], line); });
      return;
    }
    const Part<T> &part = *parts;
    if (s.folded) return backward_folded(part, rows, row, store);
    const bool deep = s.axis[0] > 1;
    if (deep) for_depths([&](i64 j, i64 a, const Buffers &b) { back(0, part, a, outer(0, j, a, rows, row), beneath(j, a), b); });
    if (s.axis[1] > 1)
      for_planes(part, [&](i64 depth, i64 a, const Buffers &b) {
        back(1, part, a, deep ? inner(depth, a) : outer(1, 0, a, rows, row), inner(depth, a), b);
      });
    for_lines(part, [&](const i64 *at, const i64 *places, i64 lines, const Buffers &b) {
      const T *from[L];
      for (i64 i = 0; i < lines; ++i) from[i] = of_line(places[i]);
      backward_lines(from, lines, ROW<T>, b, [&](i64 i, const T *line) { store(part.at + at[i], part, line); });
    });
  }

 private:
  struct Buffers {  // of one transform
    V *line, *other;
  };
  struct Column {  // numbers along an axis of a spectrum
    T *at;
    i64 step;
  };

  Buffers buffers(int member) const {
    V *line = reinterpret_cast<V *>(first + member * buffer_bytes(s));
    return {line, line + s.buffer};
  }

  T *of_line(i64 place) const { return spectrum + place * s.across * ROW<T>; }

  // Along axis 1 of the spectrum, along axis 0 of it, and along either of them of rows.
  Column inner(i64 depth, i64 a) const { return {of_line(depth * s.axis[1]) + a * ROW<T>, s.across * ROW<T>}; }
  Column beneath(i64 j, i64 a) const { return {of_line(j) + a * ROW<T>, s.axis[1] * s.across * ROW<T>}; }
  Column outer(int d, i64 j, i64 a, const Rows<T> &rows, i64 row) const {
    return {rows.at(j * s.across + a, row), (d ? 1 : s.axis[1]) * s.across * rows.count * ROW<T>};
  }

  // visit(depth, line of frequencies, buffers) for all planes that a part reaches, and visit(row of a plane, line of frequencies,
  // buffers) for all rows.
  template <class P, class F>
  void for_planes(const P &part, const F &visit) {
    share(part.count[0] * s.across, team,
          [&](i64 i, int member) { visit(part.first[0] + i / s.across * part.step[0], i % s.across, buffers(member)); });
  }
  template <class F>
  void for_depths(const F &visit) {
    share(s.axis[1] * s.across, team, [&](i64 i, int member) { visit(i / s.across, i % s.across, buffers(member)); });
  }

  // visit(distances in the tensor, places of lines in a segment, how many, buffers) for as many lines at a time as there are lanes.
  template <class P, class F>
  void for_lines(const P &part, const F &visit) {
    const i64 all = part.count[0] * part.count[1];
    share(ceil_div(all, L), team, [&](i64 run, int member) {
      i64 at[L], places[L];
      const i64 begin = run * L, some = imin(L, all - begin);
      for (i64 l = 0; l < some; ++l) {
        const i64 i = (begin + l) / part.count[1], j = (begin + l) % part.count[1];
        at[l] = i * part.stride[0] + j * part.stride[1];
        places[l] = (part.first[0] + i * part.step[0]) * s.axis[1] + part.first[1] + j * part.step[1];
      }
      visit(at, places, some, buffers(member));
    });
  }

  // All places of the plane that a segment is folded into.
  Part<T> plane() const { return {nullptr, {0, 0, 0}, {1, 1, 1}, {1, s.axis[1], s.axis[2]}, {0, 0, 0}}; }

  // The numbers of a part that neighbouring lines have from `place` of the segment on: from which to which.
  template <class P>
  static i64 from_place(const P &part, i64 place) {
    const i64 behind = place - part.first[2];
    return behind <= 0 ? 0 : imin(part.count[2], part.step[2] == 1 ? behind : ceil_div(behind, part.step[2]));
  }

  void forward_folded(const Part<const T> &part, const Rows<T> &rows, i64 row) {
    share(s.axis[1] / L, team, [&](i64 run, int member) {
      const Buffers b = buffers(member);
      T *to[L];
      for (i64 l = 0; l < L; ++l) to[l] = of_line(run * L + l);
      for (i64 i = 0; i < s.axis[2]; ++i) {
        const i64 place = i * s.axis[1] + run * L, lo = from_place(part, place), hi = from_place(part, place + L);
        if (hi - lo == L && part.stride[2] == 1) {
          b.line[i] = load(part.at + lo);
          continue;
        }
        T numbers[L] = {};
        for (i64 t = lo; t < hi; ++t) numbers[part.first[2] + t * part.step[2] - place] = part.at[t * part.stride[2]];
        b.line[i] = load(numbers);
      }
      spectra_of_lines(to, L, ROW<T>, b);
    });
    const Part<T> all = plane();
    for_planes(all, [&](i64, i64 a, const Buffers &b) { across(1, all, a, inner(0, a), outer(1, 0, a, rows, row), b); });
  }

  template <class Store>
  void backward_folded(const Part<T> &part, const Rows<T> &rows, i64 row, const Store &store) {
    const Part<T> all = plane();
    for_planes(all, [&](i64, i64 a, const Buffers &b) { back(1, all, a, outer(1, 0, a, rows, row), inner(0, a), b); });
    share(s.axis[1] / L, team, [&](i64 run, int member) {
      const Buffers b = buffers(member);
      const T *from[L];
      for (i64 l = 0; l < L; ++l) from[l] = of_line(run * L + l);
      lines_of_spectra(from, L, ROW<T>, b);
      for (i64 i = 0; i < s.axis[2]; ++i) {
        const i64 place = i * s.axis[1] + run * L, lo = from_place(part, place), hi = from_place(part, place + L);
        if (lo == hi) continue;
        Part<T> some = part;
        some.first[2] += lo * part.step[2] - place, some.count[2] = hi - lo;
        T numbers[L];
        keep(numbers, b.line[i]);
        store(part.at + lo * part.stride[2], some, numbers);
      }
    });
  }

  // Spectra of some lines, a lane each.
  void forward_lines(const Part<const T> *parts, T *const *to, i64 count, i64 step, const Buffers &b) {
    T *flat = reinterpret_cast<T *>(b.other);
    const i64 pitch = round_up(s.axis[2], L);
    std::memset(flat, 0, size_t(L * pitch) * sizeof(T));
    for (i64 l = 0; l < count; ++l) {
      const Part<const T> &part = parts[l];
      T *line = flat + l * pitch + part.first[2];
      const T *x = part.at;
      if (part.stride[2] == 1 && part.step[2] == 1)
        std::memcpy(line, x, size_t(part.count[2]) * sizeof(T));
      else
        for (i64 i = 0; i < part.count[2]; ++i) line[i * part.step[2]] = x[i * part.stride[2]];
    }
    V v[L];
    for (i64 i = 0; i < pitch; i += L) {
      for (i64 l = 0; l < L; ++l) v[l] = load(flat + l * pitch + i);
      turn(v);
      for (i64 l = 0; l < L; ++l) b.line[i + l] = v[l];
    }
    spectra_of_lines(to, count, step, b);
  }

  // The same of lines that the lanes of a buffer hold.
  void spectra_of_lines(T *const *to, i64 count, i64 step, const Buffers &b) {
    V v[L];
    plans.real->exec(b.line, T(1), true, b.other);
    for (i64 k = 0; k < s.across * LINE<T>; k += L)
      for (int part_of = 0; part_of < 2; ++part_of) {
        for (i64 l = 0; l < L; ++l) v[l] = has(k + l, part_of) ? b.line[half(k + l, part_of)] : V{};
        turn(v);
        for (i64 l = 0; l < count; ++l) keep(to[l] + k / LINE<T> * step + part_of * LINE<T> + k % LINE<T>, v[l]);
      }
  }

  void lines_of_spectra(const T *const *from, i64 count, i64 step, const Buffers &b) {
    V v[L];
    for (i64 k = 0; k < s.across * LINE<T>; k += L)
      for (int part_of = 0; part_of < 2; ++part_of) {
        for (i64 l = 0; l < L; ++l) v[l] = l < count ? load(from[l] + k / LINE<T> * step + part_of * LINE<T> + k % LINE<T>) : V{};
        turn(v);
        for (i64 l = 0; l < L; ++l)
          if (has(k + l, part_of)) b.line[half(k + l, part_of)] = v[l];
      }
    plans.real->exec(b.line, T(1) / T(s.reals), false, b.other);
  }

  template <class Store>
  void backward_lines(const T *const *from, i64 count, i64 step, const Buffers &b, const Store &store) {
    V v[L];
    lines_of_spectra(from, count, step, b);
    T *flat = reinterpret_cast<T *>(b.other);
    const i64 pitch = round_up(s.axis[2], L);
    for (i64 i = 0; i < pitch; i += L) {
      for (i64 l = 0; l < L; ++l) v[l] = b.line[i + l];
      turn(v);
      for (i64 l = 0; l < L; ++l) keep(flat + l * pitch + i, v[l]);
    }
    for (i64 l = 0; l < count; ++l) store(l, flat + l * pitch);
  }

  // Of a line of real numbers the transform has the real and the imaginary part of each frequency, but those that are zero.
  bool has(i64 k, int imaginary) const { return imaginary ? k > 0 && 2 * k < s.axis[2] : 2 * k <= s.axis[2]; }
  static i64 half(i64 k, int imaginary) { return imaginary ? 2 * k : k ? 2 * k - 1 : 0; }

  // Along axis d, from the places of a part to all.
  template <class P>
  void across(int d, const P &part, i64 a, const Column &from, const Column &to, const Buffers &b) {
    Pair *line = reinterpret_cast<Pair *>(b.line);
    for (i64 v = 0; v < LINE<T>; v += L) {
      if (part.count[d] < s.axis[d]) std::memset(static_cast<void *>(line), 0, size_t(s.axis[d]) * sizeof(Pair));
      for (i64 i = 0; i < part.count[d]; ++i) {
        const i64 place = part.first[d] + i * part.step[d];
        const Pair value = pair(from.at + place * from.step + v);
        line[place] = s.folded ? value * conjugate(root(place, a, v)) : value;
      }
      plans.complex[d]->exec(line, T(1), true, reinterpret_cast<Pair *>(b.other));
      for (i64 i = 0; i < s.axis[d]; ++i) put(to.at + i * to.step + v, line[i]);
    }
  }

  // Along axis d, from all places to those of a part.
  void back(int d, const Part<T> &part, i64 a, const Column &from, const Column &to, const Buffers &b) {
    Pair *line = reinterpret_cast<Pair *>(b.line);
    for (i64 v = 0; v < LINE<T>; v += L) {
      for (i64 i = 0; i < s.axis[d]; ++i) line[i] = pair(from.at + i * from.step + v);
      plans.complex[d]->exec(line, T(1), false, reinterpret_cast<Pair *>(b.other));
      for (i64 i = 0; i < part.count[d]; ++i) {
        const i64 place = part.first[d] + i * part.step[d];
        put(to.at + place * to.step + v, s.folded ? line[place] * root(place, a, v) : line[place]);
      }
    }
  }

  // By which frequencies of a folded segment's line turn, those from v on of line a of them.
  Pair root(i64 place, i64 a, i64 v) const {
    const Pair turn = pair(plans.turns.data() + place * ROW<T> + v);
    const auto &start = plans.starts[size_t(place * s.across + a)];
    return Pair(turn.r * start.r - turn.i * start.i, turn.r * start.i + turn.i * start.r);
  }
  static Pair conjugate(const Pair &p) { return Pair(p.r, -p.i); }

  static Pair pair(const T *from) { return Pair(load(from), load(from + LINE<T>)); }
  static void put(T *to, const Pair &p) { keep(to, p.r), keep(to + LINE<T>, p.i); }
  static V load(const T *from) { return V(*reinterpret_cast<const typename Vec<T>::type *>(from)); }
  static void keep(T *to, V v) { *reinterpret_cast<typename Vec<T>::type *>(to) = v; }
  static void turn(V *v) { transpose_square<T>(reinterpret_cast<typename Vec<T>::type *>(v)); }

  const Sizes &s;
  const Plans<T> &plans;
  char *first;
  T *spectrum;
};
