// PyTorch as a peer, called from C++ in inference mode: the least that a call of it costs. Results go to given memory
// (`_out` forms, `copy_`) wherever there is such a form.

#include "peer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using at::Tensor;
using Work = std::function<void()>;

struct Row {
  std::vector<Tensor> in;
  Tensor out;
  std::vector<int64_t> ints;
  bool checked = true;
};

struct Prepared {
  Row row;
  Work work;
};

[[noreturn]] void unsupported(const std::string &what) { throw std::invalid_argument(what); }

at::ScalarType scalar_type(const std::string &name) {
  static const std::map<std::string, at::ScalarType> types = {
      {"bool", at::kBool},     {"i8", at::kChar},       {"u8", at::kByte},
      {"i16", at::kShort},     {"i32", at::kInt},       {"i64", at::kLong},
      {"f16", at::kHalf},      {"bf16", at::kBFloat16}, {"f32", at::kFloat},
      {"f64", at::kDouble},    {"complex64", at::kComplexFloat},
      {"complex128", at::kComplexDouble},
  };
  auto found = types.find(name);
  if (found == types.end()) unsupported("no tensors of " + name);
  return found->second;
}

Tensor tensor(const ep_peer_tensor &t) {
  at::IntArrayRef dims(t.dims, static_cast<size_t>(t.rank));
  return at::from_blob(t.data, dims, at::TensorOptions().dtype(scalar_type(t.dtype)));
}

using Unary = Tensor &(*)(Tensor &, const Tensor &);

const std::map<std::string, Unary> &unaries() {
  static const std::map<std::string, Unary> all = {
      {"exp", at::exp_out},     {"log", at::log_out},         {"sqrt", at::sqrt_out},
      {"rsqrt", at::rsqrt_out}, {"sin", at::sin_out},         {"cos", at::cos_out},
      {"tanh", at::tanh_out},   {"sigmoid", at::sigmoid_out}, {"silu", at::silu_out},
      {"erf", at::erf_out},     {"expm1", at::expm1_out},     {"mish", at::mish_out},
  };
  return all;
}

using Binary = Tensor &(*)(Tensor &, const Tensor &, const Tensor &);

const std::map<std::string, Binary> &binaries() {
  static const std::map<std::string, Binary> all = {
      {"add", [](Tensor &o, const Tensor &a, const Tensor &b) -> Tensor & { return at::add_out(o, a, b); }},
      {"sub", [](Tensor &o, const Tensor &a, const Tensor &b) -> Tensor & { return at::sub_out(o, a, b); }},
      {"mul", at::mul_out},
      {"max", at::maximum_out},
      {"min", at::minimum_out},
      {"pow", at::pow_out},
      {"floor_mod", at::remainder_out},
      {"less_than", at::lt_out},
      {"equal", at::eq_out},
      {"logical_and", at::logical_and_out},
      {"div",
       [](Tensor &o, const Tensor &a, const Tensor &b) -> Tensor & {
         return at::isIntegralType(a.scalar_type(), true) ? at::div_out(o, a, b, "trunc") : at::div_out(o, a, b);
       }},
  };
  return all;
}

// The elementwise calls, fills and copies.
Work elementwise(const std::string &call, Row &r) {
  if (auto f = unaries().find(call); f != unaries().end()) return [f = f->second, &r] { f(r.out, r.in[0]); };
  if (auto f = binaries().find(call); f != binaries().end())
    return [f = f->second, &r] { f(r.out, r.in[0], r.in[1]); };
  if (call == "relu") return [&r] { at::clamp_min_out(r.out, r.in[0], 0); };
  if (call == "gelu_erf") return [&r] { at::gelu_out(r.out, r.in[0]); };
  if (call == "gelu_tanh") return [&r] { at::gelu_out(r.out, r.in[0], "tanh"); };
  if (call == "sum_n")
    return [&r] {
      at::add_out(r.out, r.in[0], r.in[1]);
      for (size_t i = 2; i < r.in.size(); i++) at::add_out(r.out, r.out, r.in[i]);
    };
  if (call == "copy" || call == "cast" || call == "expand") return [&r] { r.out.copy_(r.in[0]); };
  if (call == "fill") return [&r] { r.out.fill_(1.5); };
  if (call == "zero") return [&r] { r.out.zero_(); };
  if (call == "where") return [&r] { at::where_out(r.out, r.in[0], r.in[1], r.in[2]); };
  if (call == "arange")
    return [&r] {
      at::arange_out(r.out, r.ints[0], r.ints[0] + r.ints[1] * r.out.numel(), r.ints[1]);
    };
  return nullptr;
}

