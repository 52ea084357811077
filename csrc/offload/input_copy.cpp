#include "offload/input_copy.hpp"

namespace gramary::offload {
namespace {

template <class T>
void take_array(const T* shared, std::int64_t count, std::vector<T>& own) {
    const auto size = static_cast<std::size_t>(count);
    if (own.size() < size) own.resize(size);
    copy_out(shared, size, own.data());
}

}  // namespace

bool InputCopy::take(const Region& region, const Input& input) {
    num_tokens_ = num_requests_ = 0;
    const std::int64_t num_tokens = load_acquire(input.header->num_tokens);
    const std::int64_t num_requests = load_acquire(input.header->num_requests);
    if (num_tokens < 0 || num_tokens > region.max_tokens) return false;
    if (num_requests < 0 || num_requests > region.max_requests) return false;
    has_history_ = load_acquire(input.header->has_history) != 0;
    widest_ = region.history_length;
    take_array(input.tokens, num_tokens, tokens_);
    take_array(input.starts, num_requests + 1, starts_);
    if (has_history_) take_array(input.history, num_requests * widest_, history_);
    num_tokens_ = num_tokens;
    num_requests_ = num_requests;
    return true;
}

FlatBatch InputCopy::batch(std::int64_t width) {
    FlatBatch batch{
        {tokens_.data(), true}, num_tokens_, starts_.data(), num_requests_, {nullptr, true}};
    if (!has_history_) return batch;
    batch.history.data = history_.data();
    if (width == widest_) return batch;
    narrowed_.clear();
    for (std::int64_t r = 1; r <= num_requests_; ++r) {
        const auto end = history_.begin() + r * widest_;
        narrowed_.insert(narrowed_.end(), end - width, end);
    }
    batch.history.data = narrowed_.data();
    return batch;
}

}  // namespace gramary::offload
