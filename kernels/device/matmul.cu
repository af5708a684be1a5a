// Products of matrices, one for each sample and head.

// t = a b y; whole = whether a, b are transposed; real = alpha. Sums go along c in its order.
KERNEL(matmul) {
  const Tensor &l = a.t[0], &r = a.t[1];
  const bool l_turned = number(a, 0), r_turned = number(a, 1);
  const int axis = l_turned ? 3 : 4;
  EACH(at, a.t[2]) {
    const Index n = at.x[0], k = at.x[1], row = at.x[3], column = at.x[4];
    C sum = a.first || !ACC.data ? (C)0 : wide(ACC, at);
    for (Index c = begins(l, axis); c < ends(l, axis); ++c) {
      const C factor = load(l, l_turned ? offset(l, n, k, 0, c, row) : offset(l, n, k, 0, row, c));
      sum += factor * load(r, r_turned ? offset(r, n, k, 0, column, c) : offset(r, n, k, 0, c, column));
    }
    if (!a.last) wide(ACC, at) = sum;
    else store(a.t[2], at, sum * (C)a.real[0]);
  }
}