// What works on rows of a matrix.
Work rowwise(const std::string &call, Row &r) {
  int64_t axis = r.ints.empty() ? 0 : r.ints[0];
  if (call == "softmax") return [&r, axis] { at::_softmax_out(r.out, r.in[0], axis, false); };
  if (call == "log_softmax") return [&r, axis] { at::_log_softmax_out(r.out, r.in[0], axis, false); };
  if (call == "softmax_backward")
    return [&r, axis] {
      at::_softmax_backward_data_out(r.out, r.in[1], r.in[0], axis, r.in[0].scalar_type());
    };
  if (call == "log_softmax_backward")
    return [&r, axis] {
      at::_log_softmax_backward_data_out(r.out, r.in[1], r.in[0], axis, r.in[0].scalar_type());
    };
  if (call == "layer_norm") {
    auto kind = r.in[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    if (at::isReducedFloatingType(r.in[0].scalar_type())) kind = r.in[0].scalar_type();
    auto statistic = at::empty({r.in[0].size(0), 1}, kind);
    auto other = at::empty_like(statistic);
    return [&r, statistic, other]() mutable {
      at::native_layer_norm_out(r.out, statistic, other, r.in[0], {r.in[0].size(1)}, r.in[1], r.in[2], 1e-5);
    };
  }
  if (call == "rms_norm") {
    r.checked = false;
    return [&r] { at::rms_norm(r.in[0], {r.in[0].size(1)}, r.in[1], 1e-5); };
  }
  if (call == "reduce_sum") return [&r, axis] { at::sum_out(r.out, r.in[0], axis); };
  if (call == "reduce_mean") return [&r, axis] { at::mean_out(r.out, r.in[0], axis); };
  if (call == "reduce_max") return [&r, axis] { at::amax_out(r.out, r.in[0], axis); };
  if (call == "reduce_min") return [&r, axis] { at::amin_out(r.out, r.in[0], axis); };
  if (call == "reduce_prod") return [&r, axis] { at::prod_out(r.out, r.in[0], axis); };
  if (call == "reduce_any") return [&r, axis] { at::any_out(r.out, r.in[0], axis); };
  if (call == "reduce_all") return [&r, axis] { at::all_out(r.out, r.in[0], axis); };
  if (call == "argmax") return [&r, axis] { at::argmax_out(r.out, r.in[0], axis); };
  if (call == "argmin") return [&r, axis] { at::argmin_out(r.out, r.in[0], axis); };
  return nullptr;
}

Tensor window(const Tensor &x, const std::vector<int64_t> &ints, at::IntArrayRef extent) {
  size_t rank = ints.size() / 2;
  Tensor v = x;
  for (size_t d = 0; d < rank; d++) {
    int64_t start = ints[d], step = ints[rank + d];
    v = v.slice(static_cast<int64_t>(d), start, start + (extent[d] - 1) * step + 1, step);
  }
  return v;
}

// What moves elements. The views are made once: making them is no part of the work.
Work movers(const std::string &call, Row &r) {
  if (call == "permute") return [&r, v = r.in[0].permute(r.ints)] { r.out.copy_(v); };
  if (call == "slice") return [&r, v = window(r.in[0], r.ints, r.out.sizes())] { r.out.copy_(v); };
  if (call == "gather") return [&r] { at::index_select_out(r.out, r.in[1], r.ints[0], r.in[0]); };
  if (call == "batch_gather") {
    auto index = r.in[0].unsqueeze(2).expand(r.out.sizes());
    return [&r, index] { at::gather_out(r.out, r.in[1], 1, index); };
  }
  if (call == "scatter_add") return [&r] { r.out.index_add_(r.ints[0], r.in[0], r.in[1]); };
  if (call == "one_hot") {
    if (r.in[0].scalar_type() != at::kLong) unsupported("scatter_ takes 64-bit indices");
    return [&r, index = r.in[0].unsqueeze(1)] { r.out.zero_().scatter_(1, index, 1); };
  }
  if (call == "pad") {
    // Filling and then copying the inside is faster here than `constant_pad_nd`, which makes a tensor of its own.
    Tensor inside = r.out, source = r.in[0];
    size_t rank = r.ints.size() / 2;
    for (size_t d = 0; d < rank; d++) {
      int64_t before = r.ints[d], after = r.ints[rank + d], axis = static_cast<int64_t>(d);
      int64_t from = std::max<int64_t>(before, 0), cut = std::max<int64_t>(-before, 0);
      int64_t length = r.in[0].size(axis) - cut - std::max<int64_t>(-after, 0);
      inside = inside.narrow(axis, from, length);
      source = source.narrow(axis, cut, length);
    }
    return [&r, inside, source]() mutable {
      r.out.zero_();
      inside.copy_(source);
    };
  }
  return nullptr;
}

Work products(const std::string &call, Row &r) {
  if (call != "matmul") return nullptr;
  Tensor a = r.ints[0] ? r.in[0].transpose(-1, -2) : r.in[0];
  Tensor b = r.ints[1] ? r.in[1].transpose(-1, -2) : r.in[1];
  if (a.dim() == 2 && b.dim() == 2) return [&r, a, b] { at::mm_out(r.out, a, b); };
  if (a.dim() == 3 && b.dim() == 3) return [&r, a, b] { at::bmm_out(r.out, a, b); };
  return [&r, a, b] { at::matmul_out(r.out, a, b); };
}

void tell(const char *what, char *error, size_t bytes) {
  if (bytes == 0) return;
  std::strncpy(error, what, bytes - 1);
  error[bytes - 1] = 0;
}

} // namespace

