// Whether Winograd's way serves a problem, and where it does, its result.

constexpr double DIRECT_CYCLES = 1.4;  // of the direct sum, for each that its multiply-adds take: measured at 1.3 to 1.6

// Whether it is a problem of this kind, and not one that the direct loops are as good at.
static bool winograd_serves(const Problem &p) {
  if (p.dtype != Dtype::f32 || p.f[0] > WINOGRAD_PAIRS || tiny(p) || is_depthwise(p)) return false;
  for (int d = 0; d < 3; ++d)
    if (p.stride[d] != 1 || (d > 0 && (p.f[d] != 3 || p.dilation[d] != 1))) return false;
  return true;
}

// False, and nothing written, where it does not serve the problem, lacks room, or would take longer than the direct sum.
static bool winograd(const Problem &p, const Operands &o) {
  if (!winograd_serves(p)) return false;
  const Gather<float> t = p.pass == Pass::dgrad ? backward_task<float>(p, o, Index3{}) : forward_task<float>(p, o);
  if (t.batch * outputs_of(t.ax) == 0 || t.ax[0].taps == 0) return false;
  const int team = team_for<float>(total_work(p), p.threads);
  const i64 bytes = o.workspace_bytes / p.threads / 64 * 64;
  const WinogradPlan plan = p.pass == Pass::wgrad ? winograd_wgrad_plan(t, bytes, team) : winograd_plan(t, bytes, team);
  if (!plan.found || plan.cost > DIRECT_CYCLES * FMA_CYCLES * total_work(p) / Vec<float>::lanes / team) return false;
  float *memory = static_cast<float *>(o.workspace);
  if (p.pass == Pass::wgrad)
    run_winograd_wgrad(WinogradWeights<float>{p, o, t}, plan, memory, team);
  else
    run_winograd(t, plan, memory, team);
  return true;
}
