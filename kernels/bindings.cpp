// The functions of calls.hpp as Python sees them.
#include "calls.hpp"
#include "fft/fft.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace ooc {
namespace {

// Called without the interpreter's lock: other threads go on meanwhile.
template <typename F, typename... More>
void call(py::module_ &m, const char *name, F function, const More &...more) {
  m.def(name, function, py::call_guard<py::gil_scoped_release>(), more...);
}

void bind_copies(py::module_ &m) {
  call(m, "copy_strided", &staging::copy_strided, py::arg("dst"), py::arg("dst_strides"), py::arg("src"), py::arg("src_strides"),
        py::arg("shape"), py::arg("itemsize"), py::arg("threads") = 1,
        "Copies between strided views that do not overlap; strides in bytes.");
}

void bind_arena(py::module_ &m) {
  call(m, "place_buffers", &place_buffers, py::arg("begins"), py::arg("ends"), py::arg("longer"), py::arg("nbytes"),
        py::arg("align"), py::arg("best_fit"), py::arg("limit"),
        "Offsets of buffers in this order, each in the smallest or the lowest gap between its neighbours in time; until `longer` "
        "where that ends below a limit.");
  call(m, "band_seconds", &band_seconds, py::arg("lanes"), py::arg("load"), py::arg("room"), py::arg("bands"), py::arg("turn"),
        py::arg("per_byte"), py::arg("tiny"), py::arg("others"),
        "Seconds of bands with so much on their lanes (f64, four a band), so many bytes that are there, and room for more.");
}

void bind_pointwise(py::module_ &m) {
  call(m, "pointwise", &pointwise, py::arg("dst"), py::arg("dst_dtype"), py::arg("dst_strides"), py::arg("src"),
        py::arg("src_dtype"), py::arg("src_strides"), py::arg("shape"), py::arg("bias"), py::arg("act"),
        py::arg("coef"), py::arg("threads") = 1,
        "dst = convert(act(src + bias[k])); dst may be src. bias (0: none) has the compute dtype.");
  call(m, "blend", &blend, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("x"), py::arg("x_strides"),
        py::arg("z"), py::arg("z_strides"), py::arg("shape"), py::arg("bias"), py::arg("alpha"), py::arg("beta"),
        py::arg("act"), py::arg("coef"), py::arg("threads") = 1,
        "y = act(alpha * x + beta * z + bias[k]); x and z may be broadcast (strides of 0), y may be x or z. z is not "
        "read if beta is 0. bias (0: none) has the compute dtype.");
  call(m, "multiply", &multiply, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("x"), py::arg("x_strides"),
        py::arg("z"), py::arg("z_strides"), py::arg("shape"), py::arg("bias"), py::arg("act"), py::arg("coef"),
        py::arg("threads") = 1, "y = act(x * z + bias[k]), as blend.");
  call(m, "pool_fprop", &pool_fprop, py::arg("kind"), py::arg("dtype"), py::arg("x"), py::arg("x_shape"),
        py::arg("x_strides"), py::arg("y"), py::arg("y_shape"), py::arg("y_strides"), py::arg("window"),
        py::arg("stride"), py::arg("pad_lo"), py::arg("threads") = 1,
        "Max (0), average counting padding (1) or not (2); x position = out * stride - pad_lo + i.");
}

void bind_convert(py::module_ &m) {
  call(m, "convert_in", &convert_in, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("stored"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("scales"), py::arg("offsets"), py::arg("scale"), py::arg("offset"),
        py::arg("threads") = 1,
        "y = x * scale + offset of integers x; scales and offsets (f64, one per channel; 0: none) take the place of both.");
  call(m, "convert_out", &convert_out, py::arg("stored"), py::arg("y"), py::arg("y_strides"), py::arg("dtype"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("threads") = 1,
        "y = x as integers: rounded half to even, held within their range, 0 for NaN.");
}

void bind_functions(py::module_ &m) {
  call(m, "function", &function, py::arg("of"), py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("a"), py::arg("b"), py::arg("threads") = 1,
        "y = f(x), a function of ooc.ops.function by its place there, of x and the numbers a and b.");
  call(m, "binary", &binary, py::arg("of"), py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("z"), py::arg("z_strides"), py::arg("shape"), py::arg("threads") = 1,
        "y = f(x, z), a function of ooc.ops.binary by its place there.");
}

void bind_matmul(py::module_ &m) {
  call(m, "matmul", &matmul, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("acc"), py::arg("acc_strides"),
       py::arg("a"), py::arg("a_strides"), py::arg("b"), py::arg("b_strides"), py::arg("shape"), py::arg("alpha"), py::arg("more"),
       py::arg("last"), py::arg("run"), py::arg("begin"), py::arg("threads") = 1,
       "y = alpha * (acc + a b) where last, else acc += a b; without more acc counts as 0. shape: samples, heads, rows, columns, c; "
       "strides of b: of samples, heads, columns, c; run: terms that are summed before they are added, 0: all one after the other; "
       "begin: of the first one among all.");
}

void bind_attention(py::module_ &m) {
  call(m, "attention", &attention, py::arg("of"), py::arg("dtype"), py::arg("data"), py::arg("strides"), py::arg("grouped"),
       py::arg("shape"), py::arg("depth"), py::arg("scale"), py::arg("more"), py::arg("last"), py::arg("threads") = 1,
       "A part of attention, by its place in ooc.ops.attention. data: addresses of q, k, v, bias, mask, sums, dots, dy, the result and "
       "its partial sums (0: none); strides: of samples, heads (of the biases: in a group), rows and depth of each; grouped: heads of a "
       "group, and from group to group of bias and mask; shape: samples, heads, queries, keys, depth of q.");
}

void bind_resize(py::module_ &m) {
  call(m, "resize", &resize, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("shape"), py::arg("x"),
        py::arg("x_strides"), py::arg("tables"), py::arg("mixed"), py::arg("threads") = 1,
        "y by tables of x: for d, h and w the addresses of the first source of each result, the second, and the share of that; "
        "mixed: whether shares count.");
}

void bind_grid_sample(py::module_ &m) {
  call(m, "grid_sample", &grid_sample, py::arg("codes"), py::arg("dtype"), py::arg("data"), py::arg("strides"), py::arg("results"),
        py::arg("lines"), py::arg("limits"), py::arg("workspace"), py::arg("threads") = 1,
        "A pass of ooc.ops.grid_sample. codes: the pass (0 y, 1 dx, 2 dgrid), mode, padding, aligned, spatial axes, whether sums go "
        "on, whether they end; data: addresses of x, grid, dy, the result and its partial sums; results: n, channels, d, h, w of a "
        "block; lines: for d, h and w the extent of x, where what is held of it begins and how much that is; limits: of each the "
        "addresses of from where to where results may read.");
}

void bind_codec(py::module_ &m) {
  call(m, "pack_zeros", &pack_zeros, py::arg("x"), py::arg("count"), py::arg("item"), py::arg("target"), py::arg("room"),
        py::arg("threads") = 1,
        "Packs items of 2, 4 or 8 bytes without the zeros. Bytes written, -1 where they are more than `room`.");
  call(m, "unpack_zeros", &unpack_zeros, py::arg("source"), py::arg("begins"), py::arg("kepts"), py::arg("count"),
        py::arg("item"), py::arg("y"), py::arg("threads") = 1,
        "The inverse, for blocks that begin there and keep so many items (i64). The first block whose masks say otherwise, and "
        "nothing written; else -1.");
}

void bind_act_backward(py::module_ &m) {
  call(m, "act_backward", &act_backward, py::arg("dtype"), py::arg("dx"), py::arg("dx_strides"), py::arg("y"),
        py::arg("y_strides"), py::arg("dy"), py::arg("dy_strides"), py::arg("shape"), py::arg("act"), py::arg("coef"),
        py::arg("threads") = 1, "dx = dy * act'(x) where y = act(x); dx may be y or dy.");
}

void bind_pool_backward(py::module_ &m) {
  call(m, "pool_backward_workspace", &pool_backward_workspace, py::arg("dtype"), py::arg("dx_shape"), py::arg("window"),
        py::arg("stride"), py::arg("threads") = 1, "Bytes pool_backward needs to run on that many threads.");
  call(m, "pool_backward", &pool_backward, py::arg("kind"), py::arg("dtype"), py::arg("dx"), py::arg("dx_strides"),
        py::arg("dx_lo"), py::arg("dx_shape"), py::arg("x"), py::arg("x_strides"), py::arg("x_lo"), py::arg("x_shape"),
        py::arg("dy"), py::arg("dy_strides"), py::arg("dy_lo"), py::arg("dy_shape"), py::arg("extent"),
        py::arg("window"), py::arg("stride"), py::arg("pad"), py::arg("workspace") = 0,
        py::arg("workspace_bytes") = 0, py::arg("threads") = 1,
        "dx = what the outputs of block dy give to the inputs of block dx: through the first maximum (0), averages "
        "counting padding (1) or not (2). Blocks are placed by their spatial origins (_lo) in the whole tensors; x "
        "must hold the windows of dy.");
}

void bind_optimizer(py::module_ &m) {
  call(m, "sgd", &sgd, py::arg("types"), py::arg("data"), py::arg("strides"), py::arg("shape"), py::arg("rates"),
        py::arg("threads") = 1,
        "types and data: dtypes and addresses of q, u, h, p, g, v, of which u, h and v may be 0. rates: lr, momentum, weight "
        "decay, whether Nesterov's; at last what g is multiplied by: 0 for 1, below 0 where nothing moves. Each result may be "
        "one of the inputs.");
  call(m, "adam", &adam, py::arg("types"), py::arg("data"), py::arg("strides"), py::arg("shape"), py::arg("rates"),
        py::arg("threads") = 1,
        "As sgd, of q, r, s, h, p, g, m, v. rates: lr, beta1, beta2, eps, weight decay, number of the step, whether the decay "
        "is apart.");
  call(m, "rmsprop", &rmsprop, py::arg("types"), py::arg("data"), py::arg("strides"), py::arg("shape"), py::arg("rates"),
        py::arg("threads") = 1,
        "As sgd, of q, s, u, c, h, p, g, v, b, a. rates: lr, alpha, eps, weight decay, momentum.");
  call(m, "accrue", &accrue, py::arg("types"), py::arg("data"), py::arg("strides"), py::arg("shape"), py::arg("rates"),
        py::arg("threads") = 1,
        "r = keep * a + take * x, of r, x, a; a share of 0 leaves its term out. rates: keep, take.");
}

void bind_reduce(py::module_ &m) {
  call(m, "reduce_sum", &reduce_sum, py::arg("dtype"), py::arg("acc"), py::arg("acc_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("alpha"), py::arg("accumulate"), py::arg("threads") = 1,
        "acc (f64) = [acc +] alpha * sum of x over the axes on which acc has stride 0.");
  call(m, "reduce_product", &reduce_product, py::arg("dtype"), py::arg("acc"), py::arg("acc_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("y"), py::arg("y_strides"), py::arg("shape"), py::arg("alpha"),
        py::arg("accumulate"), py::arg("threads") = 1,
        "acc (f64) = [acc +] alpha * sum of x * y over the axes on which acc has stride 0.");
  call(m, "bn_moments", &bn_moments, py::arg("dtype"), py::arg("acc"), py::arg("row_stride"), py::arg("acc_strides"),
        py::arg("x"), py::arg("x_strides"), py::arg("shape"), py::arg("accumulate"), py::arg("threads") = 1,
        "Count, mean and sum of squared distances from the mean, row_stride apart in acc (f64), [joined with acc's,] "
        "over the axes on which acc has stride 0.");
  call(m, "bn_backward_sums", &bn_backward_sums, py::arg("dtype"), py::arg("acc"), py::arg("row_stride"),
        py::arg("acc_strides"), py::arg("x"), py::arg("x_strides"), py::arg("dy"), py::arg("dy_strides"),
        py::arg("shape"), py::arg("mean"), py::arg("rstd"), py::arg("stat_strides"), py::arg("accumulate"),
        py::arg("threads") = 1,
        "acc (f64) = [acc +] the sums of dy * (x - mean) * rstd and, row_stride further, of dy.");
}

void bind_batch_norm(py::module_ &m) {
  call(m, "bn_apply", &bn_apply, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("mean"), py::arg("rstd"), py::arg("scale"), py::arg("bias"),
        py::arg("stat_strides"), py::arg("act"), py::arg("coef"), py::arg("threads") = 1,
        "y = act((x - mean) * rstd * scale + bias); the statistics are f64, scale and bias may be 0 (none).");
  call(m, "bn_backward_apply", &bn_backward_apply, py::arg("dtype"), py::arg("dx"), py::arg("dx_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("dy"), py::arg("dy_strides"), py::arg("shape"), py::arg("mean"),
        py::arg("rstd"), py::arg("scale"), py::arg("dscale"), py::arg("dbias"), py::arg("stat_strides"),
        py::arg("count"), py::arg("threads") = 1,
        "dx = scale * rstd * (dy - (dbias + xhat * dscale) / count) with xhat = (x - mean) * rstd; scale may be 0 "
        "(none).");
}

void bind_direct(py::module_ &m) {
  call(m, "isa", &isa, "Instruction set of the kernels in use.");
  call(m, "peak", &peak, py::arg("rounds"), py::arg("threads"),
        "Multiply-adds of f32 on registers alone, shared by threads, as many rounds in each; how many were done.");
  call(m, "direct_workspace", &direct_workspace, py::arg("pass_"), py::arg("dtype"), py::arg("x_shape"),
        py::arg("w_shape"), py::arg("y_shape"), py::arg("stride"), py::arg("dilation"), py::arg("groups"),
        py::arg("threads"),
        "[packed_bytes, scratch_bytes, lean_bytes] that direct_conv wants: the first two together, or the third where threads are "
        "to pack the weights of their own tiles, or to compute weight gradients in small parts. Enough for smaller extents too.");
  call(m, "direct_conv", &direct_conv, py::arg("pass_"), py::arg("dtype"), py::arg("x"), py::arg("x_shape"),
        py::arg("x_strides"), py::arg("w"), py::arg("w_shape"), py::arg("w_strides"), py::arg("y"),
        py::arg("y_shape"), py::arg("y_strides"), py::arg("stride"), py::arg("dilation"), py::arg("pad_lo"),
        py::arg("groups"), py::arg("bias"), py::arg("act"), py::arg("coef"), py::arg("accumulate"),
        py::arg("workspace"), py::arg("workspace_bytes"), py::arg("packed"), py::arg("threads"), py::arg("chained") = true,
        "Forward, data-gradient or weight-gradient convolution of strided views.");
  call(m, "winograd_conv", &winograd_conv, py::arg("pass_"), py::arg("dtype"), py::arg("x"), py::arg("x_shape"),
        py::arg("x_strides"), py::arg("w"), py::arg("w_shape"), py::arg("w_strides"), py::arg("y"),
        py::arg("y_shape"), py::arg("y_strides"), py::arg("stride"), py::arg("dilation"), py::arg("pad_lo"),
        py::arg("groups"), py::arg("bias"), py::arg("act"), py::arg("coef"), py::arg("accumulate"),
        py::arg("workspace"), py::arg("workspace_bytes"), py::arg("threads"),
        "The same by Winograd's F(2 x 2, 3 x 3), in any workspace; False, and nothing written, where that does not serve.");
  call(m, "has_paired_conv", &has_paired_conv, "Whether paired_conv can be called here.");
  call(m, "paired_conv", &paired_conv, py::arg("pass_"), py::arg("dtype"), py::arg("x"), py::arg("x_shape"),
        py::arg("x_strides"), py::arg("w"), py::arg("w_shape"), py::arg("w_strides"), py::arg("y"),
        py::arg("y_shape"), py::arg("y_strides"), py::arg("stride"), py::arg("dilation"), py::arg("pad_lo"),
        py::arg("groups"), py::arg("bias"), py::arg("act"), py::arg("coef"), py::arg("accumulate"),
        py::arg("workspace"), py::arg("workspace_bytes"), py::arg("packed"), py::arg("threads"), py::arg("rounded"),
        "Forward convolution, or the data gradient at stride 1, of x (dy) and w in bf16 to f32, or rounded to bf16, by dot products of pairs: whether it "
        "did (else nothing was written, as there is too little room), and whether packed filters are left in the workspace.");
  py::class_<fft::Tables, std::shared_ptr<fft::Tables>>(m, "FftTables", "What is prepared once for transforms of some lengths.")
      .def(py::init(&fft_tables), py::arg("dtype"), py::arg("lengths"), py::arg("folded") = 1);
  call(m, "fft_conv", &fft_conv, py::arg("pass_"), py::arg("dtype"), py::arg("x"), py::arg("x_shape"),
        py::arg("x_strides"), py::arg("w"), py::arg("w_shape"), py::arg("w_strides"), py::arg("y"),
        py::arg("y_shape"), py::arg("y_strides"), py::arg("stride"), py::arg("dilation"), py::arg("pad_lo"),
        py::arg("groups"), py::arg("bias"), py::arg("act"), py::arg("coef"), py::arg("accumulate"),
        py::arg("workspace"), py::arg("workspace_bytes"), py::arg("packed"), py::arg("threads"), py::arg("tables"),
        "The same by transforms of segments of the tables' lengths, at stride 1; False, and nothing written, where there is too little "
        "room or numbers are not finite.");
}

void bind_special(py::module_ &m) {
  call(m, "special", &special, py::arg("dtype"), py::arg("x"), py::arg("shape"), py::arg("strides"),
        py::arg("threads") = 1, "0 where all are finite, 1 where the worst is an infinity, 2 where it is NaN.");
}

}  // namespace

void bind_calls(py::module_ &m) {
  bind_copies(m);
  bind_arena(m);
  bind_pointwise(m);
  bind_convert(m);
  bind_functions(m);
  bind_matmul(m);
  bind_attention(m);
  bind_resize(m);
  bind_grid_sample(m);
  bind_codec(m);
  bind_act_backward(m);
  bind_pool_backward(m);
  bind_optimizer(m);
  bind_reduce(m);
  bind_batch_norm(m);
  bind_direct(m);
  bind_special(m);
}

}  // namespace ooc