extern "C" const char *ep_peer_start(int threads) {
  at::set_num_threads(threads);
  // For the rest of the process.
  static c10::InferenceMode mode;
  return TORCH_VERSION;
}

extern "C" void *ep_peer_prepare(const ep_peer_row *row, int *checked, char *error, size_t error_bytes) {
  try {
    auto prepared = std::make_unique<Prepared>();
    Row &r = prepared->row;
    for (size_t i = 0; i < row->num_inputs; i++) r.in.push_back(tensor(row->inputs[i]));
    r.out = tensor(row->output);
    r.ints.assign(row->ints, row->ints + row->num_ints);
    for (auto part : {elementwise, rowwise, movers, products})
      if (!prepared->work) prepared->work = part(row->call, r);
    if (!prepared->work) unsupported(std::string("no call ") + row->call);
    *checked = r.checked;
    return prepared.release();
  } catch (const std::exception &e) {
    tell(e.what(), error, error_bytes);
    return nullptr;
  }
}

extern "C" int ep_peer_run(void *prepared, size_t times, char *error, size_t error_bytes) {
  try {
    const Work &work = static_cast<Prepared *>(prepared)->work;
    for (size_t i = 0; i < times; i++) work();
    return 0;
  } catch (const std::exception &e) {
    tell(e.what(), error, error_bytes);
    return 1;
  }
}

extern "C" void ep_peer_release(void *prepared) { delete static_cast<Prepared *>(prepared); }
