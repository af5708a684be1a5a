// Products of matrices, one for each sample and head.

// t = a b y; whole = whether a, b are transposed, terms of a run (0: all); real = alpha. Sums go along c in its order, by runs.
KERNEL(matmul) {
  const Tensor &l = a.t[0], &r = a.t[1];
  const bool l_turned = number(a, 0), r_turned = number(a, 1);
  const int axis = l_turned ? 3 : 4, run = number(a, 2);
  EACH(at, a.t[2]) {
    const Index n = at.x[0], k = at.x[1], row = at.x[3], column = at.x[4];
    C total = a.first || !ACC.data ? (C)0 : wide(ACC, at), sum = run ? (C)0 : total;
    for (Index c = begins(l, axis); c < ends(l, axis); ++c) {
      if (run && c % run == 0) total += sum, sum = 0;
      const C factor = load(l, l_turned ? offset(l, n, k, 0, c, row) : offset(l, n, k, 0, row, c));
      sum += factor * load(r, r_turned ? offset(r, n, k, 0, column, c) : offset(r, n, k, 0, c, column));
    }
    if (run) sum += total;
    if (!a.last) wide(ACC, at) = sum;
    else store(a.t[2], at, sum * (C)a.real[0]);
  }
}
