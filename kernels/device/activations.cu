// Activations: codes and meaning as in ooc/ops/activation.py.

DEVICE C activate(Index act, C coef, C z) {
  switch (act) {
    case 1: return z < 0 ? (C)0 : z;                                         // relu
    case 2: z = z < 0 ? (C)0 : z; return z > coef ? coef : z;                // clipped_relu
    case 3: return z < 0 ? coef * (C)expm1((double)z) : z;                   // elu
    case 4: return z > 0 ? z : coef * z;                                     // leaky_relu
    case 5: { C e = exp(z < 0 ? z : -z); return z >= 0 ? 1 / (1 + e) : e / (1 + e); }  // sigmoid
    case 6: return tanh(z);
    default: return z;
  }
}

// From the output y and its gradient dy. Where a unit is shut nothing passes, NaN and infinity included; one that holds NaN
// is not shut.
DEVICE C pull_back(Index act, C coef, C y, C dy) {
  switch (act) {
    case 1: return y <= 0 ? (C)0 : dy;
    case 2: return y <= 0 || y >= coef ? (C)0 : dy;
    case 3: return y <= 0 ? dy * (y + coef) : dy;
    case 4: return y > 0 ? dy : coef * dy;
    case 5: return dy * (y * (1 - y));
    case 6: return dy * ((1 - y) * (1 + y));  // of 1 - y * y little is left where |y| is almost 1
    default: return dy;
  }
}
