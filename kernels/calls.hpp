// What Python calls, file by file: arrays by address, with strides in elements (of copies in bytes). Only bindings.cpp knows of
// Python; these need no interpreter, and run without its lock.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "numbers.hpp"

namespace ooc {

using Ints = std::vector<i64>;
using Four = std::array<i64, 4>;
using Ten = std::array<uintptr_t, 10>;
using TenFours = std::array<Four, 10>;

// staging/copies.cpp
namespace staging {
void copy_strided(uintptr_t dst, const Ints &dst_strides, uintptr_t src, const Ints &src_strides, const Ints &shape,
                  i64 itemsize, int threads);
}

// arena.cpp
Ints place_buffers(const Ints &begins, const Ints &ends, const Ints &longer, const Ints &nbytes, i64 align, bool best_fit,
                   i64 limit);

// bands.cpp
double band_seconds(uintptr_t lanes, uintptr_t load, uintptr_t room, i64 bands, i64 turn, double per_byte, double tiny,
                    double others);

// pointwise.cpp
void pointwise(uintptr_t dst, int dst_dtype, const Five &dst_strides, uintptr_t src, int src_dtype,
               const Five &src_strides, const Five &shape, uintptr_t bias, int act, double coef, int threads);
void blend(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, uintptr_t z,
           const Five &z_strides, const Five &shape, uintptr_t bias, double alpha, double beta, int act, double coef,
           int threads);
void multiply(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, uintptr_t z,
              const Five &z_strides, const Five &shape, uintptr_t bias, int act, double coef, int threads);
void pool_fprop(int kind, int dtype, uintptr_t x, const Five &x_shape, const Five &x_strides, uintptr_t y,
                const Five &y_shape, const Five &y_strides, const Three &window, const Three &stride,
                const Three &pad_lo, int threads);

// convert.cpp
void convert_in(int dtype, uintptr_t y, const Five &y_strides, int stored, uintptr_t x, const Five &x_strides,
                const Five &shape, uintptr_t scales, uintptr_t offsets, double scale, double offset, int threads);
void convert_out(int stored, uintptr_t y, const Five &y_strides, int dtype, uintptr_t x, const Five &x_strides,
                 const Five &shape, int threads);

// functions.cpp
void function(int of, int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides,
              const Five &shape, double a, double b, int threads);
void binary(int of, int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, uintptr_t z,
            const Five &z_strides, const Five &shape, int threads);

// products/attention.cpp
void attention(int of, int dtype, const Ten &data, const TenFours &strides, const Three &grouped, const Five &shape, i64 depth,
               double scale, bool more, bool last, int threads);

// products/matmul.cpp
void matmul(int dtype, uintptr_t y, const Four &y_strides, uintptr_t acc, const Four &acc_strides, uintptr_t a,
            const Four &a_strides, uintptr_t b, const Four &b_strides, const Five &shape, double alpha, bool more, bool last,
            i64 run, i64 begin, int threads);

// resize.cpp
using Table = std::array<uintptr_t, 3>;  // addresses: first, second, share
void resize(int dtype, uintptr_t y, const Five &y_strides, const Five &shape, uintptr_t x, const Five &x_strides,
            const std::array<Table, 3> &tables, const std::array<bool, 3> &mixed, int threads);

// grid_sample.cpp
using Seven = std::array<int, 7>;  // the pass, mode, padding, aligned, axes, more, last
void grid_sample(const Seven &codes, int dtype, const std::array<uintptr_t, 5> &data, const std::array<Five, 5> &strides,
                 const Five &results, const std::array<std::array<i64, 3>, 3> &lines,
                 const std::array<std::array<uintptr_t, 2>, 3> &limits, uintptr_t workspace, int threads);

// codec.cpp
i64 pack_zeros(uintptr_t x, i64 count, int item, uintptr_t target, i64 room, int threads);
i64 unpack_zeros(uintptr_t source, uintptr_t begins, uintptr_t kepts, i64 count, int item, uintptr_t y, int threads);

// act_backward.cpp
void act_backward(int dtype, uintptr_t dx, const Five &dx_strides, uintptr_t y, const Five &y_strides, uintptr_t dy,
                  const Five &dy_strides, const Five &shape, int act, double coef, int threads);

// pool_backward.cpp
i64 pool_backward_workspace(int dtype, const Five &dx_shape, const Three &window, const Three &stride, int threads);
void pool_backward(int kind, int dtype, uintptr_t dx, const Five &dx_strides, const Three &dx_lo, const Five &dx_shape,
                   uintptr_t x, const Five &x_strides, const Three &x_lo, const Five &x_shape, uintptr_t dy,
                   const Five &dy_strides, const Three &dy_lo, const Five &dy_shape, const Three &extent,
                   const Three &window, const Three &stride, const Three &pad, uintptr_t workspace, i64 workspace_bytes,
                   int threads);

// optimizer.cpp
using Rates = std::array<double, 8>;
void sgd(const std::array<int, 6> &types, const std::array<uintptr_t, 6> &data,
         const std::array<Five, 6> &strides, const Five &shape, const Rates &rates, int threads);
void adam(const std::array<int, 8> &types, const std::array<uintptr_t, 8> &data,
          const std::array<Five, 8> &strides, const Five &shape, const Rates &rates, int threads);
void rmsprop(const std::array<int, 10> &types, const std::array<uintptr_t, 10> &data,
             const std::array<Five, 10> &strides, const Five &shape, const Rates &rates, int threads);
void accrue(const std::array<int, 3> &types, const std::array<uintptr_t, 3> &data,
            const std::array<Five, 3> &strides, const Five &shape, const Rates &rates, int threads);

// reduce.cpp
void reduce_sum(int dtype, uintptr_t acc, const Five &acc_strides, uintptr_t x, const Five &x_strides,
                const Five &shape, double alpha, bool accumulate, int threads);
void reduce_product(int dtype, uintptr_t acc, const Five &acc_strides, uintptr_t x, const Five &x_strides, uintptr_t y,
                    const Five &y_strides, const Five &shape, double alpha, bool accumulate, int threads);
void bn_moments(int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x, const Five &x_strides,
                const Five &shape, bool accumulate, int threads);
void bn_backward_sums(int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x,
                      const Five &x_strides, uintptr_t dy, const Five &dy_strides, const Five &shape, uintptr_t mean,
                      uintptr_t rstd, const Five &stat_strides, bool accumulate, int threads);

// batch_norm.cpp
void bn_apply(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, const Five &shape,
              uintptr_t mean, uintptr_t rstd, uintptr_t scale, uintptr_t bias, const Five &stat_strides, int act,
              double coef, int threads);
void bn_backward_apply(int dtype, uintptr_t dx, const Five &dx_strides, uintptr_t x, const Five &x_strides,
                       uintptr_t dy, const Five &dy_strides, const Five &shape, uintptr_t mean, uintptr_t rstd,
                       uintptr_t scale, uintptr_t dscale, uintptr_t dbias, const Five &stat_strides, double count,
                       int threads);

// isa.cpp
std::string isa();

// direct/direct.cpp
double peak(i64 rounds, int threads);
Ints direct_workspace(const std::string &pass, int dtype, const Ints &x_shape, const Ints &w_shape, const Ints &y_shape,
                      const Ints &stride, const Ints &dilation, i64 groups, int threads);
void direct_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape, const Ints &x_strides,
                 uintptr_t w, const Ints &w_shape, const Ints &w_strides, uintptr_t y, const Ints &y_shape,
                 const Ints &y_strides, const Ints &stride, const Ints &dilation, const Ints &pad_lo, i64 groups,
                 uintptr_t bias, int act, double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes,
                 bool packed, int threads, bool chained);
