// How far an optimizer goes: see ooc/ops/pacing.py.

// t = x a shares r; a share of 0 leaves its term out.
KERNEL(accrue) {
  const C keep = (C)one(a.t[2], 0), take = (C)one(a.t[2], 1);
  EACH(at, a.t[3]) {
    const C kept = keep != 0 ? keep * wide(a.t[1], at) : (C)0, taken = take != 0 ? take * load(a.t[0], at) : (C)0;
    wide(a.t[3], at) = kept + taken;
  }
}

// t = x before y: a thread for each of the sums.
KERNEL(squares) {
  const Tensor &x = a.t[0], &y = a.t[2];
  const Index lanes = (Index)y.extent[1];
  EACH(at, y) {
    double sum = !a.first ? exact(y, at) : a.t[1].data ? exact(a.t[1], at) : 0;
    const Index rest = begins(x, 4) % lanes, lane = at.x[1];
    for (Index w = begins(x, 4) + (lane < rest ? lane + lanes - rest : lane - rest); w < ends(x, 4); w += lanes) {
      const double v = load(x, offset(x, 0, 0, 0, 0, w));
      sum += TIMES(v, v);
    }
    exact(y, at) = sum;
  }
}

// t = rates controls state sums pace shares left; whole = where the number of the move goes, good steps until the loss scale is
// doubled; real = what it is not halved below. One thread: the state is where it was.
KERNEL(pace) {
  if (THREAD) return;
  const Tensor &rates = a.t[0], &controls = a.t[1], &state = a.t[2], &sums = a.t[3];
  const double due = one(controls, 0), most = one(controls, 2), decay = one(controls, 3), fixed = one(controls, 4);
  double scale = one(state, 0), good = one(state, 1), total = 0;
  const double moves = one(state, 2), rest = one(state, 3), by = one(controls, 1) / (fixed != 0 ? fixed : scale);
  for (Index i = 0; sums.data && i < (Index)sums.extent[1]; ++i) total += one(sums, i);
  const double norm = sqrt(total) * by;
  const bool finite = norm - norm == 0, moving = due != 0 && finite;
  if (due != 0 && fixed == 0) {
    good = finite ? good + 1 : 0;
    if (!finite) scale = scale / 2 < a.real[0] ? a.real[0] : scale / 2;
    if (good >= (double)a.whole[1]) { scale *= 2; good = 0; }
  }
  const double clipped = most / (norm + 1e-6);
  for (Index i = 0; i < 7; ++i) one(a.t[4], i) = i == (Index)a.whole[0] ? moves + 1 : one(rates, i);
  one(a.t[4], 7) = moving ? by * (clipped < 1 ? clipped : 1) : -1;
  one(a.t[5], 0) = moving ? decay : 1;
  one(a.t[5], 1) = moving ? 1 - decay : 0;
  one(a.t[6], 0) = scale;
  one(a.t[6], 1) = good;
  one(a.t[6], 2) = moves + moving;
  one(a.t[6], 3) = rest;
}