bool winograd_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape, const Ints &x_strides,
                   uintptr_t w, const Ints &w_shape, const Ints &w_strides, uintptr_t y, const Ints &y_shape,
                   const Ints &y_strides, const Ints &stride, const Ints &dilation, const Ints &pad_lo, i64 groups,
                   uintptr_t bias, int act, double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes,
                   int threads);

bool has_paired_conv();
std::pair<bool, bool> paired_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape, const Ints &x_strides,
                 uintptr_t w, const Ints &w_shape, const Ints &w_strides, uintptr_t y, const Ints &y_shape,
                 const Ints &y_strides, const Ints &stride, const Ints &dilation, const Ints &pad_lo, i64 groups,
                 uintptr_t bias, int act, double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes,
                 bool packed, int threads, bool rounded);

// special.cpp
int special(int dtype, uintptr_t x, const Five &shape, const Five &strides, int threads);

// fft/fft.cpp
namespace fft {
struct Tables;
}
std::shared_ptr<fft::Tables> fft_tables(int dtype, const Three &lengths, i64 folded);
bool fft_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape, const Ints &x_strides,
              uintptr_t w, const Ints &w_shape, const Ints &w_strides, uintptr_t y, const Ints &y_shape,
              const Ints &y_strides, const Ints &stride, const Ints &dilation, const Ints &pad_lo, i64 groups,
              uintptr_t bias, int act, double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes,
              bool packed, int threads, const fft::Tables &tables);

}  // namespace ooc
